"""``specbench claims``: the published speedups, each table with its GPU and its caveats over it."""

from __future__ import annotations

from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import output
from specbench.common.errors import unknown
from specbench.report.claims import BETWEEN

if TYPE_CHECKING:
    from specbench.report.claims import Catalog, Claim


_COLUMNS = {
    "speedup": "speedup",
    "tpf": "TPF",
    "tok_s": "tok/s",
    "baseline_tok_s": "AR tok/s",
    "bound": "bound",
    "accuracy": "score",
}

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

    known = catalog()
    chosen = select(known.claims, method, task)
    if as_json:
        output.emit_json([_json(known, claim) for claim in chosen])
        return
    console = output.stdout()
    for _, together in groupby(chosen, lambda claim: claim.id.partition("/")[0]):
        rows = list(together)
        console.print(_heading(rows), markup=False)
        console.print(_table(known, rows), "")
    console.print(LEGEND, markup=False)


def select(known: tuple[Claim, ...], method: str | None, task: str | None) -> list[Claim]:
    """The rows of a method and of a task; a task's parts (``spec-bench:qa``) are its own too.

    Raises:
        UsageError: no row is of that method or task; names the nearest ones.
    """
    chosen = list(known)
    if method is not None:
        chosen = [claim for claim in known if claim.method == method]
        if not chosen:
            raise unknown("method of a claim", method, {claim.method for claim in known})
    if task is not None:
        of_method = chosen
        chosen = [claim for claim in of_method if task in (claim.task, claim.task.partition(":")[0])]
        if not chosen:
            raise unknown("task of a claim", task, {claim.task for claim in of_method if claim.task})
    return chosen


def _heading(rows: list[Claim]) -> str:
    """What a published table's rows have in common."""
    first, alike = rows[0], _common(rows)
    named = {"gpu": "GPU", "model": "model", "task": "task", "metric": "score is", "caveat": "caveat:"}
    lines = [
        f"{first.paper}: {first.source}",
        BETWEEN.join(f"{name} {alike[field]}" for field, name in named.items() if field in alike),
        f"TPF there: {first.tpf_is}" if first.tpf_is and any(row.tpf is not None for row in rows) else "",
    ]
    return "\n".join(line for line in lines if line)


def _common(rows: list[Claim]) -> dict[str, str]:
    """What all rows say alike; ``metric`` where all those say so that have a score."""
    said = {field: {getattr(row, field) for row in rows} for field in ("gpu", "model", "task")}
    said["metric"] = {row.metric for row in rows if row.metric}
    alike = {field: values.pop() for field, values in said.items() if len(values) == 1 and values != {""}}
    everywhere = [caveat for caveat in _caveats(rows[0]) if all(caveat in _caveats(row) for row in rows)]
    return {**alike, **({"caveat": BETWEEN.join(everywhere)} if everywhere else {})}


def _caveats(row: Claim) -> list[str]:
    return row.caveat.split(BETWEEN) if row.caveat else []


def _table(known: Catalog, rows: list[Claim]) -> Any:
    figures = [{**_figures(row), "bound": _bound(known, row)} for row in rows]
    # A column that no row of the table fills only takes width from the words.
    columns = {field: name for field, name in _COLUMNS.items() if any(cells[field] != "–" for cells in figures)}
    alike = _common(rows)
    body = [
        [row.method, *(cells[field] for field in columns), _words(row, alike)]
        for row, cells in zip(rows, figures, strict=True)
    ]
    return output.table(["method", *columns.values(), "of what"], body)


def _figures(row: Claim) -> dict[str, str]:
    return {field: _printed(getattr(row, field)) for field in _COLUMNS if field != "bound"}


def _printed(figure: Decimal | None) -> str:
    return "–" if figure is None else str(figure)


def _bound(known: Catalog, row: Claim) -> str:
    bounds = dict.fromkeys(f"{bandwidth.tok_s:.0f}" for bandwidth in known.bandwidth(row))
    return "–".join(bounds) or "–"


def _words(row: Claim, alike: dict[str, str]) -> str:
    """What tells a row from the others of its table, and what to bear in mind."""
    apart = [row.setting, *(getattr(row, field) for field in ("gpu", "model", "task") if field not in alike)]
    said = [", ".join(part for part in apart if part)]
    said.append(f"score is {row.metric}" if row.metric and "metric" not in alike else "")
    said += [caveat for caveat in _caveats(row) if caveat not in alike.get("caveat", "").split(BETWEEN)]
    said.append(f"note: {row.note}" if row.note else "")
    return BETWEEN.join(part for part in said if part)


def _json(known: Catalog, claim: Claim) -> dict[str, Any]:
    printed = {
        name: float(value) if isinstance(value, Decimal) else value for name, value in claim.model_dump().items()
    }
    bounds = [bandwidth.tok_s for bandwidth in known.bandwidth(claim)]
    return {**printed, "parameters": known.parameters.get(claim.model), "bandwidth_bound_tok_s": bounds}
