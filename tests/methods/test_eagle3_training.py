"""``train eagle3``: heads learn, and the engine accepts as much as was counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import head_training
from support.decoders import loaded
from support.head_training import answers, losses, rounds
from support.models import tiny_llama

from specbench.common import UsageError
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.head import DraftHead
from specbench.methods.eagle3.learning.lesson import Lesson
from specbench.methods.eagle3.learning.start import start_from_target
from specbench.methods.eagle3.learning.unrolled import unrolled
from specbench.methods.eagle3.train import Options
from specbench.training.recipe import Job, Text

VOCAB = 97


def target() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=7)


def train(job: Job, **more: Any) -> Mapping[str, Any]:
    return head_training.train("eagle3", job, **{"unroll": 4, "clip": 5.0, **more})


def kept(folder: Path) -> DraftHead:
    return DraftHead.read(DraftHead.find(str(folder / "head")), target().config, dtype=torch.float32)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The tiny target's own greedy answers."""
    return answers(loaded(target()), tmp_path_factory.mktemp("answers"))


def job(texts: Sequence[Text], out: Path, say: Callable[[str], None] = lambda line: None, aside: int = 0) -> Job:
    return Job(loaded(target()), texts[aside:], texts[:aside], out, 0, say)


def test_a_head_learns_what_it_is_shown_and_the_engine_accepts_as_much(texts: list[Text], tmp_path: Path) -> None:
    result: list[str] = []
    texts = texts[:3]
    card = train(Job(loaded(target()), texts, texts, tmp_path, 0, result.append), steps=50, draft_vocab=60, lr=2e-2)
    falling = losses(result)
    assert len(falling) == 50
    assert sum(falling[-5:]) < 0.5 * sum(falling[:5])
    assert card["held_out_accepted_length"] > 1.5
    assert card["draft_vocab_coverage"] == 1.0  # they are the texts that it was chosen on
    assert card["parameters"] - card["parameters_outside_lm_head"] == 60 * 32

    # The same texts decoded by the engine with the head's chain take as many rounds as were counted without it.
    head = kept(tmp_path)
    assert head.draft_ids is not None
    counted = Lesson(head, target(), steps=4).held_out(texts, torch.device("cpu"))
    assert counted.accepted_length == pytest.approx(card["held_out_accepted_length"], abs=1e-3)
    chain = {"head": str(tmp_path / "head"), "tree": "chain", "budget": 5, "depth": 4}
    assert rounds("eagle3", target(), texts, **chain) == counted.rounds


def test_a_trained_head_is_trained_on(texts: list[Text], tmp_path: Path) -> None:
    def learning(learnt: list[Text], out: str, **how: Any) -> Mapping[str, Any]:
        return train(Job(loaded(target()), learnt, texts[:3], tmp_path / out, 0, print), draft_vocab=60, **how)

    first = learning(texts[:3], "first", steps=50, lr=2e-2)
    on: dict[str, Any] = {"start": f"{tmp_path / 'first' / 'head'}/", "lr": 1e-9, "steps": 1}
    # The most frequent tokens of these texts are others, and the head keeps its own.
    again = learning(texts[3:6], "again", **on)
    assert again["curve"][0]["accepted_length"] == first["held_out_accepted_length"] > 1.5
    assert Options(start=on["start"]).model_dump()["start"] == "first", "no folder of a machine"
    old, new = kept(tmp_path / "first").state_dict(), kept(tmp_path / "again").state_dict()
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, msg=name)
    with pytest.raises(UsageError, match=r"Missing key.*layers\.1.*give the options that it was trained with"):
        learning(texts[:3], "wider", **on, layers=2)
    with pytest.raises(UsageError, match="none"):
        learning(texts[:3], "none", **{**on, "start": str(tmp_path / "none")})


def test_a_head_has_the_layers_that_are_asked_for() -> None:
    config = target().config
    assert [HeadConfig.for_target(config, layers=layers).num_hidden_layers for layers in (1, 3)] == [1, 3]
    parallel = HeadConfig.untrained("random-parallel", config, 5)
    assert parallel is not None
    assert (parallel.num_hidden_layers, parallel.mask_token_id) == (4, 5)
    assert len(made(layers=2).layers) == 2


def test_the_file_is_in_the_original_layout(texts: list[Text], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    train(job(texts, tmp_path), steps=1, draft_vocab=40)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (VOCAB, 40)
    # Readers do not agree on what these mean, so that leaving them out is the one way to be read alike.
    assert not {"norm_output", "eagle_aux_hidden_state_layer_ids", "eagle_config"} & config.keys()
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert "midlayer.hidden_norm.weight" in tensors
    assert not any(name.startswith("layers.") for name in tensors)
    ids = torch.arange(40) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)
    assert torch.equal(kept(tmp_path).draft_ids, ids)  # type: ignore[arg-type]


def made(layers: int = 1, seed: int = 3) -> DraftHead:
    """A random head of large weights, so that a step's features say much about the next."""
    config = HeadConfig.for_target(target().config, layers=layers, draft_vocab_size=50)
    head = DraftHead.random(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise if parameter.dim() == 1 else noise)
    return head.double()


