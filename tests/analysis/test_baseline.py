"""Is our AR a fair baseline: over each other engine's, the fastest first, and where our time goes."""

from __future__ import annotations

import pytest
from support.asserting import known
from support.engines import answer, engine_answers, engine_config, spec, summed

from specbench.analysis.baseline import over_engines
from specbench.report.tables.fair_baseline import fairness, ratio_of
from specbench.results.engine_facts import Engines
from specbench.results.summary_schema import Disturbed

NINE = [1] * 9


def test_the_fastest_of_them_comes_first_and_its_interval_is_turned_over_with_the_ratio() -> None:
    run = engine_config(spec("slow:ar"), spec("fast:ar"))
    found = summed(
        run,
        [
            *engine_answers("ar", NINE, 8.0),
            *engine_answers("slow:ar", NINE, 16.0),
            *engine_answers("fast:ar", NINE, 4.0),
        ],
    )
    fast, slow = over_engines(run, found)
    assert (fast.row.method, slow.row.method) == ("fast:ar", "slow:ar")
    assert fast.ratio == pytest.approx(0.5, rel=0.05)
    assert slow.ratio == pytest.approx(2.0, rel=0.05)
    for each in (fast, slow):
        low, high = known(known(each.row.speedup).interval)
        assert (each.low, each.high) == (1 / high, 1 / low)
        assert known(each.low) < each.ratio < known(each.high)
        assert each.ttft_ratio == 1.0
    assert (fast.fair, slow.fair) == (False, True)
    text = fairness(found, [fast, slow])
    assert text.startswith(f"ar is slower than fast:ar, {ratio_of(fast)}: a step of ar takes")


@pytest.mark.parametrize(("theirs", "fair"), [(7.5, False), (7.7, True), (9.0, True)])
def test_within_five_in_a_hundred_it_is_fair(theirs: float, fair: bool) -> None:
    run = engine_config(spec("e:ar"), prompts=1)
    found = summed(run, [answer("ar", 0, NINE, 8.0), answer("e:ar", 0, NINE, theirs)])
    (over,) = over_engines(run, found)
    assert over.ratio == pytest.approx(theirs / 8.0)
    assert over.fair is fair
    assert (over.low, over.high) == (None, None), "one prompt has no interval"
    assert ratio_of(over).endswith("(too few)")
    assert fairness(found, [over]).startswith("Within 5%" if fair else "ar is slower than e:ar")


def test_what_failed_or_has_another_precision_or_speculates_is_no_baseline() -> None:
    rows = [spec("e:ar", dtype="bfloat16"), spec("f:ar"), spec("g:ngram"), spec("h:ar", dtype="float32")]
    run = engine_config(*rows, ours=("ar", "pld"))
    records = [one for label in ("ar", "pld", *(row.label for row in rows)) for one in engine_answers(label, NINE, 8.0)]
    found = summed(run, records, engines=Engines(failed={"f:ar": "it died"}))
    assert [each.row.method for each in over_engines(run, found)] == ["h:ar"]


def test_of_a_disturbed_run_nothing_is_claimed() -> None:
    run = engine_config(spec("e:ar"))
    found = summed(run, [*engine_answers("ar", NINE, 4.0), *engine_answers("e:ar", NINE, 8.0)])
    against = over_engines(run, found)
    assert fairness(found, against).startswith("Within 5%")
    unsure = found.model_copy(update={"disturbed": Disturbed(reasons=["others ran"])})
    assert unsure.unsure
    assert fairness(unsure, against).startswith("Unsure")
