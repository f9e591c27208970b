"""Tables in a terminal: what gives way where the width is short, and what a medium leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rich.console import Console

from specbench.report.document import NOTHING, Block, Cell, Column, Figure, Row, Source, Table, Title, Words
from specbench.report.render.terminal import render_terminal

NAME = "logitspec draft_length=16"
SPEEDUP = Cell("1.25", 1.25, 1.0, 1.5, under="[1.00, 1.50]", line="1.25 [1.00, 1.50]")


def shown(blocks: Sequence[Block], width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render_terminal(blocks))
    return [line.rstrip() for line in captured.get().splitlines()]


def table(*rows: Row, columns: Sequence[Column] = (), **more: object) -> Table:
    heads = [Column("method", "method", words=True), Column("speedup", "speedup"), *columns]
    return Table("t", "", heads, rows, **more)  # type: ignore[arg-type]


def test_a_cell_without_room_below_has_its_interval_next_to_it() -> None:
    head, _, row = shown([table(Row([Cell("ar"), SPEEDUP]))])
    assert head.split() == ["method", "speedup"]
    assert row == "ar      1.25 [1.00, 1.50]"


@pytest.mark.parametrize("width", [26, 30, 36])
def test_words_wrap_and_figures_stay_whole(width: int) -> None:
    lines = shown([table(Row([Cell(NAME), SPEEDUP]))], width)
    assert max(map(len, lines)) <= width
    assert any("1.25 [1.00, 1.50]" in line for line in lines)
    assert "".join(line[: width - 18].strip() for line in lines[2:]).replace(" ", "") == NAME.replace(" ", "")


def test_a_long_heading_wraps_before_a_word_folds() -> None:
    long = Column("agreement", "share of the memory bandwidth")
    lines = shown([table(Row([Cell("lookahead"), Cell("1.00"), Cell("0.5")]), columns=[long])], 40)
    assert "lookahead" in lines[-1]
    assert "bandwidth" in lines[-3]


def test_a_medium_leaves_out_what_is_not_for_it() -> None:
    columns = [
        Column("cut", "cut", only="page", note="cut: of a page."),
        Column("mb", "MB", only="terminal", note="MB: held."),
        Column("likelihood", "log-lik.", optional=True, note="log-lik.: in nats."),
    ]  # fmt: skip
    body = [Row([Cell("ar"), SPEEDUP, Cell("1"), Cell("2"), NOTHING]), Row([Cell("x")] * 5, only="page")]
    made = table(*body, columns=columns, source=Source(["r"], "All of it."))
    there = made.on("terminal")
    assert [column.key for column in there.columns] == ["method", "speedup", "mb"]
    assert (len(there.rows), there.source.formula) == (1, "All of it. MB: held.")
    page = made.on("page")
    assert [column.key for column in page.columns] == ["method", "speedup", "cut", "likelihood"]
    assert (len(page.rows), page.source.runs) == (2, ["r"])


def test_rows_alike_are_one_and_repeated_words_stand_once() -> None:
    alike = table(Row([Cell("ar"), SPEEDUP]), Row([Cell("pld"), SPEEDUP]), alike=True)
    assert shown([alike])[-1].startswith("ar, pld  1.25")
    once = Column("group", "group", words=True, once=True)
    rows = [Row([Cell("math"), Cell(name)]) for name in ("ar", "pld")]
    lines = shown([Table("t", "", [once, Column("method", "method", words=True)], rows)])
    assert [line.split() for line in lines[2:]] == [["math", "ar"], ["pld"]]


def test_titles_stand_together_and_blocks_apart() -> None:
    lines = shown([Title("A", "one"), Title("B", lines=["two", "!three"]), Words(["four"])])
    assert lines == ["A · one", "B", "two", "three", "", "four"]


def test_a_table_says_its_title_unless_its_first_heading_does() -> None:
    made = Table("t", "End to end", [Column("method", "method", words=True)], [Row([Cell("ar")])])
    assert shown([made])[0] == "End to end"
    short = Table("t", "End to end", made.columns, made.rows, short="end to end")
    assert shown([short])[0] == "end to end"


def test_a_picture_is_refused() -> None:
    with pytest.raises(TypeError):
        shown([Figure("f", "f", "<svg/>", "f", Source())])
