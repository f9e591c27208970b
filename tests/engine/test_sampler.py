"""Sampling is exact, and its noise is a function of (seed, position, token id) alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy  # scipy.stats is imported lazily
import torch
import transformers
from support import models
from support.models import attached, prompt, tiny_llama
from torch import Tensor

from specbench.decoding.tree import COMPUTED, TokenTree
from specbench.engine import sampler
from specbench.engine.sampler import Sampling, Stream, drawn, filtered, gumbel, scores, uniforms

Record = Callable[[str, object], None]

VOCAB = 16
LIMIT = 1e-3  # below this a p-value fails
SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=1.7),
    Sampling(temperature=1.5, top_k=6),
    Sampling(temperature=1.5, top_p=0.85),
    Sampling(temperature=1.8, top_k=9, top_p=0.9),
]


def name(sampling: Sampling) -> str:
    return f"T{sampling.temperature}-k{sampling.top_k}-p{sampling.top_p}"


def exact(logits: Tensor, sampling: Sampling) -> Tensor:
    """float64 probabilities [rows, V] by transformers' own filters, renormalised."""
    warped = logits.double() / sampling.temperature
    ids = torch.zeros(len(warped), 1, dtype=torch.int64)
    if sampling.top_k:
        warped = transformers.TopKLogitsWarper(sampling.top_k)(ids, warped)
    if sampling.top_p < 1:
        warped = transformers.TopPLogitsWarper(sampling.top_p)(ids, warped)
    return warped.softmax(-1)


def chi_square(counts: Sequence[float], probabilities: Sequence[float]) -> float:
    """p-value of observed counts; impossible outcomes must not occur, rare ones are pooled."""
    observed, expected = np.asarray(counts, float), np.asarray(probabilities, float)
    assert observed[expected == 0].sum() == 0, "an impossible outcome was drawn"
    expected = expected / expected.sum() * observed.sum()
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    rare = int((np.cumsum(expected) < 5).sum()) + 1  # pooled cells reach 5 together
    pooled = int(max(rare, (expected < 5).sum()))
    observed = np.append(observed[pooled:], observed[:pooled].sum())
    expected = np.append(expected[pooled:], expected[:pooled].sum())
    return float(scipy.stats.chisquare(observed, expected).pvalue)


# ------------------------------------------------------------------ the noise


def noise(seeds: Sequence[int], positions: Sequence[int], vocab: int) -> Tensor:
    """[seeds, positions, vocab]."""
    seed = torch.tensor(seeds)[:, None]
    return gumbel(seed, torch.tensor(positions).expand(len(seeds), -1), vocab)


def test_noise_is_standard_gumbel(record_testsuite_property: Record) -> None:
    sample = noise(range(20), range(100), 500).flatten().double().numpy()
    error = math.pi / math.sqrt(6 * sample.size)
    assert abs(sample.mean() - np.euler_gamma) < 4 * error
    # the variance of a sample variance is (m4 - var²) / n, and a Gumbel's kurtosis is 5.4
    variance = math.pi**2 / 6
    assert abs(sample.var() - variance) < 4 * variance * math.sqrt(4.4 / sample.size)
    p = scipy.stats.kstest(sample[::7], scipy.stats.gumbel_r.cdf).pvalue
    record_testsuite_property("Gumbel noise, KS p-value", p)
    assert p > LIMIT


def test_the_upper_tail_is_as_heavy_as_it_should_be() -> None:
    # it decides the argmax of a large vocabulary; 24-bit uniforms would end it at 16.6 and coarsen it before
    sample = torch.cat([noise([seed], range(64), 1 << 14).flatten() for seed in range(8)])
    for level in (8.0, 11.0, 13.0):
        expected = -math.expm1(-math.exp(-level)) * len(sample)
        seen = int((sample > level).sum())
        assert scipy.stats.poisson.cdf(seen, expected) > LIMIT
        assert scipy.stats.poisson.sf(seen - 1, expected) > LIMIT
    top = sample[sample > 9]
    assert len(top.unique()) > 0.99 * len(top)  # 24 bits would leave 2000 values to share
    assert torch.isfinite(sample).all()


def correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(a.flatten().double(), b.flatten().double())[0, 1])


@pytest.mark.parametrize("stride", [1, 2, 3, 64, 1 << 16, 1 << 31])
def test_noise_of_other_seeds_positions_and_tokens_is_uncorrelated(stride: int) -> None:
    seeds, positions, vocab = range(8), range(50), 128
    base = noise(seeds, positions, vocab)
    bound = 4.5 / math.sqrt(base.numel())
    far_seeds, far_positions = [seed + stride for seed in seeds], [at + stride for at in positions]
    others = [
        noise(far_seeds, positions, vocab),
        noise([seed + (stride << 31) for seed in seeds], positions, vocab),  # the upper half of a seed counts too
        noise(seeds, far_positions, vocab),
        noise(far_seeds, far_positions, vocab),
        noise(far_seeds, far_positions[::-1], vocab),
    ]
    for other in others:
        assert abs(correlation(base, other)) < bound
        # the same noise moved along the tokens would decide neighbouring positions alike
        for shift in (1, 2, 5):
            assert abs(correlation(base[..., shift:], other[..., :-shift])) < bound
    if stride < vocab:
        assert abs(correlation(base[..., stride:], base[..., :-stride])) < bound


def test_noise_does_not_depend_on_the_batch_shape() -> None:
    whole = noise([3, 4, 1 << 40], [0, 5, 9, 2_000_000], 300)
    assert torch.equal(whole, noise([3, 4, 1 << 40], [0, 5, 9, 2_000_000], 300))
    for at, seed in enumerate([3, 4, 1 << 40]):
        for where, position in enumerate([0, 5, 9, 2_000_000]):
            assert torch.equal(noise([seed], [position], 300)[0, 0], whole[at, where])
    assert torch.equal(noise([3], [5], 100)[0, 0], whole[0, 1, :100])  # nor on the vocabulary


@pytest.mark.parametrize("seed", [7, 1 << 31, (1 << 63) - 1])
def test_positions_of_32_bits_have_the_noise_of_64(seed: int) -> None:
    positions = torch.tensor([[0, 5, 9], [2_000_000, 1, 70_000]], dtype=torch.int32)
    rows = [[sampler._cpu_row(seed, at, 300) for at in each] for each in positions.tolist()]
    found = sampler._noise(seed, positions, 300)
    assert torch.equal(found, torch.stack([torch.stack(row) for row in rows]))


# ------------------------------------------------------------------ the filters


