"""``specbench train dspark``: the loss, a head that learns, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import head_training
from support.decoders import loaded
from support.head_training import answers, losses, rounds
from support.models import tiny_llama
from torch import Tensor
from torch.nn import functional

from specbench.methods.dspark.config import DSparkConfig
from specbench.methods.dspark.head import DSparkHead
from specbench.methods.dspark.learning.distances import distances
from specbench.methods.dspark.learning.lesson import Lesson
from specbench.training.objectives import scored_rows
from specbench.training.recipe import Job, Text

VOCAB = 97
SMALL = {"layers": 1, "block_size": 4, "anchors": 40, "markov_rank": 8}


def target() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=3)


def train(job: Job, **more: Any) -> Mapping[str, Any]:
    return head_training.train("dspark", job, **{**SMALL, **more})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The tiny target's own greedy answers."""
    return answers(loaded(target()), tmp_path_factory.mktemp("answers"))


# ------------------------------------------------------------------ the loss


def plain_loss(
    outputs: Tensor, latents: Tensor, markov: Tensor, weight: Tensor, teacher: Tensor, labels: Tensor, ce: Any, l1: Any
) -> tuple[Tensor, Tensor]:
    """(ce · cross-entropy + l1 · L1 distance, acceptance) of every row, by autograd over all scores at once."""
    scores = outputs @ weight.T + latents @ markov.T
    draft = scores.softmax(-1)
    outside = 1 - teacher.sum(-1)
    distance = (draft - teacher).abs().sum(-1) + outside
    loss = (ce * functional.cross_entropy(scores, labels, reduction="none") + l1 * distance).sum()
    return loss, 1 - distance / 2


