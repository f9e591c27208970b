"""Published tables in the terminal: what their rows have in common, and what tells them apart."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from specbench.common.errors import unknown
from specbench.report.claims.catalog import BETWEEN, Catalog, Claim

_COLUMNS = {
    "speedup": "speedup",
    "tpf": "TPF",
    "tok_s": "tok/s",
    "baseline_tok_s": "AR tok/s",
    "bound": "bound",
    "accuracy": "score",
}


def select(known: tuple[Claim, ...], method: str | None, task: str | None) -> list[Claim]:
    """The rows of a method and of a task, its parts (``spec-bench:qa``) included; UsageError where there is none."""
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


def heading(rows: list[Claim]) -> str:
    """What a published table's rows have in common."""
    first, alike = rows[0], _common(rows)
    named = {"gpu": "GPU", "model": "model", "task": "task", "metric": "score is", "caveat": "caveat:"}
    lines = [
        f"{first.paper}: {first.source}",
        *dict.fromkeys(row.url for row in rows),  # in lines of their own: they are not cut
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


def table(known: Catalog, rows: list[Claim]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of one published table."""
    figures = [{**_figures(row), "bound": _bound(known, row)} for row in rows]
    # A column that no row of the table fills only takes width from the words.
    columns = {field: name for field, name in _COLUMNS.items() if any(cells[field] != "–" for cells in figures)}
    alike = _common(rows)
    body = [
        [row.method, *(cells[field] for field in columns), _words(row, alike)]
        for row, cells in zip(rows, figures, strict=True)
    ]
    return ["method", *columns.values(), "of what"], body


def _figures(row: Claim) -> dict[str, str]:
    return {field: _printed(getattr(row, field)) for field in _COLUMNS if field != "bound"}


def _printed(figure: Decimal | None) -> str:
    return "–" if figure is None else str(figure)


def _bound(known: Catalog, row: Claim) -> str:
    bounds = list(dict.fromkeys(f"{bandwidth.tok_s:.0f}" for bandwidth in known.bandwidth(row)))
    return "–".join(dict.fromkeys((bounds[0], bounds[-1]))) if bounds else "–"


def words(row: Claim, rows: list[Claim]) -> str:
    """What tells a row from others of its table, and what to bear in mind of it."""
    return _words(row, _common(rows))


def _words(row: Claim, alike: dict[str, str]) -> str:
    """What tells a row from the others of its table, and what to bear in mind."""
    apart = [row.setting, *(getattr(row, field) for field in ("gpu", "model", "task") if field not in alike)]
    said = [", ".join(part for part in apart if part)]
    said.append(f"score is {row.metric}" if row.metric and "metric" not in alike else "")
    said += [f"{name} {figure}" for name, figure in row.also.items()]
    said += [caveat for caveat in _caveats(row) if caveat not in alike.get("caveat", "").split(BETWEEN)]
    said.append(f"note: {row.note}" if row.note else "")
    return BETWEEN.join(part for part in said if part)


def as_data(known: Catalog, claim: Claim) -> dict[str, Any]:
    """A row with its id, as JSON has it."""
    printed = {name: _plain(value) for name, value in claim.model_dump().items()}
    bounds = list(dict.fromkeys(bandwidth.tok_s for bandwidth in known.bandwidth(claim)))
    return {**printed, "parameters": known.parameters.get(claim.model), "bandwidth_bound_tok_s": bounds}


def _plain(value: Any) -> Any:
    """The value with floats for decimals, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return float(value) if isinstance(value, Decimal) else value
