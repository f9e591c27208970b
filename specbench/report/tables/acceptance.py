"""Tables of acceptance: of a run, in other tools' definitions, over the draft length, and compared with a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.report.document import Block, Cell, Column, Row, Source, Table, Title, Words
from specbench.report.tables import cell
from specbench.report.tables.cell import name as named
from specbench.report.tables.columns import METHOD, Filled, cells_of, figure, on, words

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis import AcceptanceCurves, AcceptanceRow, Defined
    from specbench.results import Acceptance

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 6  # positions, and bars of a histogram


def acceptance_table(run: Any) -> Table:
    """Accepted length, draft acceptance rate, acceptance per draft position and histogram."""
    columns = [
        Filled("acceptance_length", "accepted length", get=lambda found: cell.interval(found.length, 2)),
        figure("acceptance_length_without_bonus", "no bonus", 2, of="length_without_bonus"),
        Filled("acceptance_rate", "draft acceptance", short="rate", get=lambda found: cell.small_share(found.rate)),
        *on("page", figure("acceptance_drafts", "drafts", None, of="drafts"),
            figure("acceptance_draft_tokens", "draft tokens", None, of="draft_tokens"),
            figure("acceptance_accepted_tokens", "accepted tokens", None, of="accepted_tokens")),
        words("positions", "% at 1, 2, 3", _positions, only="terminal"),
        words("histogram", "histogram", _histogram, only="terminal",
              note="histogram: drafts by accepted tokens, from 0."),
    ]  # fmt: skip
    body = [
        Row([Cell(row.method, line=named(row)), *cells_of(columns, row.acceptance)], run.id, row.method)
        for row in run.summary.rows
        if row.acceptance
    ]
    formula = (
        "Over the target forwards that verified a draft. accepted length: accepted draft tokens per draft, plus 1 for "
        "the bonus token; no bonus: without it. draft acceptance: accepted draft tokens divided by draft tokens; in a "
        "tree all nodes are draft tokens. Tokens accepted after a stop or beyond the budget count."
    )
    return Table(
        "acceptance", "Acceptance of drafts", [METHOD, *columns], body, Source([run.id], formula), short="drafts"
    )


def _positions(found: Acceptance) -> str:
    return " ".join(f"{100 * share:.0f}" for at, share in found.positions.items() if at <= _SHOWN)


def _histogram(found: Acceptance) -> str:
    """A bar per number of accepted tokens; the last one includes all larger numbers."""
    if not any(found.histogram.values()):
        return ""
    drafts = [0] * (min(max(found.histogram), _SHOWN) + 1)
    for kept, number in found.histogram.items():
        drafts[min(kept, _SHOWN)] += number
    most = max(drafts)
    return "".join(_BARS[math.ceil((len(_BARS) - 1) * number / most)] for number in drafts)


def definitions_report(engine: str, folder: str, rows: Mapping[str, Sequence[Defined] | None]) -> list[Block]:
    """A run's acceptance with the names and formulas of another tool; a row without drafts has no figures."""
    columns = [
        Column("method", "method", words=True, once=True), Column("figure", "figure", words=True),
        Column("value", "value", words=True),
    ]  # fmt: skip
    body = [
        Row([Cell(label), Cell(each.name), Cell(_value(each.value))])
        for label, found in rows.items()
        for each in found or ()
    ]
    formulas = {each.name: each.formula for found in rows.values() for each in found or ()}
    formula = " ".join(f"{figure_name}: {words}." for figure_name, words in formulas.items())
    silent = [label for label, found in rows.items() if found is None]
    if silent:
        formula = f"{formula} Without drafts, or not counted: {', '.join(silent)}.".strip()
    return [
        Title(f"acceptance as {engine} defines it", folder),
        Table("definitions", "", columns, body, Source([], formula)),
    ]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(each)}" for key, each in value.items())
    if isinstance(value, Sequence):
        return " ".join(map(_value, value))
    return str(value) if isinstance(value, int) else cell.number(value, 3)


def curves_table(curves: AcceptanceCurves, name: str = "") -> Table:
    """Accepted length: a line per draft length, a column per method."""
    labels = list(dict.fromkeys(_curve(row) for row in curves.rows))
    found = {(_curve(row), row.draft_length): row.acceptance for row in curves.rows}
    lengths = sorted({row.draft_length or 0 for row in curves.rows})
    columns = [Column("draft_length", "k"), *(Column(f"accepted_length_{label}", label) for label in labels)]
    body = []
    for length in lengths:
        rows = [found.get((label, length)) for label in labels]
        body.append(Row([cell.count(length), *(cell.interval(row.length if row else None, 2) for row in rows)]))
    formula = (
        "Accepted length by draft length k: accepted draft tokens per draft of at most k tokens, plus 1 for the bonus "
        "token, with its 95% interval over prompts. Greedy, so the same command gives the same figures."
    )
    return Table(
        f"acceptance curve {name}", "Accepted length over draft length", columns, body, Source([name], formula)
    )


def _curve(row: AcceptanceRow) -> str:
    return row.row.rpartition(" ")[0]


def gate_report(letter: str, path: str, found: Mapping[str, Any]) -> list[Block]:
    """Acceptance of a run or sweep against the baseline, A."""
    columns = [
        Column("row", "row", words=True), Column("accepted_length", "accepted length"), Column("ratio", "ratio"),
        Column("tokens_per_forward", "TPF"), Column("failed", f"below {found['least']:g}", words=True),
    ]  # fmt: skip
    body = []
    for row in found["rows"]:
        mine, its = row["accepted_length"]
        cells = [_pair(row["accepted_length"]), cell.figure(its / mine, 3), _pair(row["tokens_per_forward"])]
        body.append(Row([Cell(row["row"]), *cells, Cell(", ".join(row["failed"]), tone="bad")]))
    blocks: list[Block] = [Title(letter, path)]
    if found["differs"]:
        blocks.append(Words([f"{letter} differs from A: {'; '.join(found['differs'])}."], "warning"))
    return [*blocks, Table(f"acceptance {letter}", "", columns, body)]


def _pair(values: Sequence[float | None]) -> Cell:
    return Cell("→".join(cell.number(value, 3) for value in values))


def curves_frame(curves: AcceptanceCurves) -> pd.DataFrame:
    """The curves in long format: a line per method and draft length."""
    import pandas as pd

    from specbench.results import cells_of as columns_of_row

    return pd.DataFrame([columns_of_row(row) for row in curves.rows]).convert_dtypes()