@pytest.mark.parametrize("rank", [0, 3])
def test_distances_and_gradients_are_those_of_all_scores_at_once(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_rows, "_CPU_SCORES", 40)  # several chunks
    generator = torch.Generator().manual_seed(0)
    rows, vocab, hidden = 7, 11, 5
    outputs, latents = (torch.randn(rows, n, generator=generator, requires_grad=True) for n in (hidden, rank))
    markov = torch.randn(vocab, rank, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, hidden, generator=generator)
    teacher = torch.randn(4, vocab + 3, generator=generator).softmax(-1)[:, :vocab]  # three tokens cannot be drafted
    which, labels = torch.tensor([0, 1, 2, 3, 3, 2, 1]), torch.randint(vocab, (rows,), generator=generator)
    ce, l1 = torch.rand(rows, generator=generator), torch.rand(rows, generator=generator)
    ce[2] = 0  # a token that cannot be drafted
    found = distances(outputs, latents, markov, weight, None, teacher, which, labels, ce, l1)
    loss, accepted = plain_loss(outputs, latents, markov, weight, teacher[which], labels, ce, l1)
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.accepted, accepted)
    given = (outputs, latents, markov)
    for own, expected in zip(torch.autograd.grad(found.loss, given), torch.autograd.grad(loss, given), strict=True):
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize(("kind", "drafted"), [("vanilla", VOCAB), ("gated", VOCAB), ("rnn", VOCAB), ("vanilla", 60)])
def test_the_loss_is_deepspecs(kind: Any, drafted: int) -> None:
    """Block by block and position by position, with whole scores, from the text's own tokens."""
    model, known = target(), list(range(VOCAB - drafted, VOCAB))
    config = DSparkConfig.for_target(
        model.config, mask_token_id=96, layers=1, block_size=4, markov_rank=8, markov_head_type=kind,
        draft_vocab_size=drafted % VOCAB,
    )  # fmt: skip
    head = DSparkHead.random(config)
    if drafted < VOCAB:
        head.set_draft_ids(torch.tensor(known))
    markov, confidence = head.markov_head, head.confidence_head
    assert markov is not None
    assert confidence is not None
    lesson = Lesson(head, model, anchors=50, gamma=2.0, ce=0.3, l1=0.6, confidence=0.7)
    ids = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
    starts, ends = torch.tensor([4, 2]), torch.tensor([12, 8])
    with torch.no_grad():
        found = lesson(ids, starts, ends)
        features, last = lesson.frozen.teach(ids, ends)
        likely = model.get_output_embeddings()(last).softmax(-1)
        sums, weights, labelled, count = torch.zeros(3), 0.0, 0.0, 0
        for text in range(2):
            blocks = lesson.every(int(starts[text]), int(ends[text]), ids.device)
            states = lesson.states(features[text : text + 1], ids[text : text + 1], blocks)[0]
            for anchor, outputs in zip(blocks.anchors[0].tolist(), states, strict=True):
                state = torch.zeros(8)
                for at in range(min(4, int(ends[text]) - 1 - anchor)):
                    before, label = ids[text, anchor + at], ids[text, anchor + at + 1]
                    embedded = markov.markov_w1.weight[before]
                    latent, state = markov.latent(embedded, outputs[at], state)
                    scores = model.get_output_embeddings()(outputs[at])[known] + markov.markov_w2.weight @ latent
                    wanted = likely[text, anchor + at]
                    # What the target gives to tokens that cannot be drafted is all missed.
                    distance = (scores.softmax(-1) - wanted[known]).abs().sum() + 1 - wanted[known].sum()
                    logit = confidence.proj(torch.cat([outputs[at], embedded]))[0]
                    errors = functional.binary_cross_entropy_with_logits(logit, 1 - distance / 2)
                    weight = float(torch.tensor(-at / 2.0).exp())
                    ours, entropy = int(label) in known, torch.zeros(())
                    if ours:
                        entropy = functional.cross_entropy(scores, torch.tensor(known.index(int(label))))
                    sums += weight * torch.stack([entropy, distance, errors])
                    weights, labelled, count = weights + weight, labelled + weight * ours, count + 1
    assert count == int(found["rows"])
    assert (labelled == weights) == (drafted == VOCAB)
    expected = (torch.tensor([0.3, 0.6, 0.7]) * sums / torch.tensor([labelled, weights, weights])).sum()
    torch.testing.assert_close(found["loss"], expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ a training


@pytest.mark.parametrize(("kind", "drafted"), [("vanilla", 60), ("rnn", 0)])
def test_a_head_learns_and_the_engine_accepts_as_much(
    kind: str, drafted: int, texts: list[Text], tmp_path: Path
) -> None:
    said: list[str] = []
    some = texts[:3]
    job = Job(loaded(target()), some, some, tmp_path, 0, said.append)
    card = train(job, steps=100, draft_vocab=drafted, markov_head=kind)
    falling = losses(said)
    assert len(falling) == 100
    assert sum(falling[-5:]) < 0.7 * sum(falling[:5])  # the entropies of text and confidence remain
    assert card["held_out_accepted_length"] > 2  # chance: 1.01

    head = DSparkHead.load(tmp_path / "head", dtype=torch.float32)
    assert head.config.markov_head_type == kind
    counted = Lesson(head, target(), anchors=1).held_out(some, torch.device("cpu"))
    assert counted.accepted_length == pytest.approx(card["held_out_accepted_length"], abs=1e-3)
    chain = {"head": str(tmp_path / "head"), "tree": "chain", "depth": 4}
    assert rounds("dspark", target(), some, **chain) == counted.rounds


#: Parameters of DeepSpec's Qwen3DSparkModel with one layer (H 32, 4 and 2 heads of 8, r 8), without confidence head.
DEEPSPEC = {
    "embed_tokens.weight": (VOCAB, 32), "lm_head.weight": (VOCAB, 32), "fc.weight": (32, 32),
    "hidden_norm.weight": (32,), "norm.weight": (32,),
    "layers.0.input_layernorm.weight": (32,), "layers.0.post_attention_layernorm.weight": (32,),
    "layers.0.self_attn.q_proj.weight": (32, 32), "layers.0.self_attn.k_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (16, 32), "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.self_attn.q_norm.weight": (8,), "layers.0.self_attn.k_norm.weight": (8,),
    "layers.0.mlp.gate_proj.weight": (48, 32), "layers.0.mlp.up_proj.weight": (48, 32),
    "layers.0.mlp.down_proj.weight": (32, 48),
    "markov_head.markov_w1.weight": (VOCAB, 8), "markov_head.markov_w2.weight": (VOCAB, 8),
    "markov_head.gate_proj.weight": (8, 40), "markov_head.gate_proj.bias": (8,),
}  # fmt: skip
NEEDED = (
    "target_layer_ids", "mask_token_id", "num_anchors", "enable_confidence_head", "confidence_head_with_markov",
    "markov_rank", "markov_head_type", "block_size", "num_target_layers", "layer_types", "vocab_size",
)  # fmt: skip


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_a_file_with_embeddings_is_deepspecs(confidence: float, texts: list[Text], tmp_path: Path) -> None:
    chosen = {"steps": 2, "embeddings": True, "markov_head": "gated", "confidence": confidence}
    train(Job(loaded(target()), texts, [], tmp_path, 0, print), **chosen)
    stored = load_file(tmp_path / "head" / "model.safetensors")
    predictor = {"confidence_head.proj.weight": (1, 40), "confidence_head.proj.bias": (1,)} if confidence else {}
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == DEEPSPEC | predictor
    assert torch.equal(stored["embed_tokens.weight"], target().get_input_embeddings().weight.bfloat16())
    assert torch.equal(stored["lm_head.weight"], target().get_output_embeddings().weight.bfloat16())
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert all(config[name] is not None for name in NEEDED)
    assert DSparkHead.load(tmp_path / "head", target().config).config.enable_confidence_head == (confidence > 0)
