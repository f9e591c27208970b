"""The findings at the top of a report: fastest method, speedup, interval, accuracy and setup, per kind of run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.analysis import UNSURE, disturbance_line, whole_records
from specbench.common import UsageError
from specbench.report.answers.race import Race, race
from specbench.report.answers.race_page import race_page
from specbench.report.document import Finding, Findings, Mark, Page, Section, Source, Tone
from specbench.report.page.best import best, tied_with_best
from specbench.report.page.write import RACES
from specbench.report.tables.cell import number
from specbench.report.tables.notes import only_jointly
from specbench.report.tables.run_table import candidates, rating
from specbench.report.tables.text_quality import repetition_note
from specbench.results import BASE, BASELINE, RunFolder, device_name, known_text

if TYPE_CHECKING:
    from specbench.report.gathering import Gathered, Run
    from specbench.results import MethodSummary, Speedup

_MOST = 8  # findings; the table in the next section has all runs

_FORMULA = (
    "For each model, task, session length, temperature, concurrency and machine: the run with most prompts, the latest "
    "if several are equal; disturbed, unfinished and traced runs come last. Speedup: seconds per token of plain "
    "decoding (AR) divided by the fastest method's, with that row's own interval; the verdict also allows for the "
    "choice among the rows. Other rows: ▲ faster than AR, ▼ slower, ◇ no difference shown or too few prompts, ? unsure "
    "because the run was disturbed. Every run is in the tables below."
)

_SIGNS: Mapping[str, tuple[str, Tone]] = {"faster": ("▲", "good"), "slower": ("▼", "bad")}

_VERDICTS: Mapping[str, tuple[Tone, str]] = {
    "faster": ("good", "is faster than plain decoding"),
    "slower": ("bad", "has the highest speed of these methods, and is slower than plain decoding"),
}


def in_short(found: Gathered, races: Mapping[str, Page]) -> Section:
    """The section with the findings of a report."""
    shown, every = pictured(found), _largest(found)
    findings = [_finding(run, races.get(run.id)) for run in shown]
    left = f" {len(shown)} of {len(every)} such runs are shown." if len(every) > len(shown) else ""
    return Section("in-short", "In short", [Findings(findings, Source([run.id for run in shown], _FORMULA + left))])


def pictured(found: Gathered) -> list[Run]:
    """The runs shown as findings, those with most prompts first."""
    return _largest(found)[:_MOST]


def _largest(found: Gathered) -> list[Run]:
    """The most informative run of each kind, those with most prompts first."""
    kinds: dict[tuple[Any, ...], Run] = {}
    for run in filter(_compares, found.runs):
        kind = _kind(run)
        if kind not in kinds or _weight(run) >= _weight(kinds[kind]):
            kinds[kind] = run
    return sorted(kinds.values(), key=_weight, reverse=True)


def _compares(run: Run) -> bool:
    """Whether a run has a row other than AR that is neither a repetition nor simulated."""
    return not run.config.load and any(
        row.method not in (BASELINE, BASE) and not (row.simulated or row.again) for row in run.rows
    )


def _kind(run: Run) -> tuple[Any, ...]:
    config = run.config
    model, temperature = config.model, config.sampling.temperature
    asked = config.task.name, config.task.chain, temperature, config.concurrency
    return model.name, model.dtype, model.dummy, *asked, _machine(run)


def _weight(run: Run) -> tuple[bool, bool, bool, int]:
    sure = run.complete and not run.summary.unsure
    return sure, not run.config.trace, best(run) is not None, run.config.task.prompts


def races_of(found: Gathered) -> dict[str, Page]:
    """A page for each finding whose best row can be raced against AR, by run id."""
    pages = {}
    for run in pictured(found):
        made = _race(run)
        if made is not None:
            pages[run.id] = Page(f"{run.id}.html", race_page(made, run))
    return pages


def _race(run: Run) -> Race | None:
    row = best(run)
    if row is None:
        return None
    methods = [BASELINE, row.method]
    every = whole_records(RunFolder.load(run.path), run.config)
    records = [r.without_drafts() for r in every if r.method in methods]
    if any(record.step_s is None or record.tokens is None for record in records):
        return None  # rows of other engines have no step times
    try:
        return race(run.config, records, methods, None)
    except UsageError:  # no prompt was answered by both
        return None


def _finding(run: Run, page: Page | None) -> Finding:
    config, row = run.config, best(run)
    together = [_together(config.concurrency)] if config.concurrency > 1 else []
    on = " · ".join([config.task.name, config.model.name, _machine(run), *together])
    links = {"watch the race": f"{RACES}/{page.name}"} if page else {}
    links["tables and pictures"] = f"#run-{run.id}"
    fields = {"On": _conditions(run)}
    if row is None or row.speedup is None:
        why = disturbance_line(run.summary) or "no row has a speed that may be shown"
        claim, figure = f"{why[0].upper()}{why[1:]}", "unsure" if run.summary.unsure else "–"
        return Finding(on, figure, "faint", claim, fields, _marks(run, None), links)
    tone, claim = _VERDICTS.get(
        row.speedup.verdict,
        ("", "has the highest speed of these methods, and no difference from plain decoding is shown"),
    )
    if loops := repetition_note(row).strip(" ()"):
        tone, claim = "", f"{claim}; {loops}"
    if row.accuracy_difference and row.accuracy_difference.verdict == "fewer right":
        tone, claim = "", f"{claim}, and fewer of its answers are right"
    lines = {
        "How sure": f"{_interval(run, row)} {tied_with_best(run, row)}".strip(),
        "How right": _right(run, row),
        **_over_base(run, row),
        **fields,
    }
    figure = f"{number(row.speedup.value, 2)}×"
    return Finding(on, figure, tone, f"`{row.method}` {claim}", lines, _marks(run, row), links)


def _interval(run: Run, row: MethodSummary) -> str:
    speedup, some = row.speedup, _prompts(run, row)
    if speedup is None or speedup.interval is None:
        return f"No interval: too few for one ({some})."
    low, high = speedup.interval
    line = f"{number(low, 2)} to {number(high, 2)} with 95% confidence, on {some}."
    if joint := only_jointly(speedup):
        low, high = joint.low, joint.high
        line += f" Jointly for all {joint.rows} rows {number(low, 2)} to {number(high, 2)}, which includes 1."
    return line


def _over_base(run: Run, row: MethodSummary) -> dict[str, str]:
    """The speedup of a fine-tuned model over plain decoding of its base model; empty without a base model."""
    base, speedup = run.config.base, row.over_base.speedup if row.over_base else None
    if base is None or speedup is None:
        return {}
    interval = f", {number(speedup.low, 2)} to {number(speedup.high, 2)}" if speedup.interval else ""
    return {"Over base": f"{number(speedup.value, 2)}×{interval}, over plain decoding of {base.name}."}


def _prompts(run: Run, row: MethodSummary) -> str:
    """The number of prompts (or sessions) that both AR and the method answered, and the number of timed blocks."""
    task = run.config.task
    there = min(other.prompts for other in run.rows if other.method in (BASELINE, row.method))
    every = task.taken.of if task.taken else task.prompts
    word = "sessions" if run.config.task.chain > 1 else "prompts"
    some = f"{there} of {every} {word}" if there < every else f"{there} {word}"
    blocks = row.speedup.blocks if row.speedup else None
    return some if blocks is None else f"{some}, stepped together in {blocks} block{'s' * (blocks != 1)}"


def _right(run: Run, row: MethodSummary) -> str:
    """Whether a row's text equals AR's, and how many of its answers are right compared with AR's."""
    graded, found = row.lossless, []
    if graded is None or not graded.exact + graded.numeric_tie + graded.lossy:
        found.append("it was not checked whether its text is AR's.")
    elif graded.verdict == "exact":
        found.append("its text is AR's, token for token, on every prompt.")
    else:
        differing = graded.numeric_tie + graded.lossy
        grade = "only at numeric ties" if graded.verdict == "numeric-tie" else "beyond numeric ties"
        found.append(f"its text differs from AR's in {differing} of {differing + graded.exact} answers, {grade}.")
    baseline = next((other for other in run.rows if other.method == BASELINE), None)
    if row.accuracy:
        also = f", AR's {baseline.accuracy.passed}" if baseline and baseline.accuracy else ""
        found.append(f"{row.accuracy.passed} of {row.accuracy.scored} answers are right{also}.")
    elif judged := rating(run, row.method):
        theirs = rating(run, BASELINE)
        found.append(f"rated {judged.text} of 10 by a judge{f', AR {theirs.text}' if theirs else ''}.")
    else:
        found.append("its answers were not scored.")
    return " ".join(f"{line[0].upper()}{line[1:]}" for line in found)


