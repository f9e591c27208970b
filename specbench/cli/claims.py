"""``specbench claims``: the published speedups, each table with its GPU and caveats over it; what a run repeats."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output

if TYPE_CHECKING:
    from specbench.report.claims.catalog import Catalog

LEGEND = (
    "Figures as printed there; – is not given. TPF: tokens per forward or accepted length. AR tok/s: the "
    "publication's own baseline. bound: AR tok/s that the GPU's datasheet bandwidth allows, bf16 weights read once a "
    "token; a range where boards of that name differ. A baseline far below it waits for launches and not for memory."
)


def claims(
    method: str = typer.Option(None, "--method", help="only this method's rows"),
    task: str = typer.Option(None, "--task", help="only this task's rows"),
    check: Path = options.folder_option(
        "--check",
        "Instead: which of them this finished run repeats, which not, and why others cannot be compared.",
        "RUN",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="JSON to stdout: one object per row, with its id; with --check one per figure."
    ),
) -> None:
    """List published speedups: what was measured on which GPU, over which baseline, and what to bear in mind.

    With --check a run is held against them.
    """
    from specbench.report.claims.catalog import claims as catalog
    from specbench.report.claims.listing import as_data, heading, select, table

    known = catalog()
    chosen = select(known.claims, method, task)
    if check is not None:
        _check(known.model_copy(update={"claims": tuple(chosen)}), check, as_json)
        return
    if as_json:
        output.emit_json([as_data(known, claim) for claim in chosen])
        return
    console = output.stdout()
    console.print(LEGEND, "", markup=False, sep="\n")
    for _, together in groupby(chosen, lambda claim: claim.id.partition("/")[0]):
        rows = list(together)
        console.print(heading(rows), markup=False)
        console.print(output.table(*table(known, rows)), "")


def _check(known: Catalog, folder: Path, as_json: bool) -> None:
    from specbench.report import check_claims
    from specbench.report.claims.check_tables import COLUMNS, check_data, compared, count, left
    from specbench.report.claims.check_tables import LEGEND as KEY
    from specbench.report.claims.listing import heading

    found = check_claims(known, folder)
    if as_json:
        output.emit_json([check_data(known, each) for each in found])
        return
    console = output.stdout()
    console.print(KEY, "", f"{folder.name}: {count(found)}", "", markup=False, sep="\n")
    for claims, rows in compared(found):
        console.print(heading(claims), markup=False)
        console.print(output.table(COLUMNS, rows), "")
    for title, rows in left(found):
        console.print(title, markup=False)
        console.print(output.table(["method", "not comparable"], rows), "")
