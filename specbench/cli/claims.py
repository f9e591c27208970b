"""``specbench claims``: the published speedups, each table with its GPU and its caveats over it."""

from __future__ import annotations

from itertools import groupby

import typer

from specbench.cli import output

LEGEND = (
    "Figures as printed there; – is not given. TPF: tokens per forward or accepted length. AR tok/s: the "
    "publication's own baseline. bound: AR tok/s that the GPU's datasheet bandwidth allows, bf16 weights read once a "
    "token; a range where boards of that name differ. A baseline far below it waits for launches and not for memory."
)


def claims(
    method: str = typer.Option(None, "--method", help="only this method's rows"),
    task: str = typer.Option(None, "--task", help="only this task's rows"),
    as_json: bool = typer.Option(False, "--json", help="JSON to stdout: one object per row, with its id."),
) -> None:
    """List published speedups: what was measured on which GPU, over which baseline, and what to bear in mind."""
    from specbench.report.claims import claims as catalog
    from specbench.report.terminal.claims import as_data, heading, select, table

    known = catalog()
    chosen = select(known.claims, method, task)
    if as_json:
        output.emit_json([as_data(known, claim) for claim in chosen])
        return
    console = output.stdout()
    console.print(LEGEND, "", markup=False, sep="\n")
    for _, together in groupby(chosen, lambda claim: claim.id.partition("/")[0]):
        rows = list(together)
        console.print(heading(rows), markup=False)
        console.print(output.table(*table(known, rows)), "")
