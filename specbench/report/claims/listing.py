"""Tables of published speedups, each with a heading for GPU and caveats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from specbench.common import unknown_name
from specbench.report.claims.catalog import BETWEEN, Catalog, Claim
from specbench.report.document import NOTHING, Block, Cell, Column, Row, Table, Title, Words
from specbench.report.tables.columns import METHOD

_LEGEND = (
    "Figures as printed; –: not given. TPF: tokens per forward or accepted length. AR tok/s: the publication's own "
    "baseline. bound: AR tok/s that the GPU's datasheet bandwidth allows if bf16 weights are read once per token; a "
    "range if boards of that name differ. A baseline far below the bound is limited by kernel launches, not memory."
)
OF_WHAT = Column("of", "of what", words=True)


def select_claims(known: tuple[Claim, ...], method: str | None, task: str | None) -> list[Claim]:
    """The rows of a method and task, including subsets (``spec-bench:qa``); UsageError if there are none."""
    chosen = list(known)
    if method is not None:
        chosen = [claim for claim in known if claim.method == method]
        if not chosen:
            raise unknown_name("method", method, {claim.method for claim in known}, "in the published claims")
    if task is not None:
        of_method = chosen
        chosen = [claim for claim in of_method if task in (claim.task, claim.task.partition(":")[0])]
        if not chosen:
            raise unknown_name("task", task, {claim.task for claim in of_method if claim.task}, "in these claims")
    return chosen


def claims_report(known: Catalog, rows: Iterable[Claim]) -> list[Block]:
    """Every published table, with a heading for what its rows have in common."""
    blocks: list[Block] = [Words([_LEGEND])]
    for _, together in groupby(rows, table_of):
        some = list(together)
        blocks += [heading(some), _published(known, some)]
    return blocks


def _published(known: Catalog, rows: Sequence[Claim]) -> Table:
    columns = [
        METHOD, Column("speedup", "speedup", optional=True), Column("tpf", "TPF", optional=True),
        Column("tok_s", "tok/s", optional=True), Column("baseline_tok_s", "AR tok/s", optional=True),
        Column("bound", "bound", optional=True), Column("accuracy", "score", optional=True), OF_WHAT,
    ]  # fmt: skip
    alike, body = common(rows), []
    for row in rows:
        figures = [row.speedup, row.tpf, row.tok_s, row.baseline_tok_s, row.accuracy]
        *first, accuracy = (NOTHING if each is None else Cell(str(each), float(each)) for each in figures)
        body.append(Row([Cell(row.method), *first, _bound(known, row), accuracy, Cell(words(row, alike))]))
    return Table("published", "", columns, body)


def table_of(claim: Claim) -> str:
    """Name of a row's published table."""
    return claim.id.partition("/")[0]


def heading(rows: Sequence[Claim]) -> Title:
    """Heading with what a published table's rows have in common."""
    first, alike = rows[0], common(rows)
    named = {"gpu": "GPU", "model": "model", "task": "task", "metric": "score is", "caveat": "caveat:"}
    counting = alike.get("counting")
    lines = [
        *dict.fromkeys(row.url for row in rows),
        BETWEEN.join(f"{name} {alike[field]}" for field, name in named.items() if field in alike),
        f"TPF there: {counting}" if counting else "",
    ]
    return Title(f"{first.paper}: {first.source}", lines=[line for line in lines if line])


def common(rows: Sequence[Claim]) -> dict[str, str]:
    """Fields with the same value in all rows; ``metric`` counts only rows with a score, ``counting`` those with TPF."""
    fields = {field: {getattr(row, field) for row in rows} for field in ("gpu", "model", "task")}
    fields["metric"] = {row.metric for row in rows if row.metric}
    fields["counting"] = {row.counting for row in rows if row.tpf is not None}
    alike = {field: values.pop() for field, values in fields.items() if len(values) == 1 and values != {""}}
    everywhere = [caveat for caveat in _caveats(rows[0]) if all(caveat in _caveats(row) for row in rows)]
    return {**alike, **({"caveat": BETWEEN.join(everywhere)} if everywhere else {})}


def _caveats(row: Claim) -> list[str]:
    return row.caveat.split(BETWEEN) if row.caveat else []


def _bound(known: Catalog, row: Claim) -> Cell:
    bounds = list(dict.fromkeys(f"{bandwidth.tok_s:.0f}" for bandwidth in known.bandwidth(row)))
    return Cell("–".join(dict.fromkeys((bounds[0], bounds[-1])))) if bounds else NOTHING


def words(row: Claim, alike: dict[str, str]) -> str:
    """What distinguishes a row from the others of its table, and its caveats."""
    apart = [row.setting, *(getattr(row, field) for field in ("gpu", "model", "task") if field not in alike)]
    lines = [", ".join(part for part in apart if part)]
    lines.append(f"score is {row.metric}" if row.metric and "metric" not in alike else "")
    lines.append(f"TPF there: {row.counting}" if row.tpf is not None and "counting" not in alike else "")
    lines += [f"{name} {figure}" for name, figure in row.also.items()]
    lines += [caveat for caveat in _caveats(row) if caveat not in alike.get("caveat", "").split(BETWEEN)]
    lines.append(f"note: {row.note}" if row.note else "")
    return BETWEEN.join(part for part in lines if part)


def claim_data(known: Catalog, claim: Claim) -> dict[str, Any]:
    """A row with its id, as JSON-ready data."""
    printed = {name: _plain(value) for name, value in claim.model_dump().items()}
    bounds = list(dict.fromkeys(bandwidth.tok_s for bandwidth in known.bandwidth(claim)))
    return {**printed, "parameters": known.parameters.get(claim.model), "bandwidth_bound_tok_s": bounds}


def _plain(value: Any) -> Any:
    """Replace decimals, which JSON does not have, with floats."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return float(value) if isinstance(value, Decimal) else value
