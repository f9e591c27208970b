"""How much AR's step varied: planted steps, and those of a run that is known to be quiet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from support.asserting import known
from support.runs import PIECES, record

from specbench.analysis.noise import LEAST_REQUESTS, MOST_STEP_DRIFT, MOST_STEP_SPREAD, StepSpread, step_spread
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord


def series(
    steps: Sequence[float], *, contexts: Sequence[int] | None = None, noise: float = 0.02, forwards: int = 50
) -> list[RequestRecord]:
    """AR's requests with these seconds a step, each with a little noise, in stretches one after the other."""
    generator = random.Random(len(steps))
    found = []
    for at, step in enumerate(steps):
        spent = step * forwards * generator.lognormvariate(0, noise)
        one = record("ar", f"p/{at}", tokens=forwards + 1, forwards=forwards, decode_s=spent, segment=at)
        found.append(one.model_copy(update={"prompt_tokens": contexts[at] if contexts else 100}))
    generator.shuffle(found)  # they may come in any order
    return found


def of(*steps: float, **more: object) -> StepSpread:
    found = step_spread(series(steps, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


def marked(found: StepSpread) -> bool:
    return found.spread > MOST_STEP_SPREAD or found.drift > MOST_STEP_DRIFT


def slower(count: int, first: int, last: int, factor: float) -> list[float]:
    return [0.02 * (factor if first <= at < last else 1.0) for at in range(count)]


@pytest.mark.parametrize("count", [LEAST_REQUESTS, 12, 30, 164])
def test_a_constant_step_is_quiet(count: int) -> None:
    found = of(*[0.02] * count)
    assert not marked(found)
    assert found.spread < 0.05
    assert found.drift < 0.06
    assert found.requests == count
    exact = of(*[0.02] * count, noise=0.0)
    assert (exact.spread, exact.drift) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("first", [0, 5, 10, 20])
@pytest.mark.parametrize("count", [12, 30, 90])
def test_a_third_of_the_run_that_is_slower_is_marked_wherever_it_lies(first: int, count: int) -> None:
    start = first * count // 30
    found = of(*slower(count, start, start + count // 3, 1.35))
    assert marked(found)
    assert found.drift == pytest.approx(0.35, abs=0.05)
    # A tenth slower hits all methods alike, for they take turns.
    assert not marked(of(*slower(count, start, start + count // 3, 1.1)))


def test_single_pauses_are_not_a_disturbed_run() -> None:
    steps = [0.02] * 30
    for at in (3, 4, 11, 20, 29):
        steps[at] = 0.5
    found = of(*steps)
    assert not marked(found)
    assert found.spread < 0.05


def test_one_pause_in_the_shortest_run_does_not_mark_it() -> None:
    for at in range(LEAST_REQUESTS):
        steps = [0.02] * LEAST_REQUESTS
        steps[at] = 0.2
        assert not marked(of(*steps)), at


@pytest.mark.parametrize(("end", "is_marked"), [(1.1, False), (1.2, False), (1.6, True), (3.0, True)])
def test_a_slow_drift_is_marked_when_it_has_come_far(end: float, is_marked: bool) -> None:
    for ways in (1, -1):
        steps = [0.02 * (1 + (end - 1) * at / 59) for at in range(60)][::ways]
        assert marked(of(*steps)) is is_marked


def test_jumping_between_two_speeds_is_marked_by_its_spread_alone() -> None:
    found = of(*[0.02, 0.03] * 30)
    assert found.spread > MOST_STEP_SPREAD
    assert found.drift < 0.1


def growing(contexts: Sequence[int]) -> list[float]:
    """A step of 20 ms without context, and twice that after 4,000 tokens."""
    return [0.02 * (1 + context / 4000) for context in contexts]


@pytest.mark.parametrize(
    "order",
    [
        lambda contexts: contexts,
        lambda contexts: contexts[::-1],
        lambda contexts: random.Random(3).sample(contexts, len(contexts)),
    ],
    ids=["growing", "falling", "mixed"],
)
def test_a_step_that_grows_with_its_context_is_honest(order: Callable[[list[int]], list[int]]) -> None:
    contexts = order([40 + 100 * at for at in range(40)])
    found = of(*growing(contexts), contexts=contexts)
    assert not marked(found)
    assert found.spread < 0.06
    assert found.drift < 0.06
    hit = [step * (1.4 if 10 <= at < 24 else 1.0) for at, step in enumerate(growing(contexts))]
    assert marked(of(*hit, contexts=contexts))


def test_a_step_that_falls_with_its_context_is_the_machines_doing() -> None:
    contexts = [100 + at for at in range(30)]
    found = of(*[0.03 - 0.0005 * at for at in range(30)], contexts=contexts)
    assert found.drift > 0.5


@pytest.mark.parametrize(
    "records",
    [
        [],
        series([0.02] * (LEAST_REQUESTS - 1), forwards=500),
        series([0.02] * 30, forwards=5),  # three seconds of AR
        [one.model_copy(update={"target_forwards": 0}) for one in series([0.02] * 30)],
    ],
    ids=["none", "few", "short", "without forwards"],
)
def test_of_too_little_nothing_is_said(records: list[RequestRecord]) -> None:
    assert step_spread(records) is None


def test_passes_of_a_sweep_are_other_days() -> None:
    days = [
        one.model_copy(update={"repeat": at // 20, "segment": at})
        for at, one in enumerate(sorted(series(slower(60, 20, 40, 2.0)), key=lambda one: one.segment))
    ]
    assert known(step_spread(days)).drift > 0.9
    assert not marked(known(step_spread(days, passes=True)))
    one_day = [one.model_copy(update={"repeat": 0}) for one in days]
    assert known(step_spread(one_day, passes=True)).drift > 0.9


def in_slots(concurrency: int, waves: int, factor: Callable[[int], float] = lambda wave: 1.0) -> list[RequestRecord]:
    """Waves of requests that begin together; those of the last one end one after the other, in emptying slots."""
    found = []
    for wave in range(waves):
        step = 0.02 * factor(wave)
        for slot in range(concurrency):
            last = wave == waves - 1
            share = step * 50 / (concurrency - slot if last else concurrency)
            one = record("ar", f"p/{wave}/{slot}", tokens=51, forwards=50, decode_s=step * 50, decode_share_s=share)
            found.append(one.model_copy(update={"start_s": 2.0 * wave, "latency_s": 1.5}))
    return found


def test_with_slots_to_fill_a_share_of_full_slots_counts() -> None:
    quiet = step_spread(in_slots(4, 6), 4)
    assert quiet is not None
    assert quiet.requests == 20, "the last wave was in emptying slots"
    assert (quiet.spread, quiet.drift) == pytest.approx((0.0, 0.0), abs=1e-12)
    hit = step_spread(in_slots(4, 10, lambda wave: 1.4 if wave < 3 else 1.0), 4)
    assert hit is not None
    assert hit.drift == pytest.approx(0.4)
    assert step_spread(in_slots(32, 1), 32) is None


def test_a_real_quiet_run_is_not_marked() -> None:
    folder = RunFolder.load(PIECES["noise"])
    found = step_spread([one.untraced() for one in folder.records() if one.method == "ar"])
    assert not marked(known(found))
