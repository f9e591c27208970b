"""The head's pass against the whole head at once, and what its drafts do in an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders
from support.decoders import alone, eager, head, together
from support.models import attached, autoregressive, layer_outputs, prompt, supported, tiny_llama
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context, Method
from specbench.decoding.trees.marginals import Marginals
from specbench.engine.engine import Engine
from specbench.engine.heads import head_pass
from specbench.heads import sized_trees
from specbench.heads.block_head import BlockHead, BlockRounds
from specbench.heads.sized_trees import draft_seconds
from specbench.methods.jetspec.decoder import Decoder, Options
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

VOCAB = 50


CAPTURED = recorded_capture(torch.device("cpu"))


def double() -> Any:
    """A target in float64 with the sizes of :func:`heads.head`."""
    return tiny_llama(VOCAB, hidden_size=24, num_attention_heads=4, head_dim=8, num_hidden_layers=12).double()


def ready(engine: Engine, **options: Any) -> Method:
    return decoders.ready(decoders.with_options("jetspec", options), engine)


def whole(made: BlockHead, model: Any, features: Tensor, anchor: int, depth: int, width: int) -> Any:
    """(tokens, log-probabilities) of the best tokens by one forward over everything, nothing cached."""
    config = made.config
    with torch.inference_mode():
        ids = torch.tensor([anchor] + [config.mask_token_id] * (config.block_size - 1))
        rows = together(made, features, model.get_input_embeddings()(ids), config.causal)
        logp = model.get_output_embeddings()(rows[1 : depth + 1]).log_softmax(-1)
        best, tokens = logp.topk(width, dim=-1)
    return tokens.tolist(), best


@pytest.mark.parametrize(
    ("causal", "capture", "depth"), [(True, eager, 5), (False, eager, 2), (True, CAPTURED, 2), (False, CAPTURED, 5)]
)
def test_rounds_on_the_cache_are_the_whole_head_each_time(
    causal: bool, capture: Any, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_pass, "CHUNK", 4)  # long prompts come in parts
    model, made, rng = double(), head(causal), random.Random(3)
    generator = torch.Generator().manual_seed(3)
    passes = BlockRounds(made, alone(model, slots=3, capacity=40, capture=capture), depth=depth, width=7)
    text: dict[int, Tensor] = {}
    anchors: dict[int, int] = {}

    def more(slot: int, count: int) -> None:
        new = torch.randn(count, made.fc.in_features, dtype=torch.float64, generator=generator)
        text[slot] = torch.cat([text[slot], new]) if slot in text else new
        anchors[slot] = rng.randrange(VOCAB)
        passes.append(slot, [anchors[slot]] * count, new.clone())
        assert passes.length(slot) == len(text[slot])

    for slot, length in enumerate((1, 13, depth + 1)):  # a prompt that fits into the buffer, and one that does not
        assert passes.open() == slot
        more(slot, length)
    for turn in range(8):
        going = [slot for slot in text if turn in (0, 5) or rng.random() < 0.7]
        for slot in going:
            if turn:
                more(slot, rng.randint(1, depth + 1))
        for slot in rng.sample(going, len(going)):
            found = passes.marginals(slot)
            tokens, logp = whole(made, model, text[slot], anchors[slot], depth, 7)
            assert (found.root, found.tokens) == (anchors[slot], tokens)
            assert (torch.tensor(found.logp, dtype=torch.float64) - logp).abs().max() < 1e-5
            with pytest.raises(ValueError, check=wording):
                passes.marginals(slot)
        if turn == 4:  # another sequence in the same cells
            passes.close(1)
            del text[1]
            assert passes.open() == 1
            more(1, 2)
            more(1, depth)  # twice before it asks


# ------------------------------------------------------------------ in an engine


def drafted(record: RequestRecord) -> tuple[Any, ...]:
    """What a record says of tokens and drafts, without the times."""
    return record.output_ids, record.accepted_lengths, record.tree_rows, record.measures


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "random"), ("qwen3", "random-dflash"), ("gemma3", "random")], ids=str
)
def test_it_drafts_from_the_features_of_the_text_so_far(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps, their order, the anchor and positions: every round's candidates are those of the text read anew."""
    model = supported(family)
    vocab = model.get_output_embeddings().weight.shape[0]
    ids = prompt(19, vocab)
    seen: list[Marginals] = []
    marginals = BlockRounds.marginals

    def watched(self: BlockRounds, slot: int) -> Marginals:
        seen.append(marginals(self, slot))
        return seen[-1]

    monkeypatch.setattr(BlockRounds, "marginals", watched)
    with attached(model, capacity=70, max_rows=96) as engine:
        truth = autoregressive(engine, ids, 32)
        method = ready(engine, head=kind, width=40)
        (record,) = decoders.served(engine, method, [ids], 30)
        assert record.output_ids == truth[:30]
    made = method.shared.rounds.head
    layers = layer_outputs(model, torch.tensor([[*ids, *truth]]))  # of a causal model: a beginning's are the same
    at = 1
    for found, accepted in zip(seen, [*record.accepted_lengths, 0], strict=False):
        end = len(ids) + at - 1
        features = torch.cat([layers[layer][0, :end] for layer in made.config.taps], dim=-1)
        tokens, logp = whole(made, model, features, truth[at - 1], 15, 40)
        assert found.root == truth[at - 1]
        # In float32: the same candidates, where two are not within rounding of each other.
        assert (torch.tensor(found.logp) - logp).abs().max() < 1e-4
        pairs = [pair for both in zip(found.tokens, tokens, strict=True) for pair in zip(*both, strict=True)]
        assert sum(one == other for one, other in pairs) > 0.95 * len(pairs)
        at += accepted
    assert len(seen) == record.target_forwards
    assert max(record.accepted_lengths) > 1  # or no path of several rows ever brought features


