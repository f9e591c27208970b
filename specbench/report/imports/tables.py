"""Imported results as tables: every row says what measured it, and none is called lossless or undisturbed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from specbench.analysis import MEDIANS, ServedRow, check_import, minimum_clusters, served_rows
from specbench.report.document import NOTHING, Block, Cell, Column, Row, Section, Source, Table, Title, Words
from specbench.report.tables import cell
from specbench.report.tables.columns import Filled, cells_of
from specbench.report.tables.latency import percentile_table
from specbench.report.tables.run_parts import check_table
from specbench.results import ImportedRun, Percentiles

_FORMULA = (
    "done: requests that were answered; failed: with those that did not end. out tok/s: output tokens per second of "
    "the whole benchmark, as the tool computed it; in a run of ours, of the seconds in which requests ran. Times are "
    "medians. speedup: the first row's seconds per token after the first divided by the row's, as the client saw them, "
    "over answered requests."
)
_INTERVALS = (
    "95% intervals over requests, or over blocks of requests that overlapped. Without the times of each request the "
    "percentiles are the tool's and have no interval"
)
_UNKNOWN = (
    "Not known of imported rows: whether their texts equal plain decoding's, whether the machine was disturbed, their "
    "weights. specbench check-run FOLDER lists it."
)

_FEW = f" An interval needs {minimum_clusters()} requests, or blocks of requests that overlapped, in each row."


def import_report(run: ImportedRun) -> list[Block]:
    """The terminal output for imported results."""
    rows = served_rows(run)
    by = ", ".join(dict.fromkeys(row.measured_by for row in rows))
    models = ", ".join(dict.fromkeys(row.model for row in rows if row.model))
    return [Title("imported results", models, [f"measured by {by}"]), *_blocks(rows, ""), Words([_UNKNOWN], "notes")]


def served_comparison(rows: Sequence[ServedRow], targets: Sequence[str]) -> list[Block]:
    """The tables of a comparison with imported results; each run has a letter and its target."""
    blocks: list[Block] = []
    for (letter, some), target in zip(groupby(rows, lambda row: row.run), targets, strict=True):
        first = next(some)
        blocks.append(Title(letter, target, [f"{first.model or 'unknown model'} · measured by {first.measured_by}"]))
    warnings = []
    if len({row.measured_by for row in rows}) > 1:
        warnings.append("Measured by different tools, each with its own client and clock.")
    if len({row.model for row in rows}) > 1:
        warnings.append("The rows name different models.")
    if loads := list(dict.fromkeys(_sent(row.load) for row in rows))[1:]:
        warnings.append(f"Requests were sent differently: {'; '.join([_sent(rows[0].load), *loads])}.")
    warnings += [f"{row.run} {row.method} is incomplete: {row.failure}" for row in rows if row.failure]
    warnings += ["A run of ours was disturbed: verdicts are unsure."] if any(row.unsure for row in rows) else []
    blocks += [Words(warnings, "warning")] if warnings else []
    return [*blocks, *_blocks(rows, ""), Words([_UNKNOWN], "notes")]


def import_section(run: ImportedRun) -> Section:
    """The section of imported results in a report."""
    rows, name = served_rows(run), run.path.name
    checks = check_table(name, check_import(run))
    by = ", ".join(dict.fromkeys(row.measured_by for row in rows))
    return Section(f"import-{name}", name, [*_blocks(rows, name), checks], under=f"measured by {by}")


def _blocks(rows: Sequence[ServedRow], run_id: str) -> list[Block]:
    by = Column("measured_by", "measured by", words=True, only="page")
    columns = [
        Filled("row", "row", words=True, get=lambda row: Cell(_named(row))),
        Filled("completed", "done", get=lambda row: cell.count(row.completed)),
        Filled("failed", "failed", get=lambda row: cell.count(row.failed + row.unfinished)),
        Filled("output_tok_s", "out tok/s", get=lambda row: cell.figure(row.output_tok_s, 1)),
        Filled("ttft_ms", "TTFT ms", get=lambda row: _median(row.ttft_s, 1e3, 1)),
        Filled("tpot_ms", "TPOT ms", get=lambda row: _median(row.tpot_s, 1e3, 2)),
        Filled("latency_s", "latency s", get=lambda row: _median(row.latency_s, 1, 2)),
        Filled("speedup", "speedup", get=_speedup),
    ]  # fmt: skip
    body = [
        Row([*cells_of(columns, row), Cell(row.measured_by)], run_id, _named(row), strong=row.baseline) for row in rows
    ]
    source = Source([run_id] if run_id else [], _FORMULA)
    blocks: list[Block] = [Table(f"served {run_id}".strip(), "", [*columns, by], body, source)]
    blocks.append(percentile_table(run_id, rows, _named, _INTERVALS))
    lines = [line for row in rows for line in _about(row)]
    return [*blocks, *([Words(lines, "notes")] if lines else [])]


def _named(row: ServedRow) -> str:
    return f"{row.run} {row.method}".strip()


def _median(found: Percentiles | None, times: float, digits: int) -> Cell:
    return cell.figure(times * found.p50.value, digits) if found and found.p50 else NOTHING


def _speedup(row: ServedRow) -> Cell:
    if row.baseline:
        return cell.ONE
    if row.speedup and row.speedup.verdict == MEDIANS:
        return Cell(f"{row.speedup.value:.2f} (medians)", row.speedup.value)
    return cell.one_line(row.speedup)


def _about(row: ServedRow) -> list[str]:
    """Sentences about a row: its verdict, how it was compared, its load, its acceptance in the tool's words."""
    name, found = _named(row), []
    if row.speedup:
        how = f"the same prompts by {row.paired}" if row.paired else "unpaired: not known to be the same prompts"
        few = "" if row.speedup.interval or row.speedup.verdict == MEDIANS else _FEW
        found.append(f"{name}: {row.speedup.verdict}; {how}.{few}")
    if row.imported is None:
        return found
    found.append(f"{name}, measured by {row.measured_by}: {_sent(row.load)}.")
    figures = "; ".join(f"{figure} {_short(value)}" for figure, value in row.imported.figures.items())
    found += [f"{name}, as {row.imported.tool} defines it: {figures}."] if figures else []
    found += [f"{name}: {row.imported.tool} warns: {remark}" for remark in row.imported.remarks]
    return found


def _sent(load: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in load.items()) or "unknown load"


def _short(value: float | Sequence[float]) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ", ".join(f"{each:.3g}" for each in value)
