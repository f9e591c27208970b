"""The sentences below the headline table: what was told, what would have been, and how noisy the run was."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import runs
from support.asserting import known
from support.wording import wording

from specbench.report.terminal.notes import notes
from specbench.report.terminal.run import finding, headline
from specbench.results.read import ReadRun, read_run
from specbench.results.summary_schema import RunSummary


@pytest.fixture
def read(tmp_path: Path) -> ReadRun:
    """Twelve real prompts, AR and one method, lossless as far as it was checked."""
    made = read_run(runs.derived(tmp_path / "run"))
    exact = {"verdict": "exact", "exact": 12, "numeric_tie": 0, "lossy": 0}
    return replace(made, summary=saying(made, lossless=exact, text=None))


def saying(read: ReadRun, **row: Any) -> RunSummary:
    """The summary where the method's row says so."""
    content = read.summary.model_dump()
    content["rows"][1].update(row)
    return RunSummary.model_validate(content)


def told(read: ReadRun, **row: Any) -> list[str]:
    """The sentences where the method's row says so."""
    return notes(read.run, saying(read, **row))


def ratio(value: float, low: float | None, high: float | None, said: str, **more: Any) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "verdict": said, **more}


def test_a_speedup_is_taken_apart_and_spread_over_prompts(read: ReadRun) -> None:
    speedup = known(read.summary.rows[1].speedup)
    each = known(speedup.per_prompt)
    (said,) = [line for line in told(read) if line.startswith("jetspec: ")][-1:]
    assert said.startswith(f"jetspec: {speedup.verdict}; {speedup.value:.2f} = ")
    assert all(part in said for part in (f"{each.median:.2f}", f"{each.geometric_mean:.2f}"))


@pytest.mark.parametrize(
    ("speedup", "end"),
    [
        (ratio(1.5, 1.2, 1.8, "faster", detectable=0.12, to_tell={"difference": 0.5, "prompts": 8}), "ratio."),
        (
            ratio(1.0, 0.9, 1.1, "no difference shown", detectable=0.124, to_tell={"difference": 0.03, "prompts": 171}),
            "ratio. These prompts tell differences of 12% or more; about 180 would tell 3%.",  # of an older summary
        ),
        (
            ratio(
                1.0, 0.99, 1.01, "no difference shown", detectable=0.0149, to_tell={"difference": 0.004, "prompts": 7}
            ),
            "ratio. These prompts tell differences of 1.5% or more; about 7 would tell the difference seen.",
        ),
        (
            ratio(1.2, 1.1, 1.3, "no difference shown", among={"rows": 9, "low": 0.9, "high": 1.6}),
            "ratio. By itself its interval leaves out 1, and among 9 rows that is no evidence.",
        ),
        (ratio(1.0, None, None, "too few prompts", detectable=None, to_tell=None), "An interval takes 6 prompts."),
        (ratio(1.0, None, None, "too few prompts", blocks=3), "ratio."),  # the table says it once of all rows
        (ratio(1.0, 0.9, 1.1, "no difference shown"), "ratio."),  # of an older summary
    ],
)
def test_where_nothing_is_shown_it_says_what_would_have_been(read: ReadRun, speedup: Any, end: str) -> None:
    (said,) = [line for line in told(read, speedup=speedup) if line.startswith("jetspec: ") and " TPF " in line]
    assert said.endswith(end)


AGAIN = "jetspec is ar once more"


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (ratio(1.0, 0.99, 1.01, "no difference shown"), ": 1.00 [0.99, 1.01], no difference, as it has to be."),
        (
            ratio(0.95, 0.93, 0.97, "slower"),
            " and yet 0.95 [0.93, 0.97]: something disturbed this run; trust no difference below 7%.",
        ),
        (ratio(1.0, None, None, "too few prompts"), "; too few prompts to say how noisy this run is."),
    ],
)
def test_a_row_that_runs_again_says_how_noisy_the_run_is(read: ReadRun, again: Any, said: str) -> None:
    lines = told(read, again={"of": "ar", "speedup": again})
    assert f"{AGAIN}{said}" in lines
    assert not any(" TPF × " in line for line in lines)


def test_right_answers_are_compared_where_answers_differ(read: ReadRun) -> None:
    difference = {
        "value": -0.0833, "low": -0.31, "high": 0.12, "verdict": "no difference shown",
        "gained": 1, "lost": 2, "p_value": 1.0,
    }  # fmt: skip
    said = (
        "jetspec: no difference shown: -8.3 points [-31.0, +12.0] of right answers; 1 prompts gained, 2 lost, "
        "McNemar p = 1."
    )
    assert said not in told(read, accuracy_difference=difference)
    lossy = {"verdict": "lossy", "exact": 9, "numeric_tie": 1, "lossy": 2}
    assert said in told(read, accuracy_difference=difference, lossless=lossy)


def rated(exact: int, tie: int, lossy: int) -> dict[str, Any]:
    counts = {"exact": exact, "numeric-tie": tie, "lossy": lossy}
    rates = {grade: {"count": count, "of": 12, "low": 0.25, "high": 0.75} for grade, count in counts.items()}
    said = "lossy" if lossy else "numeric-tie" if tie else "exact"
    return {"verdict": said, "exact": exact, "numeric_tie": tie, "lossy": lossy, "rates": rates}


def test_exactness_is_said_of_so_many_prompts_and_no_more(read: ReadRun) -> None:
    assert wording("\n".join(told(read, lossless=rated(12, 0, 0))))
    assert not any(line.startswith("Exact on all") for line in told(read, lossless=rated(11, 1, 0)))


