"""Best row of a run: the highest speedup that may be told, and the rows that its prompts do not tell apart from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.analysis import same_precision
from specbench.report.tables.run_table import withheld
from specbench.results import BASE, BASELINE

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results import MethodSummary


def candidates(run: Run) -> list[MethodSummary]:
    """Rows of methods whose speedup may be told; AR of a fine-tuned model's base is none, nor is an engine's row that
    failed or has another precision."""
    alike = {spec.label for spec in run.config.methods if same_precision(spec, run.config.model.dtype)}
    told = [row for row in run.rows if row.method not in (BASELINE, BASE) and not (row.simulated or row.again)]
    return [row for row in told if row.speedup and row.method in alike and not row.failed and not withheld(run, row)]


def best(run: Run) -> MethodSummary | None:
    """Of them the one with the highest speedup; None where there is none, and of a disturbed run."""
    if run.summary.unsure:
        return None
    return max(candidates(run), key=lambda row: row.speedup.value if row.speedup else 0.0, default=None)


def as_good(run: Run, first: MethodSummary | None) -> str:
    """What the prompts of a run do not tell apart from its best row, as a sentence."""
    others = [row.method for row in candidates(run) if first and row.method != first.method]
    if first is None or not others:
        return ""
    fastest = run.summary.fastest
    if fastest is None or fastest.method != first.method or not fastest.told_apart:
        return f"Too few prompts to tell {len(others) + 1} rows apart."
    near = [method for method in fastest.as_good if method in others]
    if not near:
        none = "The other row is not" if len(others) == 1 else f"None of the {len(others)} other rows is"
        return f"{none} as good as {first.method}."
    return f"These prompts do not tell {first.method} apart from {', '.join(near)}."
