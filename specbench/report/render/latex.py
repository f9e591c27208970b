"""Render a table as LaTeX with the rules of booktabs, ready to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from specbench.common import escape_control
from specbench.report.document import DASH, Cell, Column, Row, Table

_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "†": r"$^\dagger$", "‡": r"$^\ddagger$", "–": "--", "×": r"$\times$", "τ": r"$\tau$", "γ": r"$\gamma$",
}  # fmt: skip


def to_latex(table: Table) -> str:
    """A ``table`` environment, which needs ``\\usepackage{booktabs}``; grouped columns get a heading of their own."""
    shown = table.on("page")
    aligned = "".join("l" if column.words else "r" for column in shown.columns)
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    if shown.title:
        lines.append(rf"\caption{{{_text(shown.title)}}}")
    lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", *_heads(shown.columns), r"\midrule"]
    for row, above in zip(shown.rows, [None, *shown.rows], strict=False):
        lines.append(_row(row, above, shown.columns))
    lines += [r"\bottomrule", r"\end{tabular}"]
    if shown.source.formula:
        lines.append(rf"\par\footnotesize {_text(shown.source.formula)}")
    return "\n".join([*lines, r"\end{table}", ""])


def _heads(columns: Sequence[Column]) -> Iterator[str]:
    """The headings, under a line of their groups if a group has several columns."""
    groups = [(name, len([*some])) for name, some in groupby(columns, lambda column: column.group)]
    if not any(name and count > 1 for name, count in groups):
        yield f"{' & '.join(_text(column.title) for column in columns)} \\\\"
        return
    tops, rules, at = [], [], 1
    for name, count in groups:
        tops.append(rf"\multicolumn{{{count}}}{{c}}{{{_text(name)}}}" if name else " & ".join([""] * count))
        rules += [rf"\cmidrule(lr){{{at}-{at + count - 1}}}"] if name else []
        at += count
    yield f"{' & '.join(tops)} \\\\"
    yield " ".join(rules)
    yield f"{' & '.join(_text(column.title.removeprefix(column.group).strip()) for column in columns)} \\\\"


def _row(row: Row, above: Row | None, columns: Sequence[Column]) -> str:
    cells = []
    for at, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        again = (
            column.once
            and above is not None
            and all(
                mine.text == theirs.text
                for mine, theirs in zip(row.cells[: at + 1], above.cells[: at + 1], strict=True)
            )
        )
        cells.append("" if again else _cell(cell))
    return f"{' & '.join(cells)} \\\\"


def _cell(cell: Cell) -> str:
    text = _text(cell.text if cell.text != DASH else "–")
    text = rf"\textbf{{{text}}}" if cell.strong else text
    return rf"{text} {{\scriptsize {_text(cell.under)}}}" if cell.under else text


def _text(text: str) -> str:
    """Escape characters that LaTeX would interpret, on one line."""
    return "".join(_ESCAPED.get(character, character) for character in escape_control(text, lines=False))