@pytest.mark.parametrize("layers", [1, 2])
def test_each_step_is_what_a_draft_after_its_row_reads(layers: int) -> None:
    """Against a text that grows by one row at a time, everything of it computed anew."""
    head = made(layers)
    generator = torch.Generator().manual_seed(1)
    fused, embedded = torch.randn(2, 9, 32, generator=generator).double(), torch.randn(2, 14, 32).double()
    rows = torch.tensor([[2, 5, 7], [0, 3, 6]])
    found = list(unrolled(head, fused, embedded, rows, 4))

    def plain(layer: int, attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2)

    for text in range(2):
        for column, row in enumerate(rows[text].tolist()):
            before = fused[text : text + 1, : row + 1]
            for step in range(4):
                count = row + 1 + step
                tokens, positions = embedded[text : text + 1, 1 : count + 1], torch.arange(count)[None]
                out = head(before, tokens, positions, plain)
                assert torch.allclose(found[step][text, column], out[0, -1], atol=1e-9)
                before = torch.cat([before, head.fed_back(out[:, -1:])], dim=1)


def test_computing_activations_again_changes_no_gradient(texts: list[Text]) -> None:
    from specbench.training.objectives.side_by_side import side_by_side

    found: list[tuple[float, list[torch.Tensor]]] = []
    for recompute in (False, True):
        model = target()
        lesson = Lesson(made(2).float(), model, steps=3, recompute=recompute)
        loss = lesson(**side_by_side(texts[:3]))["loss"]
        loss.backward()
        gradients = [p.grad.clone() for p in lesson.parameters() if p.grad is not None]
        found.append((float(loss.detach()), gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert len(found[0][1]) == len(found[1][1]) > 10
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_features_that_are_kept_are_those_of_a_forward(texts: list[Text]) -> None:
    from specbench.training.objectives.side_by_side import side_by_side
    from specbench.training.objectives.teacher import Remembered, Teacher

    asked, former = [], list[torch.Tensor]()
    teacher = Teacher(target(), (1, 3))

    def counted(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(len(ids))
        for output in former:
            output.zero_()  # the teacher may use this memory again
        former[:] = features, states = teacher(ids)
        return features, states

    remembered = Remembered(counted)  # type: ignore[arg-type]
    for some in (texts[:3], texts[3:5], [texts[4], texts[0]], [texts[2]], texts[:3]):
        batch = side_by_side(some)
        ids = torch.nn.functional.pad(batch["ids"], (0, 3))
        found, plain = remembered(ids, batch["ends"]), teacher(ids)
        for row, end in enumerate(batch["ends"].tolist()):
            for mine, theirs in zip(found, plain, strict=True):
                assert mine.shape == theirs.shape
                assert torch.allclose(mine[row, :end], theirs[row, :end], atol=1e-4)
    assert asked == [3, 2]


def test_the_loss_is_the_divergence_of_rows_that_can_draft_the_targets_token(texts: list[Text]) -> None:
    """Written down once more, row by row, for one text."""
    model, head, steps = target(), made().float(), 3
    text = texts[0]
    ids = torch.tensor([[*text.prompt, *text.answer]])
    start, end = len(text.prompt), ids.shape[1]
    lesson = Lesson(head, model, steps=steps, decay=0.5)
    found = lesson(ids=ids, starts=torch.tensor([start]), ends=torch.tensor([end]))
    with torch.no_grad():
        states = model(ids).logits[0].float()
        hidden = model(ids, output_hidden_states=True).hidden_states
        fused = head.fuse(torch.cat([hidden[layer + 1] for layer in head.config.taps], dim=-1))
        embedded = model.get_input_embeddings()(torch.nn.functional.pad(ids, (0, steps)))
        rows = torch.arange(start - 1, end - 2)[None]
        known = head.draft_ids
        assert known is not None
        total = 0.0
        for step, outputs in enumerate(unrolled(head, fused, embedded, rows, steps)):
            losses = []
            for column, row in enumerate(rows[0].tolist()):
                if row + 2 + step >= end or int(states[row + 1 + step].argmax()) not in known.tolist():
                    continue
                target_p = states[row + 1 + step][known].softmax(-1)
                result = head.scores(outputs[:, column])[0].log_softmax(-1)
                losses.append(float((target_p * (target_p.log() - result)).sum()))
            assert losses
            total += 0.5**step * sum(losses) / len(losses)
    assert float(found["loss"].detach()) == pytest.approx(total, rel=1e-4)


def test_first_weights_are_the_targets(texts: list[Text]) -> None:
    model = target()
    config = HeadConfig.for_target(model.config, intermediate_size=2 * 48, draft_vocab_size=50)
    head = DraftHead.random(config)
    head.set_draft_ids(torch.arange(7, 57))
    assert start_from_target(head, model) > 10_000
    last, before = model.model.layers[-1], model.model.layers[-2]
    own: Any = head.layers[0]
    assert torch.equal(own.self_attn.k_proj.weight[:, 32:], last.self_attn.k_proj.weight)
    assert torch.equal(own.mlp.gate_proj.weight, torch.cat([last.mlp.gate_proj.weight, before.mlp.gate_proj.weight]))
    assert torch.equal(head.lm_head.weight, model.lm_head.weight[7:57])
    rows = torch.randn(3, 32)
    both = last.mlp(rows) + before.mlp(rows)
    assert torch.allclose(own.mlp(rows), both, atol=1e-5)