def oracle(monkeypatch: pytest.MonkeyPatch, prompt: int, truth: Sequence[int], depth: int, width: int = 3) -> None:
    """A head that knows the answer: its pass runs, and what it says is put right."""
    marginals = BlockRounds.marginals

    def reported(self: BlockRounds, slot: int) -> Marginals:
        at = self.length(slot) - prompt
        result = marginals(self, slot)
        assert result.root == truth[at]
        right = [*truth[at + 1 : at + 1 + depth], *[0] * depth][:depth]
        others = [[token for token in range(width) if token != best][: width - 1] for best in right]
        tokens = [[best, *rest][: len(result.tokens[0])] for best, rest in zip(right, others, strict=True)]
        return Marginals(result.root, tokens, [[-0.1, *[-3.0] * (width - 1)][: len(result.tokens[0])]] * depth)

    monkeypatch.setattr(BlockRounds, "marginals", reported)


@pytest.mark.parametrize(("tree", "depth"), [("chain", 4), ("optimal", 15), ("auto", 4)])
def test_a_head_that_is_right_reaches_its_depth(tree: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(4, 300)
    with attached(supported("qwen3"), capacity=80, max_rows=32) as engine:
        truth = autoregressive(engine, ids, 40)
        cut = {"depth": depth} if depth < 15 else {}  # its block has 15 guesses
        method = ready(engine, head="random", tree=tree, budget=32, width=3, **cut)
        oracle(monkeypatch, len(ids), truth, depth)
        tokens = 2 * (depth + 1) + 1
        (record,) = decoders.served(engine, method, [ids], tokens)
        assert record.output_ids == truth[:tokens]
        assert record.accepted_lengths == [depth + 1] * 2


# ------------------------------------------------------------------ what a run shares


def prepared(model: Any, slots: int = 1, capacity: int = 40, **options: Any) -> Method:
    with attached(model, capacity=capacity, max_rows=64, slots=slots) as engine:
        return ready(engine, **options)


def test_what_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(UsageError, check=wording):
        Decoder.check(Options(), "qwen3-8b")
    Decoder.check(Options(head="random"), "qwen3-8b")
    with pytest.raises(UsageError, check=wording):
        prepared(supported("llama"), depth=16)
    with pytest.raises(UsageError, check=wording):
        prepared(tiny_llama(97, num_hidden_layers=1))


def test_a_head_from_a_folder_runs_and_is_recorded(tmp_path: Path) -> None:
    with attached(supported("qwen3"), capacity=60, max_rows=96) as engine:
        other = ready(engine)
        assert other.weights["head"] == "random"
        other.shared.rounds.head.save(tmp_path / "mine")
        mine = ready(engine, head=str(tmp_path / "mine"))
        assert mine.weights["head"] == "mine"
        assert len(mine.weights["head_sha256"]) == 64
        ids = [prompt(9, 300)]
        assert drafted(*decoders.served(engine, mine, ids)) == drafted(*decoders.served(engine, other, ids))


def test_slots_come_back_however_a_sequence_ends() -> None:
    with attached(supported("llama"), slots=2, capacity=60, max_rows=96) as engine:
        method = ready(engine)
        decoders.served(engine, method, [prompt(5, 97, seed) for seed in range(5)], 1)  # none of them ever drafts
        rules = [StopRule(frozenset(), (), tokens, str) for tokens in (4, 13)]
        requests = [Request(str(at), 0, prompt(5, 97, at), rule) for at, rule in enumerate(rules)]
        given_up = Runner(engine, lambda *_: Context(97, 0, random.Random(0)), 2).segment(method, requests)
        next(given_up)
        given_up.close()
        assert [method.shared.rounds.open() for _ in range(2)] == [0, 1]
        with pytest.raises(ValueError, check=wording):
            method.shared.rounds.open()


@pytest.mark.parametrize("slots", [1, 3])
def test_the_cost_of_a_pass_counts_in_the_step_times_of_auto(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all sequences of the run, after the length that is nearer to the text's."""
    with attached(supported("llama"), capacity=40, max_rows=64, slots=slots) as engine:
        passes = ready(engine).shared.rounds
        assert draft_seconds(passes, slots, 16, 20) > 0
        assert passes.open() == 0  # nothing is left in use
    seen: list[Any] = []
    asked: list[tuple[int, int]] = []

    def drafting_seconds(rounds: Any, sequences: int, budget: int, context: int) -> float:
        asked.append((sequences, context))
        return context / 1024

    monkeypatch.setattr(sized_trees, "draft_seconds", drafting_seconds)
    monkeypatch.setattr(sized_trees, "BUILDERS", {"auto": lambda marginals, budget, knobs: seen.append(knobs)})
    shared = prepared(supported("llama"), tree="auto", budget=64, slots=slots, capacity=4096).shared
    monkeypatch.setattr(BlockRounds, "marginals", lambda self, slot: None)
    for length in (0, 500, 1400, 1600, 4000):
        shared.rounds.length = lambda slot, length=length: length
        shared.tree(0)
    assert asked == [(slots, 512), (slots, 4096)]
    assert [each.step_seconds[64] for each in seen] == [2.5, 2.5, 2.5, 6.0, 6.0]
