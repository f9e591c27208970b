"""EAGLE-3 with block verification: drafts are drawn from what is handed on; texts have AR's distribution."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import scipy
import torch
from support import models
from support.decoders import ready, served, with_options
from support.distributions import drawn_from, written
from support.models import attached, prompt, tiny_llama
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context, Method
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.engine.heads import head_pass
from specbench.engine.sampler import Sampling

VOCAB, LONG = 13, 12
HOT, WARM = Sampling(1.0, seed=2), Sampling(0.7, top_k=9, seed=5)


def target() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=7, max_position_embeddings=512).double()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with attached(target(), slots=8, capacity=200, max_rows=8) as made:
        yield made


def made(engine: Engine, **more: Any) -> Method:
    options = {"head": "random", "tree": "chain", "depth": 3, "budget": 8, "verify": "block", **more}
    return ready(with_options("eagle3", options), engine)


def context() -> Context:
    return Context(VOCAB, 0, random.Random(0))


def places(engine: Engine, method: Method, sampling: Sampling) -> list[float]:
    """Where each emitted token lies in its own distribution: uniform on (0, 1), and independent, if drawn from it."""
    prompts, texts, _ = written(engine, method, sampling, LONG, VOCAB)
    found, rng = [], random.Random(sampling.seed)
    for text, ids in zip(texts, prompts, strict=True):
        p = drawn_from(engine, text, sampling)
        for at in range(len(ids) + 1, len(ids) + 1 + LONG):
            mine, token = p[at - 1], text[at]
            assert mine[token] > 0, "a token that the filters leave out"
            found.append(float(mine[:token].sum() + rng.random() * mine[token]))
    return found


def uniformity(engine: Engine, method: Method, sampling: Sampling, seeds: int) -> float:
    found = [one for seed in range(seeds) for one in places(engine, method, replace(sampling, seed=50 + seed))]
    return float(scipy.stats.kstest(found, "uniform").pvalue)


@pytest.mark.parametrize("sampling", [HOT, WARM], ids=["T=1", "T=0.7 top-k"])
def test_tokens_are_drawn_from_the_targets_distributions(engine: Engine, sampling: Sampling) -> None:
    assert uniformity(engine, made(engine), sampling, 3) > 0.01


def test_a_draft_is_drawn_from_what_is_handed_on_by_numbers_of_its_own_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    real = head_pass.uniforms

    def watched(seed: int, stream: Any, starts: Sequence[int], count: int) -> Tensor:
        asked.append(list(starts))
        return real(seed, stream, starts, count)

    monkeypatch.setattr(head_pass, "uniforms", watched)
    with attached(target(), slots=1, capacity=60, max_rows=8) as engine:
        method, ids = made(engine, depth=4), prompt(5, VOCAB)
        engine.sampling = HOT
        decoder, slot, counts = method.new(context()), engine.alloc(), torch.zeros(VOCAB)
        expected = torch.zeros(VOCAB, dtype=torch.float64)
        for seed in range(100):
            engine.sampling = replace(HOT, seed=seed)
            engine.rewind(slot, 0)
            decoder = method.new(context())
            decoder.begin(ids)
            decoder.observe(engine.prefill(slot, ids, taps=method.taps))
            tree = decoder.draft()
            proposal = tree.proposal
            assert proposal is not None
            assert torch.allclose(proposal.probabilities.sum(-1), torch.ones(4))
            counts[tree.tokens[1]] += 1
            expected += proposal.probabilities[0].double()
            for row, token in enumerate(tree.tokens[1:]):
                assert tree.row_scores()[row + 1] == pytest.approx(  # type: ignore[index]
                    float(proposal.probabilities[row, token].log()), abs=1e-4
                )
            decoder.end()
    assert all(starts == [5] for starts in asked)
    often = expected > 4
    statistic = float(((counts - expected) ** 2 / expected)[often].sum())
    assert scipy.stats.chi2.sf(statistic, int(often.sum())) > 0.001


def test_greedy_and_by_noise_it_is_ar_token_for_token(engine: Engine) -> None:
    prompts = [prompt(4 + 5 * number, VOCAB, number) for number in range(5)]
    for sampling, verify in ((Sampling(), "block"), (HOT, "noise")):
        method = made(engine, verify=verify)
        assert method.own_noise == (verify == "block")
        engine.sampling = sampling
        for ids, record in zip(prompts, served(engine, method, prompts, 20, 3), strict=True):
            engine.sampling = sampling
            assert record.output_ids == models.autoregressive(engine, ids, 20)


def test_captured_rounds_draw_what_eager_ones_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    prompts = [prompt(4 + 5 * number, VOCAB, number) for number in range(4)]
    found = []
    for captured in (False, True):
        with attached(target(), slots=3, capacity=60, max_rows=8, graphs=captured, sampling=HOT) as engine:
            method = made(engine)
            engine.prepare(4, taps=method.taps, probabilities=method.own_noise, context=20)
            found.append([(r.output_ids, r.accepted_lengths) for r in served(engine, method, prompts, 12, 3)])
            late = engine.report().get("late_captures", 0)
    assert found[0] == found[1]
    assert len(found[0]) == 4
    assert late == 0


def test_only_chains_of_heads_that_draft_one_by_one_are_verified_as_blocks(engine: Engine) -> None:
    with pytest.raises(UsageError, check=wording):
        made(engine, tree="dynamic")
    with pytest.raises(UsageError, check=wording):
        made(engine, head="random-parallel")
