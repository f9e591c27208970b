"""Select a run's best row (the highest speedup that may be shown) and the rows that cannot be distinguished from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.report.tables.run_table import candidates

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results import MethodSummary


def best(run: Run) -> MethodSummary | None:
    """The candidate with the highest speedup; None without candidates or for a disturbed run."""
    if run.summary.unsure:
        return None
    return max(candidates(run), key=lambda row: row.speedup.value if row.speedup else 0.0, default=None)


def tied_with_best(run: Run, first: MethodSummary | None) -> str:
    """A sentence on the rows that the run's prompts cannot distinguish from its best row."""
    others = [row.method for row in candidates(run) if first and row.method != first.method]
    if first is None or not others:
        return ""
    fastest = run.summary.fastest
    if fastest is None or fastest.method != first.method or not fastest.conclusive:
        return f"Too few prompts to distinguish {len(others) + 1} rows."
    near = [method for method in fastest.as_good if method in others]
    if not near:
        none = "The other row is not" if len(others) == 1 else f"None of the {len(others)} other rows is"
        return f"{none} as good as {first.method}."
    return f"These prompts cannot distinguish {first.method} from {', '.join(near)}."
