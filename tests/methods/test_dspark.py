"""DSpark in an engine: AR's tokens at any sampling, drafts sampled for block verification, and options refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders
from support.decoders import eager, served, target
from support.dspark_oracle import dense_dspark, write_dspark
from support.models import attached, autoregressive, prompt, supported, tiny_llama
from support.wording import wording

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding import TokenTree
from specbench.engine.sampler import Sampling
from specbench.methods.dspark.decoder import Decoder, Options
from specbench.methods.dspark.drafting import DSparkRounds
from specbench.planning.methods import make_method

CAPTURED = recorded_capture(torch.device("cpu"))
VOCAB, LAYERS = 17, 8


def model() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=LAYERS).double()


@pytest.mark.parametrize("capture", [eager, CAPTURED], ids=["eager", "captured"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "sampled"])
def test_three_sequences_are_ar_token_for_token(
    sampling: Sampling, capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_dspark(tmp_path, "deepspec", kind="rnn")
    prompts = [prompt(length, VOCAB, length) for length in (3, 8, 1, 5, 12)]
    with attached(model(), slots=3, capacity=70, max_rows=64) as engine:
        engine.sampling = sampling
        truth = [autoregressive(engine, ids, 24) for ids in prompts]
        monkeypatch.setattr(engine, "capture", capture, raising=False)
        for options in ({"width": 4, "budget": 30}, {"tree": "chain", "confidence": 0.4}):
            method = make_method("dspark", "dspark", {"head": str(folder), **options}).ready(target(engine))
            assert bool(method.shared.rounds._passes._launches) == (capture is CAPTURED)
            records = served(engine, method, prompts, 24, 3)
            assert [record.output_ids for record in records] == [each[:24] for each in truth]
            assert max(max(record.accepted_lengths) for record in records) > 1


def test_sampled_drafts_come_with_their_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's, at the target's temperature, given the drafts before; the confidence cuts them like the chain."""
    folder = write_dspark(tmp_path, "speculators", draft_vocab=9)
    seen: list[tuple[TokenTree, Any, list[int]]] = []
    texts: dict[int, list[int]] = {}
    tree, append = DSparkRounds.tree, DSparkRounds.append
    features: dict[int, list[torch.Tensor]] = {}

    def watched(self: DSparkRounds, slot: int, *more: Any) -> TokenTree:
        found = tree(self, slot, *more)
        seen.append((found, torch.cat(features[slot]), [*texts[slot]]))
        return found

    def added(self: DSparkRounds, slot: int, tokens: Any, new: torch.Tensor) -> None:
        texts.setdefault(slot, []).extend(tokens)
        features.setdefault(slot, []).append(new.clone())
        append(self, slot, tokens, new)

    monkeypatch.setattr(DSparkRounds, "tree", watched)
    monkeypatch.setattr(DSparkRounds, "append", added)
    with attached(model(), capacity=60, max_rows=16) as engine:
        engine.sampling = Sampling(0.7, seed=5)
        chosen = {"head": str(folder), "tree": "chain", "verify": "block", "confidence": 0.45}
        method = make_method("dspark", "dspark", chosen).ready(target(engine))
        served(engine, method, [prompt(6, VOCAB)], 24)
        embedding, lm_head = engine.model.get_input_embeddings().weight, engine.model.get_output_embeddings().weight
    assert {len(found) for found, *_ in seen} >= {1, 5}  # all cut, and none
    for found, own, text in seen:
        assert (found.proposal is None) == (len(found) == 1)
        say = dense_dspark(folder, own, text[-1], embedding, lm_head)
        for row in range(1, len(found)):
            logp, sure = say(tuple(found.tokens[1:row]))
            assert sure is not None
            assert float(sure) >= 0.45
            assert found.proposal is not None
            assert found.proposal.ids is not None
            expected = (logp[found.proposal.ids] / 0.7).softmax(-1)
            assert (found.proposal.probabilities[row - 1] - expected).abs().max() < 1e-5
    assert 0 < sum(_best(found) for found, *_ in seen) < sum(len(found) - 1 for found, *_ in seen)


def _best(tree: TokenTree) -> int:
    """Drafts that are the most probable of their distributions."""
    if tree.proposal is None:
        return 0
    assert tree.proposal.ids is not None
    best = tree.proposal.ids[tree.proposal.probabilities.argmax(-1)].tolist()
    return sum(token == other for token, other in zip(tree.tokens[1:], best, strict=True))


def test_greedy_chains_have_no_distributions(tmp_path: Path) -> None:
    folder = write_dspark(tmp_path, "deepspec")
    with attached(model(), capacity=60, max_rows=16) as engine:
        truth = autoregressive(engine, prompt(6, VOCAB), 20)
        chosen = {"head": str(folder), "tree": "chain", "verify": "block"}
        method = make_method("dspark", "dspark", chosen).ready(target(engine))
        (record,) = served(engine, method, [prompt(6, VOCAB)], 20)
    assert record.output_ids == truth[:20]


def test_what_cannot_be_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        Decoder.check(Options(), "qwen3-0.6b")
    Decoder.check(Options(head="random"), "qwen3-0.6b")
    with attached(supported("qwen3"), capacity=40, max_rows=64) as engine, pytest.raises(UsageError, check=wording):
        decoders.ready(decoders.with_options("dspark", {"head": "random", "depth": 8}), engine)
    folder = write_dspark(tmp_path, "deepspec", confidence=False)
    chosen = {"head": str(folder), "tree": "chain", "verify": "block", "confidence": 0.5}
    with attached(model(), capacity=40, max_rows=64) as engine, pytest.raises(UsageError, check=wording):
        make_method("dspark", "dspark", chosen).ready(target(engine))
    with pytest.raises(ValueError, match="verify=block"):
        Options(verify="block")


def test_copies_of_the_targets_embedding_are_dropped(tmp_path: Path) -> None:
    """And what is drafted stays the same; other embeddings are kept."""
    from specbench.methods.dspark.head import DSparkHead

    made = DSparkHead.load(write_dspark(tmp_path / "a", "deepspec", own=False), dtype=torch.float64)
    made.copy_from(model())
    made.save(tmp_path / "b")
    with attached(model(), capacity=60, max_rows=64) as engine:
        drafted = []
        for name in ("a", "b"):
            method = make_method("dspark", "dspark", {"head": str(tmp_path / name)}).ready(target(engine))
            head = method.shared.rounds.head
            assert (head.embed_tokens, head.lm_head) == (None, None)
            (record,) = served(engine, method, [prompt(6, VOCAB)], 12)
            drafted.append((record.output_ids, record.accepted_lengths, record.measures))
        assert drafted[0] == drafted[1]
        other = write_dspark(tmp_path / "c", "deepspec")
        head = make_method("dspark", "dspark", {"head": str(other)}).ready(target(engine)).shared.rounds.head
        assert head.embed_tokens is not None
        assert head.lm_head is not None