@pytest.mark.parametrize("columns", [80, 140])
def test_rates_are_a_table_where_answers_part(read: ReadRun, columns: int) -> None:
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(headline(read.run, saying(read, lossless=rated(9, 1, 2))))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= columns
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["method", "prompts"])
    assert lines[at + 2].split("  ")[0] == "jetspec"
    assert "9 · 75% [25, 75]" in lines[at + 2]
    assert "1 · 8% [25, 75]" in lines[at + 2]


FOUND = [
    (ratio(1.5, 1.2, 1.8, "faster"), "exact", "faster than ar: jetspec 1.50 [1.20, 1.80]; all texts are ar's."),
    (
        ratio(0.5, 0.4, 0.6, "slower"),
        "numeric-tie",
        "slower than ar: jetspec 0.50 [0.40, 0.60]; not every text of jetspec is ar's.",
    ),
    (ratio(1.0, 0.9, 1.1, "no difference shown"), None, "no difference shown: jetspec 1.00 [0.90, 1.10]."),
    (
        ratio(2.0, None, None, "too few prompts"),
        "exact",
        "too few prompts to say: jetspec 2.00 (too few); all texts are ar's.",
    ),
]


@pytest.mark.parametrize(("speedup", "graded", "sentence"), FOUND, ids=lambda value: None)
def test_what_was_found_is_one_sentence(read: ReadRun, speedup: Any, graded: str | None, sentence: str) -> None:
    lossless = graded and {"verdict": graded, "exact": 1, "numeric_tie": 0, "lossy": 0}
    assert finding(saying(read, speedup=speedup, lossless=lossless)) == f"Found: {sentence}"


def test_the_fastest_comes_first_and_ar_alone_found_nothing(read: ReadRun) -> None:
    ar = read.summary.rows[0]
    faster = saying(read, speedup=ratio(1.5, 1.2, 1.8, "faster")).rows[1]
    fastest = saying(read, speedup=ratio(2.5, 2.2, 2.8, "faster"), method="pld").rows[1]
    found = finding(read.summary.model_copy(update={"rows": [ar, faster, fastest]}))
    assert found.startswith("Found: faster than ar: pld 2.50 [2.20, 2.80], jetspec 1.50 [1.20, 1.80]")
    assert finding(read.summary.model_copy(update={"rows": read.summary.rows[:1]})) == ""
    assert finding(saying(read, simulated={"mean": 4.0, "spread": 1.0})) == ""


@pytest.mark.parametrize(("passed", "shown"), [(0, False), (3, True)])
def test_a_table_of_zeros_is_left_out(read: ReadRun, passed: int, shown: bool) -> None:
    score = {"value": passed / 12, "passed": passed, "scored": 12, "low": 0.0, "high": 0.5}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(headline(read.run, saying(read, metrics={"strict": score})))
    assert ("right answers" in console.export_text()) is shown


def test_the_share_that_was_cut_is_of_requests_and_not_of_prompts(read: ReadRun) -> None:
    # Twelve prompts with two repeats each, of which eighteen answers ended at the budget.
    console = Console(width=140, color_system=None)
    with console.capture() as captured:
        console.print(headline(read.run, saying(read, prompts=12, requests=24, truncated=18)))
    row = next(line for line in captured.get().splitlines() if line.startswith("jetspec "))
    assert "75%" in row.split()


LEARNS = "jetspec learns from the requests before: its figures are of these prompts in this order, and its interval "
READS = "of its answers stand word for word in what it drafts from; such a corpus may hold the target's own answers"


def stateful(read: ReadRun, *labels: str) -> ReadRun:
    """The run where these rows learn from the requests before."""
    specs = [{**spec, **({"stateful": True} if spec["label"] in labels else {})} for spec in read.run["methods"]]
    return replace(read, run={**read.run, "methods": specs})


def test_a_row_that_learns_from_the_requests_before_is_said_to(read: ReadRun) -> None:
    assert not any("learns from" in line for line in told(read))
    (said,) = [line for line in told(stateful(read, "jetspec")) if "learns from" in line]
    assert said.startswith(LEARNS)
    assert said.endswith("takes them for independent, which they are not.")
    # Where the table stands on a page, among others, it is said too.
    warm = stateful(read, "jetspec")
    assert said in notes(warm.run, warm.summary, alone=False)


@pytest.mark.parametrize(("seen", "says"), [(0.0, ""), (0.049, ""), (0.05, "5%"), (0.873, "87%"), (1.0, "100%")])
def test_answers_that_stand_in_a_corpus_are_told_of_from_a_twentieth_on(read: ReadRun, seen: float, says: str) -> None:
    lines = [line for line in told(read, measures={"seen": seen, "match_length": 3.0}) if READS in line]
    assert [line.partition(" of its")[0] for line in lines] == ([f"jetspec: {says}"] if says else [])
    assert all(line.endswith("and its speed is of reading them off.") for line in lines)


def test_of_other_rows_neither_is_said(read: ReadRun) -> None:
    both = told(stateful(read, "jetspec"), measures={"seen": 0.5})
    assert sum("learns from" in line or READS in line for line in both) == 2
    lottery = told(stateful(read, "jetspec"), measures={"seen": 0.5}, simulated={"mean": 4.0, "spread": 1.0})
    assert not any("learns from" in line or READS in line for line in lottery), "its answers are nobody's"
    assert not any("learns from" in line or READS in line for line in told(read, measures={"expected": 0.5}))
