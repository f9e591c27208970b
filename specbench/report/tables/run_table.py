"""Headline table of a run: every method compared with AR, followed by the further tables that its figures need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specbench.analysis import UNSURE, same_precision
from specbench.report.document import NOTHING, Block, Cell, Column, Medium, Row, Source, Table, Words, seen_on
from specbench.report.tables import cell
from specbench.report.tables.cell import name, speedup
from specbench.report.tables.columns import E2E, NAME, SPEEDUP, STEP_RATIO, TOK_S, TPF, VERDICT, cells_of, on
from specbench.report.tables.fair_baseline import engine_blocks
from specbench.report.tables.latency import load_sentences
from specbench.report.tables.notes import LEGEND, notes
from specbench.report.tables.run_parts import part_blocks
from specbench.report.tables.run_title import run_title, simulated_title
from specbench.report.tables.text_quality import repetition_note
from specbench.results import BASE, BASELINE, RunConfig

if TYPE_CHECKING:
    from specbench.results import MethodSpec, MethodSummary, RunSummary


FORMULA = (
    f"{LEGEND} step ratio: AR's seconds per forward divided by the method's; speedup = TPF × step ratio. "
    "cut: answers that ended at the token budget."
)
_LOSSY = "not AR's text (lossy): no speed is shown without a quality score"


@dataclass(frozen=True)
class Finished:
    """A run for the terminal, just measured or read from its folder."""

    run: Mapping[str, Any]
    config: RunConfig
    summary: RunSummary
    judged: Sequence[Mapping[str, Any]] = ()
    projections: Sequence[Mapping[str, Any]] = ()
    id: str = ""

    @property
    def complete(self) -> bool:
        return self.summary.complete

    @classmethod
    def of(cls, run: Mapping[str, Any], summary: RunSummary, judged: Sequence[Mapping[str, Any]] = ()) -> Finished:
        """Make it from the content of ``run.json`` and the summary."""
        config = RunConfig.model_validate({name: run[name] for name in RunConfig.model_fields if name in run})
        return cls(run, config, summary, judged)


def run_report(run: Mapping[str, Any], summary: RunSummary, judged: Sequence[Mapping[str, Any]] = ()) -> list[Block]:
    """The terminal output of a run with ``--verbose``: title, tables and notes."""
    found = Finished.of(run, summary, judged)
    config = found.config
    asked = {label: spec.model_dump() for label, spec in config.simulated.items()}
    blocks: list[Block] = [run_title(found).over_tables(*([simulated_title(asked)] if asked else []))]
    blocks.append(replace(headline("", [found], withholding=False), source=Source()))
    blocks += [*engine_blocks(found), *part_blocks(found, summary.rows)]
    blocks.append(Words([*not_judged(found), *notes(run, summary)], "notes"))
    return seen_on("terminal", blocks)


def not_judged(found: Finished) -> list[str]:
    """A line that quality is unknown: the task has no metric, and no judge rated the answers."""
    task = found.config.task
    if found.judged or found.config.simulated or task.metric or any(row.perplexity for row in found.summary.rows):
        return []
    return ["Answers are not judged" + ("; specbench score RUN --judge MODEL rates them." if task.judge else ".")]


def headline(task: str, runs: Sequence[Any], *, withholding: bool = True) -> Table:
    """The table of one task, grouped by run, with lossy rows last.

    ``withholding``: hide the speed of a lossy row that has neither accuracy nor a judge's rating, because text that
    need not be AR's can be arbitrarily fast.
    """
    metric = next((run.config.task.metric for run in runs if run.config.task.metric), "")
    if any(row.perplexity for run in runs for row in run.summary.rows):
        metric = "perplexity"
    simulated = any(run.config.simulated for run in runs)
    shown: Medium = "page" if simulated or not (metric or any(run.judged for run in runs)) else ""
    columns = [
        NAME, TPF, TOK_S, SPEEDUP, *on("page", VERDICT, STEP_RATIO), E2E,
        Column("accuracy", metric or "score", only=shown),
        Column("lossless", "lossless", words=True, short="acceptance" if simulated else ""), Column("cut_share", "cut"),
    ]  # fmt: skip
    made = [row for run in runs for row in _rows(run, withholding)]
    return Table(f"headline {task}", "", columns, made, Source([run.id for run in runs], FORMULA))


def withheld(run: Any, row: MethodSummary) -> bool:
    """Whether to hide a row's speed: its text is not AR's and has no quality score."""
    return _is_lossy(row) and row.accuracy is None and rating(run, row.method) is None


def candidates(run: Any, *, withholding: bool = True) -> list[MethodSummary]:
    """Rows of methods that may be a run's best.

    They are at the run's precision, and not AR, the base model's AR, simulated, repeated, failed, lossy by design or,
    with ``withholding``, withheld.
    """
    alike = {spec.label for spec in run.config.methods if same_precision(spec, run.config.model.dtype)}
    rows = [row for row in run.summary.rows if row.method not in (BASELINE, BASE) and not (row.simulated or row.again)]
    rows = [row for row in rows if row.speedup and row.method in alike and not row.failed]
    rows = [row for row in rows if not lossy_by_design(row)]
    return [row for row in rows if not (withholding and withheld(run, row))]


def lossy_by_design(row: MethodSummary) -> bool:
    """Whether the row's text differs from AR's, as its method says."""
    return _is_lossy(row) and row.lossless_claimed is False


def _is_lossy(row: MethodSummary) -> bool:
    """Whether the row's text differs from AR's; always False with simulated acceptance, whose text means nothing."""
    return row.lossless is not None and row.lossless.verdict == "lossy" and not row.simulated


def settings(specs: Sequence[MethodSpec]) -> dict[str, str]:
    """Label -> the options that differ between the rows of one method."""
    found = {}
    for spec in specs:
        others = [other.options for other in specs if other.name == spec.name]
        apart = [key for key in spec.options if any(other.get(key) != spec.options[key] for other in others)]
        found[spec.label] = ", ".join(f"{key} {_short(spec.options[key])}" for key in apart)
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _rows(run: Any, withholding: bool) -> Iterator[Row]:
    apart = settings(run.config.methods)
    ordered = sorted(run.summary.rows, key=_is_lossy) if withholding else run.summary.rows
    for row in ordered:
        part = f"{run.id} · {_LOSSY if _is_lossy(row) else run_title(run).line}"
        cells = _cells(run, row, apart[row.method], withholding and withheld(run, row))
        yield Row(cells, run.id, row.method, part, strong=row.baseline)


def _cells(run: Any, row: MethodSummary, apart: str, hidden: bool) -> list[Cell]:
    quality = cell.accuracy(row.accuracy) if not row.simulated else NOTHING
    judged = rating(run, row.method)
    if row.accuracy is None and judged is not None:
        quality = judged
    if row.perplexity is not None:
        quality = cell.figure(row.perplexity, 2)
    text = cell.lossless(row)
    if run.config.simulated and not row.simulated:
        text = replace(text, line="the target's")
    *speeds, end_to_end = cells_of([TPF, TOK_S, SPEEDUP, VERDICT, STEP_RATIO, E2E], row)
    speeds.append(replace(end_to_end, line=""))  # two intervals would not fit 80 columns
    if run.config.load:  # speeds of several rates together mean nothing; see the table under load
        speeds = [speeds[0], *[NOTHING] * 5]
    if hidden:
        notice = Cell("withheld", under="lossy and not scored", tone="bad")
        speeds = [*[NOTHING] * 3, notice, *[NOTHING] * 2]
    cut = cell.share(row.truncated / row.requests if row.requests else None)
    method = Cell(name(row), under=apart, line=name(row))
    return [method, *speeds, quality, text, cut]


def rating(run: Any, method: str) -> Cell | None:
    """Mean rating of the first judge that rated this method."""
    for judged in run.judged:
        score = judged["methods"].get(method, {}).get("score")
        if score is not None:
            return replace(cell.figure(score, 2), under="judge's rating, 1 to 10")
    return None


def finding(summary: RunSummary) -> str:
    """What was found, in a sentence: which methods are faster than AR and which slower, and whose texts are AR's.

    Only intervals that exclude 1 are called faster or slower; rows that failed are left out. Empty if only AR ran.
    """
    if any(row.rates for row in summary.rows):
        return " ".join(f"Found: {line}." for line in load_sentences(summary))
    rows = [
        row
        for row in summary.rows
        if row.method != BASELINE and row.speedup and not (row.simulated or row.again or row.failed)
    ]
    if not rows:
        return ""
    by_verdict: dict[str, list[MethodSummary]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -(row.speedup.value if row.speedup else 0.0)):
        assert row.speedup is not None
        by_verdict[row.speedup.verdict].append(row)
    parts = [
        f"{_WORDS[verdict]}: {', '.join(f'{name(row)} {speedup(row.speedup)}{repetition_note(row)}' for row in some)}"
        for verdict in _WORDS
        if (some := by_verdict[verdict])
    ]
    graded = [row for row in rows if row.lossless]
    other = [row.method for row in graded if row.lossless and row.lossless.verdict != "exact"]
    texts = f"; not every text of {', '.join(other)} is {BASELINE}'s" if other else f"; all texts are {BASELINE}'s"
    return f"Found: {'; '.join(parts)}{texts if graded else ''}.{_as_good(summary)}"


def _as_good(summary: RunSummary) -> str:
    """The rows that may be as fast as the fastest; empty if there is only one row, too few prompts or a disturbance."""
    fastest = summary.fastest
    if fastest is None or fastest.among < 2 or not fastest.conclusive or summary.unsure:
        return ""
    others = [method for method in fastest.as_good if method != fastest.method]
    if not others:
        return f" {fastest.method} is the fastest of {fastest.among} methods."
    return f" As good as the fastest method, {fastest.method}, by these prompts: {', '.join(others)}."


_WORDS = {
    "faster": f"faster than {BASELINE}",
    "slower": f"slower than {BASELINE}",
    "no difference shown": "no difference shown",
    "too few prompts": "too few prompts to say",
}
_WORDS |= {f"{UNSURE}{verdict}": f"{UNSURE}{words}" for verdict, words in _WORDS.items()}