@pytest.mark.parametrize("top_k", [0, 1, 5, 16, 99])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999, 1.0])
def test_filters_keep_what_transformers_keeps(top_k: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(top_k)
    logits = 3 * torch.randn(4, 50, VOCAB, generator=generator)
    sampling = Sampling(temperature=1.3, top_k=top_k, top_p=top_p)
    kept = scores(logits, torch.arange(50).expand(4, -1), sampling) > -torch.inf
    assert torch.equal(kept.flatten(0, 1), exact(logits.flatten(0, 1).float(), sampling) > 0)


def plainly(row: Sequence[float], sampling: Sampling) -> list[bool]:
    """Which tokens of a row of logits stay, by the definition, in Python's integers."""
    values = torch.tensor(row)
    rank = [(math.inf, 1) if math.isnan(value) else (value, 0) for value in row]  # NaN is above infinity
    order = sorted(range(len(row)), key=lambda token: rank[token], reverse=True)
    staying = set(order)
    if 0 < sampling.top_k < len(row):
        kth = rank[order[sampling.top_k - 1]]
        staying = {token for token in order if rank[token] >= kth or kth[1]}
    if sampling.top_p < 1:
        tops = values[order[0]] / sampling.temperature
        mass = {
            token: int(sampler._masses((values[token] / sampling.temperature)[None, None], tops[None, None]))
            for token in staying
        }
        wanted = max(1, math.ceil(sampling.top_p * float(sum(mass.values()))))
        before = 0
        for token in order:
            if token in staying:
                if before >= min(wanted, sum(mass.values())):
                    staying.remove(token)
                before += mass.get(token, 0)
    return [token in staying for token in range(len(row))]


NOTHING = -math.inf
ROWS: dict[str, list[float]] = {
    "one token": [3.0],
    "all equal": [1.5] * 9,
    "ties": [2.0, 1.0, 2.0, 0.0, 1.0, 2.0, -1.0, 1.0],
    "nothing": [NOTHING] * 5,
    "one left": [NOTHING, NOTHING, -2.0, NOTHING],
    "infinite": [1.0, math.inf, 2.0, math.inf, NOTHING],
    "not a number": [1.0, math.nan, math.inf, -math.nan, NOTHING, math.nan],
    "zeros": [-0.0, 0.0, -0.0, -3.0],
    "far apart": [0.0, -30.0, -27.0, -80.0],
    "too far apart": [3e38, -3e38, 3e38],
}
CUTS = [(0, 1e-12), (0, 0.3), (0, 0.5), (0, 1 - 2**-53), (1, 1.0), (2, 1.0), (3, 0.5), (4, 0.99), (50, 0.7), (50, 1.0)]


@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
def test_filters_keep_what_the_definition_keeps(top_k: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(top_k)
    random = [torch.randn(40, generator=generator).mul(scale).tolist() for scale in (0.01, 1, 5)]
    random += [torch.randn(40, generator=generator).mul(2).round().tolist()]
    for temperature in (0.6, 1.0):
        sampling = Sampling(temperature, top_k, top_p)
        for row in (*ROWS.values(), *random):
            found = sampler._outside(torch.tensor([row]), sampling)[0].logical_not().tolist()
            assert found == plainly(row, sampling), row


# ------------------------------------------------------------------ the draws


@pytest.mark.parametrize("draws", [4_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", SETTINGS, ids=name)
def test_draws_follow_the_filtered_softmax(sampling: Sampling, draws: int, record_testsuite_property: Record) -> None:
    logits = 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(draws)[None]
    drawn = scores(logits.expand(1, draws, -1), positions, sampling).argmax(-1)[0]
    probabilities = exact(logits, sampling)[0]
    p = chi_square(drawn.bincount(minlength=VOCAB).tolist(), probabilities.tolist())
    record_testsuite_property(f"draws at {name(sampling)}, p-value", p)
    assert p > LIMIT
    pairs = (drawn[:-1:2] * VOCAB + drawn[1::2]).bincount(minlength=VOCAB**2)
    assert chi_square(pairs.tolist(), torch.outer(probabilities, probabilities).flatten().tolist()) > LIMIT


@pytest.mark.parametrize("sampling", [SETTINGS[0], SETTINGS[-1]], ids=name)
def test_two_tokens_through_the_engine_follow_their_joint_distribution(
    sampling: Sampling, record_testsuite_property: Record
) -> None:
    """A tree with every token under its root emits two sampled tokens in one forward: the root's and its child's."""
    draws = 700
    model = tiny_llama(VOCAB, seed=3, num_hidden_layers=1)
    ids = prompt(5, VOCAB)
    tree = TokenTree([ids[-1], *range(VOCAB)], [-1, *[0] * VOCAB])
    with torch.inference_mode():
        first = model(torch.tensor([ids])).logits[:, -1]
        second = model(torch.tensor([[*ids, token] for token in range(VOCAB)])).logits[:, -1]
    expected = exact(first, sampling)[0][:, None] * exact(second, sampling)
    counts = np.zeros((VOCAB, VOCAB))
    with attached(model, capacity=8, max_rows=VOCAB + 1) as engine:
        for seed in range(draws):
            engine.sampling = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed)
            slot = engine.alloc()
            emitted = engine.prefill(slot, ids, tree).emitted
            engine.free(slot)
            counts[tuple(emitted)] += 1
    p_first = chi_square(counts.sum(1).tolist(), expected.sum(1).tolist())
    p_joint = chi_square(counts.flatten().tolist(), expected.flatten().tolist())
    record_testsuite_property(f"first of two tokens at {name(sampling)}, p-value", p_first)
    record_testsuite_property(f"two tokens at {name(sampling)}, p-value", p_joint)
    assert p_first > LIMIT
    assert p_joint > LIMIT


@pytest.mark.parametrize("before", [1, 6, 20])
def test_a_token_after_a_prompt_is_drawn_by_its_place_in_the_text(before: int) -> None:
    """However much of the text came with the prompt, and however much in steps of its own."""
    model, ids = models.supported("llama"), prompt(24, 97)
    with attached(model, capacity=40, max_rows=32, sampling=Sampling(1.5, seed=9)) as engine:
        slot = engine.alloc()
        expected = [engine.prefill(slot, ids).emitted[-1]]
        engine.rewind(slot, 0)
        engine.prefill(slot, ids[:before])
        chain = TokenTree.chain(ids[before:])
        forced = {slot: [*ids[before + 1 :], COMPUTED]}
        assert engine.step({slot: chain}, forced=forced)[slot].emitted[-1:] == expected


# ------------------------------------------------------------------ uniform numbers


def of(seed: int, stream: Stream = Stream.VERIFY, starts: Sequence[int] = range(600), count: int = 40) -> Tensor:
    return uniforms(seed, stream, starts, count)


def test_numbers_are_uniform_and_never_0_or_1() -> None:
    found = torch.cat([of(seed) for seed in (0, 7, 1 << 40, (1 << 63) - 1)]).flatten()
    assert scipy.stats.kstest(found[::2].numpy(), "uniform").pvalue > LIMIT
    assert 0 < found.min() < found.max() < 1
    assert found.max() * 3.0 < 3.0  # nor does a product with a sum reach the sum
    assert len(found.unique()) == len(found), "of more than 32 bits"


def test_numbers_of_other_seeds_streams_starts_and_places_are_uncorrelated() -> None:
    base = of(7)
    bound = 4.5 / math.sqrt(base.numel())
    others = {
        "seed": of(8),
        "upper half of the seed": of(7 + (1 << 32)),
        "stream": of(7, Stream.DRAFT),
        "start": of(7, starts=range(1, 601)),
        "far start": of(7, starts=range(1 << 20, (1 << 20) + 600)),
        "noise of the sampler": noise([7], range(600), 40)[0],
    }
    for name, other in others.items():
        assert abs(correlation(base, other)) < bound, name
        for shift in (1, 3):
            # What is the next block's must not be this one's further on.
            assert abs(correlation(base[:, shift:], other[:, :-shift])) < bound, name
            assert abs(correlation(base[shift:, :-shift], other[:-shift, shift:])) < bound, name


def test_numbers_are_the_same_alone_and_among_others() -> None:
    whole = of(3, starts=[5, 900, 5], count=9)
    assert torch.equal(whole[0], whole[2])
    assert torch.equal(of(3, starts=[900], count=4), whole[1:2, :4])
    assert torch.equal(uniforms(3, Stream.VERIFY, [900], 4, first=3), whole[1:2, 3:7])


def test_tokens_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 5.0, 3.0, 0.0])
    numbers = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:-1] + 5e-5
    found = drawn(weights.expand(10_000, 6), numbers)
    assert found.bincount(minlength=6).tolist() == [0, 2_000, 0, 5_000, 3_000, 0]
    assert drawn(weights, numbers[0]).item() == 1
    assert drawn(weights, numbers[-1]).item() == 4
    assert drawn(torch.zeros(6), numbers[0]).item() == 5  # of nothing some token


@pytest.mark.parametrize("sampling", SETTINGS, ids=name)
def test_the_softmax_of_what_filters_leave_is_what_is_drawn_from(sampling: Sampling) -> None:
    logits = 2 * torch.randn(1, 5, VOCAB, generator=torch.Generator().manual_seed(1))
    found = filtered(logits, sampling).softmax(-1)[0]
    torch.testing.assert_close(found.double(), exact(logits[0], sampling), atol=1e-6, rtol=1e-5)