def _conditions(run: Run) -> str:
    config = run.config
    how = "greedy" if config.sampling.temperature == 0 else f"T={config.sampling.temperature:g}"
    parts = [
        config.model.dtype,
        how,
        *filter(None, [config.sampling.words]),
        f"at most {config.max_new_tokens} new tokens",
    ]
    parts += [_together(config.concurrency)]
    parts += [f"sessions of {chain} chained problems"] if (chain := config.task.chain) > 1 else []
    parts += ["traced, which slows its steps"] if config.trace else []
    parts += ["dummy weights"] if config.model.dummy else []
    parts += ["data unverified"] if config.task.unverified else []
    parts += [] if run.complete else ["NOT COMPLETE"]
    return f"{', '.join(parts)}."


def _together(sequences: int) -> str:
    return f"{sequences} sequences at once" if sequences > 1 else "one sequence at a time"


def _machine(run: Run) -> str:
    """Name of the GPU or CPU model."""
    name = device_name(run.run)
    model = known_text(run.run, "environment", "cpu", "model")
    return model if name == "cpu" and model else name


def _marks(run: Run, first: MethodSummary | None) -> list[Mark]:
    """The other rows, the fastest first."""
    rows = [row for row in candidates(run) if first is None or row.method != first.method]
    rows.sort(key=lambda row: -(row.speedup.value if row.speedup else 0.0))
    return [_mark(row.method, row.speedup) for row in rows if row.speedup]


def _mark(method: str, speedup: Speedup) -> Mark:
    unsure = speedup.verdict.startswith(UNSURE)
    usual: tuple[str, Tone] = ("?", "faint") if unsure else ("◇", "")
    sign, tone = _SIGNS.get(speedup.verdict, usual)
    return Mark(f"{sign} {method}", f"{number(speedup.value, 2)}×", tone)
