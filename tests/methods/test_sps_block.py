"""Speculative decoding with block verification: AR's distribution, the right caches, and AR's text where greedy."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import scipy
import torch
from support import decoders as decoders_of_tests
from support import models
from support.distributions import drawn_from, written

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.cli.app import main
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import Proposal, TokenTree
from specbench.engine import graphs, tuner
from specbench.engine.block_verification import DrawnDrafts, verify
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling, Stream, drawn, uniforms
from specbench.evals.data import DATA_DIR
from specbench.planning.methods import plan_methods
from specbench.results.request_schema import RequestRecord
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

VOCAB, SLOTS, CAPACITY = 97, 3, 70
WARM, HOT, CUT = Sampling(0.7, seed=1), Sampling(1.0, seed=2), Sampling(1.0, top_k=30, top_p=0.9, seed=3)
SAMPLINGS = pytest.mark.parametrize("sampling", [WARM, HOT, CUT], ids=["T=0.7", "T=1", "T=1 filtered"])
NOISE = 0.1  # of the draft model's weights: it is right often, and not always
NONE: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with models.attached(models.tiny_llama(VOCAB).double(), slots=SLOTS, capacity=CAPACITY, max_rows=16) as made:
        yield made


def made(
    engine: Engine, k: int, verify: str = "block", engine_of: Callable[[Any, int], Engine] | None = None
) -> Method:
    """The method on a target, with a near copy of it, in an engine that ``engine_of`` makes."""
    (_, method) = plan_methods(["sps"], ["sps.draft=config:tiny", f"sps.k={k}", f"sps.verify={verify}"])
    target = decoders_of_tests.target(
        engine, lambda name: decoders_of_tests.loaded(decoders_of_tests.copied(engine, NOISE), name)
    )
    return method.ready(replace(target, engine=engine_of or target.engine))


def request(number: int, length: int, budget: int, stops: frozenset[int] = NONE) -> Request:
    ids = models.prompt(length, VOCAB, seed=number)
    return Request(f"{number} {budget} {len(stops)}", 0, ids, StopRule(stops, (), budget, str))


def context(number: int = 0) -> Context:
    return Context(VOCAB, 0, random.Random(number))


def decode(
    engine: Engine, method: Method, requests: Sequence[Request], sampling: Sampling, concurrency: int = 1
) -> list[RequestRecord]:
    engine.sampling = sampling
    return decoders_of_tests.served(engine, method, requests, together=concurrency)


# ------------------------------------------------------------------ the distribution


def places(engine: Engine, method: Method, sampling: Sampling, tokens: int) -> tuple[list[float], float]:
    """Where each token of some answers lies in its own distribution, and how many tokens a step brought."""
    prompts, texts, per_step = written(engine, method, sampling, tokens, VOCAB)
    found, rng = [], random.Random(sampling.seed)
    for text, ids in zip(texts, prompts, strict=True):
        p, q = drawn_from(engine, text, sampling), drawn_from(method.shared.engine, text, sampling)
        # What a last step brought beyond would be in only if the step brought much: no sample of the distribution.
        for at in range(len(ids) + 1, len(ids) + 1 + tokens):
            mine, token = p[at - 1], text[at]
            assert mine[token] > 0, "a token that the filters leave out"
            likelier = mine / (q[at - 1] + 1e-9)
            found.append(float(mine[likelier < likelier[token]].sum() + rng.random() * mine[token]))
    return found, per_step


@pytest.fixture(scope="module")
def wide() -> Iterator[Engine]:
    model = models.tiny_llama(VOCAB, max_position_embeddings=512).double()
    with models.attached(model, slots=12, capacity=240, max_rows=16) as made:
        yield made


def uniformity(engine: Engine, method: Method, sampling: Sampling, seeds: int) -> tuple[float, float]:
    """p-value, and tokens of a step."""
    found, per_step = [], []
    for seed in range(seeds):
        some, brought = places(engine, method, replace(sampling, seed=100 + seed), 12)
        found += some
        per_step.append(brought)
    return float(scipy.stats.kstest(found, "uniform").pvalue), sum(per_step) / seeds


@pytest.mark.parametrize("seeds", [3, pytest.param(30, marks=pytest.mark.slow)])
@SAMPLINGS
def test_tokens_are_drawn_from_the_targets_distributions(
    wide: Engine, sampling: Sampling, seeds: int, record_testsuite_property: Any
) -> None:
    found, per_step = uniformity(wide, made(wide, 3), sampling, seeds)
    record_testsuite_property(f"block verification, {sampling}, {seeds} seeds, p-value", found)
    assert found > 0.01
    assert 1.5 < per_step < 3.9, "drafts are accepted, and not all of them"


def test_a_proposal_that_is_not_what_was_drawn_from_is_noticed(wide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DrawnDrafts.proposal

    def flatter(self: DrawnDrafts, slot: int) -> Proposal:
        q = real(self, slot).probabilities.sqrt()
        return Proposal(q / q.sum(-1, keepdim=True))

    monkeypatch.setattr(DrawnDrafts, "proposal", flatter)
    assert uniformity(wide, made(wide, 3), HOT, 3)[0] < 1e-4


def test_more_is_accepted_than_by_the_targets_noise(engine: Engine) -> None:
    asked = [request(number, 3 + number, 40) for number in range(6)]
    forwards = {
        verify: sum(record.target_forwards for record in decode(engine, made(engine, 4, verify), asked, HOT, SLOTS))
        for verify in ("block", "noise")
    }
    assert forwards["block"] < 0.9 * forwards["noise"], forwards


# ------------------------------------------------------------------ caches and what is handed on


@SAMPLINGS
def test_what_is_handed_on_is_what_the_draft_model_says_and_both_caches_follow_the_text(
    engine: Engine, sampling: Sampling
) -> None:
    method = made(engine, 3)
    drafter: Engine = method.shared.engine
    engine.sampling = sampling
    ids = models.prompt(8, VOCAB, seed=3)
    decoder, slot = method.new(context()), engine.alloc()
    decoder.begin(ids)
    result = engine.prefill(slot, ids, taps=(0,))
    text, kept, hidden = [*ids], set(), [result.hidden]
    for _ in range(12):
        decoder.observe(result)
        text += result.emitted
        tree = decoder.draft()
        proposal = tree.proposal
        assert proposal is not None
        assert tree.tokens[0] == text[-1]
        its = drawn_from(drafter, [*text, *tree.tokens[1:]], sampling)[len(text) - 1 : -1]
        torch.testing.assert_close(proposal.probabilities.double(), its, atol=1e-5, rtol=1e-4)
        # Numbers go by the seed and the root's position, and by nothing else.
        root = len(text) - 1
        numbers = uniforms(sampling.seed, Stream.DRAFT, [root], 3)[0]
        assert drawn(proposal.probabilities, numbers).tolist() == list(tree.tokens[1:])
        p = drawn_from(engine, [*text, *tree.tokens[1:]], sampling)[root:].float()
        verdict = verify({slot: tree}, {slot: p}, {slot: root}, sampling.seed)[slot]
        result = engine.step({slot: tree}, taps=(0,), top_k=2)[slot]
        assert result.emitted == [*tree.tokens[1 : len(result.path)], result.emitted[-1]]
        assert result.emitted == [result.next_tokens[row] for row in result.path]
        assert result.path == list(range(1 + verdict.accepted))
        assert result.emitted[-1] == verdict.token
        assert result.top is not None
        assert len(result.top[0]) == len(result.next_tokens) == len(tree)
        assert engine.length(slot) == len(text) - 1 + len(result.path)
        hidden.append(result.hidden)
        kept.add(len(result.path))
    text += result.emitted
    assert {1, 4} <= kept  # otherwise the test saw one kind of step only
    assert kept & {2, 3}
    with engine.detached():
        (whole, *_) = models.layer_outputs(engine.model, torch.tensor([text[:-1]]))
    torch.testing.assert_close(torch.cat([some for some in hidden if some is not None]), whole[0])
    # A greedy step says what a prefill of the whole text says.
    engine.sampling = Sampling()
    stepped = engine.step({slot: TokenTree.chain([text[-1]])}, top_k=5)[slot]
    other = engine.alloc()
    fresh = engine.prefill(other, text, top_k=5)
    assert stepped.next_tokens == fresh.next_tokens
    assert stepped.top is not None
    assert fresh.top is not None
    torch.testing.assert_close(stepped.top, fresh.top)
    decoder.end()
    engine.free(slot)
    engine.free(other)


def test_slots_without_a_proposal_keep_the_noise_and_forced_ones_follow(engine: Engine) -> None:
    method = made(engine, 3)
    engine.sampling = HOT
    expected = models.autoregressive(engine, models.prompt(6, VOCAB), 9)
    slots, decoders, roots = [engine.alloc() for _ in range(3)], [method.new(context()) for _ in range(3)], {}
    for slot, decoder in zip(slots, decoders, strict=True):
        ids = models.prompt(6, VOCAB)
        decoder.begin(ids)
        result = engine.prefill(slot, ids)
        decoder.observe(result)
        roots[slot] = result.emitted[-1]
    trees = {slot: decoder.draft() for slot, decoder in zip(slots, decoders, strict=True)}
    assert trees[0].proposal is not None
    assert trees[0] == trees[2], "the same text in another slot: what decides is no slot's"
    alone = engine.step({0: trees[0]})[0]
    engine.rewind(0, 6)
    reported = {2: [*trees[2].tokens[1:], 11]}
    plain = TokenTree.chain([roots[1], expected[1], expected[2], (expected[3] + 1) % VOCAB])
    results = engine.step({**trees, 1: plain}, forced=reported)
    assert results[0].emitted == alone.emitted
    assert results[1].emitted == expected[1:4]
    assert results[2].emitted == reported[2]
    for slot, decoder in zip(slots, decoders, strict=True):
        decoder.end()
        engine.free(slot)


def test_a_prefill_goes_by_the_noise(engine: Engine) -> None:
    engine.sampling = HOT
    ids = models.prompt(5, VOCAB)
    expected = models.autoregressive(engine, ids, 2)
    sure = torch.zeros(1, VOCAB)
    sure[0, 7] = 1e-6  # as good as never drawn, so that a block would be accepted
    slot = engine.alloc()
    result = engine.prefill(slot, ids, TokenTree.chain([ids[-1], 7], proposal=Proposal(sure)))
    engine.free(slot)
    assert result.emitted == expected[: len(result.emitted)]
    assert expected[0] != 7


def test_probabilities_are_those_of_each_row(engine: Engine) -> None:
    ids = models.prompt(7, VOCAB, seed=5)
    slot, tree = engine.alloc(), TokenTree([4, 8, 9, 2], [-1, 0, 0, 1])
    engine.sampling = CUT
    engine.prefill(slot, ids)
    found = engine.step({slot: tree}, probabilities=True)[slot].probabilities
    engine.rewind(slot, 7)
    assert engine.step({slot: tree})[slot].probabilities is None
    for row, path in enumerate(([4], [4, 8], [4, 9], [4, 8, 2])):
        assert found is not None
        expected = drawn_from(engine, [*ids, *path], CUT)[-1]
        torch.testing.assert_close(found[row].double(), expected, atol=1e-6, rtol=1e-4)
    engine.rewind(slot, 7)
    engine.sampling = Sampling()  # greedy: those of temperature 1
    found = engine.step({slot: tree}, probabilities=True)[slot].probabilities
    assert found is not None
    torch.testing.assert_close(
        found[0].double(), drawn_from(engine, [*ids, 4], Sampling(1.0))[-1], atol=1e-6, rtol=1e-4
    )
    engine.free(slot)


# ------------------------------------------------------------------ company, ends and graphs


def reported(record: RequestRecord) -> tuple[Any, ...]:
    """What a record says of tokens and drafts, without the times."""
    return record.output_ids, record.accepted_lengths, record.draft_forwards


@SAMPLINGS
def test_company_stops_and_budgets_change_no_text(engine: Engine, sampling: Sampling) -> None:
    method = made(engine, 3)
    (whole,) = decode(engine, method, [request(1, 6, 30)], sampling)
    assert decode(engine, method, [request(1, 6, 30)], sampling)[0].output_ids == whole.output_ids, "it repeats"
    stop = next(token for token in whole.output_ids[5:] if token not in whole.output_ids[:5])
    ends = whole.output_ids.index(stop)
    asked = [
        request(1, 6, 30, frozenset([stop])), request(2, 30, 25), request(3, 1, 1), request(1, 6, 7), request(4, 12, 9),
        request(5, 3, 2), request(1, 6, 30, frozenset(range(VOCAB))),
    ]  # fmt: skip
    alone, together = (decode(engine, method, asked, sampling, concurrency) for concurrency in (1, SLOTS))
    assert list(map(reported, alone)) == list(map(reported, together))
    assert alone[0].output_ids == whole.output_ids[: ends + 1]
    assert alone[0].finish_reason == "stop"
    assert alone[3].output_ids == whole.output_ids[:7]
    assert [record.output_tokens for record in alone[1:]] == [25, 1, 7, 9, 2, 1]
    for shared in (engine, method.shared.engine):
        assert all(length is None for length in shared._slots.lengths)


def test_greedy_it_is_ar_token_for_token(engine: Engine) -> None:
    method, asked = made(engine, 4), [request(number, 4 + 5 * number, 20) for number in range(5)]
    for record, one in zip(decode(engine, method, asked, Sampling(), SLOTS), asked, strict=True):
        engine.sampling = Sampling()
        assert record.output_ids == models.autoregressive(engine, list(one.ids), 20)


def test_a_greedy_step_takes_no_notice_of_a_proposal(engine: Engine) -> None:
    engine.sampling = Sampling()
    ids = models.prompt(5, VOCAB)
    first, second, third = models.autoregressive(engine, ids, 3)
    never = torch.full((1, VOCAB), 1 / VOCAB)
    slot = engine.alloc()
    engine.prefill(slot, ids)
    result = engine.step({slot: TokenTree.chain([first, second], proposal=Proposal(never))})[slot]
    engine.free(slot)
    assert result.emitted == [second, third]


def test_up_to_the_last_cell_of_the_cache() -> None:
    for k in (1, 4, 8):
        with models.attached(models.tiny_llama(VOCAB), capacity=20, max_rows=9) as small:
            method = made(small, k)
            for length in (1, 12, 19, 20):
                (record,) = decode(small, method, [request(0, length, 21 - length)], HOT)
                assert record.output_tokens == 21 - length
                assert record.draft_forwards <= k * record.target_forwards


@pytest.mark.parametrize("sampling", [HOT, pytest.param(CUT, marks=pytest.mark.slow)], ids=["T=1", "T=1 filtered"])
def test_in_graphs_the_same_is_drafted_and_accepted_and_nothing_is_captured_late(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    monkeypatch.setattr(tuner, "_REPLAYS", 1)  # how fast a recording replays is no matter here
    options: dict[str, Any] = {"slots": 2, "capacity": 40, "sampling": sampling}

    def engine_of(model: Any, rows: int) -> Engine:
        return Engine(model, **options, max_rows=rows, graphs=True)

    asked = [request(number, 5 + 3 * number, 10) for number in range(3)]
    expected = decode(engine, made(engine, 2), asked, sampling, 2)
    engine.detach()
    try:
        with models.attached(engine.model, **options, max_rows=3, graphs=True) as captured:
            captured.prepare(3, probabilities=True, context=20)
            method = made(captured, 2, engine_of=engine_of)
            found = decode(captured, method, asked, sampling, 2)
            assert list(map(reported, found)) == list(map(reported, expected))
            reports = [captured.report(), method.shared.engine.report()]
            assert [report["late_captures"] for report in reports] == [0, 0]
            assert all(step["probabilities"] for step in reports[0]["steps"])
            # Simulated acceptance does the work of the real one, in the same graphs.
            captured.prepare(3, probabilities=True, forced=True, context=20)
            slot, tree = captured.alloc(), TokenTree.chain([3, 4], proposal=Proposal(torch.full((1, VOCAB), 1 / VOCAB)))
            captured.prefill(slot, [1, 2])
            assert captured.step({slot: tree}, forced={slot: [4, 9]})[slot].emitted == [4, 9]
            assert captured.report()["late_captures"] == 0
    finally:
        engine.attach()


# ------------------------------------------------------------------ what the user sees


CHECK = (
    "check-lossless", "--model", "config:tiny", "--method", "sps", "--set", "sps.draft=config:tiny",
    "--set", "sps.verify=block", "--limit", 1, "--max-new-tokens", 4,
)  # fmt: skip


def call(*argv: object) -> str:
    """Data and notes of a command line that goes well."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        assert main([str(arg) for arg in argv]) == 0, err.getvalue()
    return out.getvalue()


@pytest.fixture
def _humaneval_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """HumanEval+'s data take a second to read."""
    monkeypatch.delenv(DATA_DIR, raising=False)


@pytest.mark.usefixtures("_humaneval_of_its_package")
def test_check_lossless_compares_texts_where_it_is_greedy_and_distributions_elsewhere() -> None:
    found = json.loads(call(*CHECK, "--temperatures", "0,0.02", "--seeds", "0:11", "--json"))
    assert [(row["method"], row["temperature"], row["verdict"]) for row in found["rows"]] == [("sps", 0, "exact")]
    (tested,) = found["distributions"]
    assert (tested["method"], tested["against"], tested["temperature"]) == ("sps", "ar", 0.02)
    assert (tested["verdict"], tested["answers"]) == ("no difference shown", 24)
    assert tested["p_value"] > 0.01
