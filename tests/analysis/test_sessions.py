"""Throughput over sessions: windows, peak and average worked out by hand."""

from __future__ import annotations

import pytest
from support import runs
from support.runs import CHAINED, turn

from specbench.analysis.context.sessions import WINDOW, session_figures, window_seconds
from specbench.analysis.summary import RunContents, summarise


def test_windows_go_on_over_the_turns_and_share_out_what_lies_across() -> None:
    first = turn("pld", "p", 1, [1.0] * 10, 5)  # 50 tokens
    second = turn("pld", "p", 2, [2.0] * 10, 7)  # 70 tokens: 14 fill the first window, 50 are of the second
    found = list(window_seconds([first, second], False))
    assert WINDOW == 64
    assert found == [pytest.approx(10 + 2.0 * 14 / 7)]
    third = turn("pld", "p", 3, [3.0], 8)  # 56 and 8 are the second window
    assert list(window_seconds([first, second, third], False)) == pytest.approx([14.0, 16.0 + 3.0])


def test_a_forward_that_kept_nothing_takes_its_time() -> None:
    made = turn("pld", "p", 1, [1.0, 5.0, 1.0], 32, accepted_lengths=[32, 0, 32])
    assert list(window_seconds([made], False)) == [pytest.approx(7.0)]


def test_average_and_peak_and_turns() -> None:
    ar, pld = {}, {}
    for at in range(6):
        slow = [1.0 + at / 8] * 64
        ar.update({(f"p{at}", 0, n): turn("ar", f"p{at}", n, slow, 1) for n in (1, 2)})
        pld[f"p{at}", 0, 1] = turn("pld", f"p{at}", 1, [2.0 + at / 4] * 32, 2)  # as fast as AR
        pld[f"p{at}", 0, 2] = turn("pld", f"p{at}", 2, [1.0 + at / 8] * 32, 2)  # twice as fast
    config = runs.run_config(["pld"], 6, task=CHAINED.model_copy(update={"prompts": 6, "requests": 12}))
    found = session_figures(config, ar, pld)
    assert found is not None
    seconds = [(2.0 + at / 4) * 32 + (1.0 + at / 8) * 32 for at in range(6)]
    assert found.average_tok_s == pytest.approx(6 * 2 * 65 / (sum(seconds) + 6 * 2 * 0.5))
    peaks = sorted(64 / ((1.0 + at / 8) * 32) for at in range(6))
    assert found.peak_tok_s == pytest.approx((peaks[2] + peaks[3]) / 2)
    assert (found.sessions, found.problems) == (6, 2)
    assert [at.prompt_tokens for at in found.turns] == [100, 200]
    assert [at.speedup and round(at.speedup.value, 6) for at in found.turns] == [1.0, 2.0]
    assert [at.speedup and at.speedup.verdict for at in found.turns] == ["no difference shown", "faster"]
    pooled = [
        6 * 64 / sum((2.0 + at / 4) * 32 for at in range(6)),
        6 * 64 / sum((1.0 + at / 8) * 32 for at in range(6)),
    ]
    assert found.windows_tok_s == pytest.approx(pooled)


def test_a_session_that_broke_off_is_left_out_and_without_chains_there_is_none() -> None:
    whole = {("p", 0, n): turn("ar", "p", n, [1.0] * 64, 1) for n in (1, 2)}
    torn = {("q", 0, 1): turn("ar", "q", 1, [9.0] * 64, 1)}
    config = runs.run_config([], 3, task=CHAINED)
    found = session_figures(config, whole, {**whole, **torn})
    assert found is not None
    assert found.sessions == 1
    assert [at.decode_tok_s for at in found.turns] == [1.0, 1.0], "its first turn is of no session that is counted"
    assert session_figures(runs.run_config([], 3), whole, whole) is None
    assert session_figures(config, {}, torn) is None


def test_it_is_in_the_summary_and_comes_back_from_it() -> None:
    records = [turn(m, f"p{at}", n, [1.0] * 64, 1) for m in ("ar", "pld") for at in range(3) for n in (1, 2)]
    made = summarise(RunContents(runs.run_config(["pld"], 3, task=CHAINED), records))
    again = type(made).model_validate(made.written())
    assert [row.session and row.session.sessions for row in again.rows] == [3, 3]
