"""One document in three formats: the same figures, and nothing that a run has written is taken for markup."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from specbench.report.charts import cards, style
from specbench.report.document import (  # fmt: skip
    Block,
    Cell,
    Column,
    Document,
    Figure,
    Line,
    Origin,
    Piece,
    Row,
    Section,
    Source,
    Table,
    Trace,
    Words,
)
from specbench.report.page.write import PICTURES, write_report
from specbench.report.render.csv import to_csv
from specbench.report.render.html import to_html
from specbench.report.render.markdown import to_markdown
from specbench.results.figures_schema import Speedup

HOSTILE = "<img src=x onerror=alert(1)> | `*_[a](b)\x1b[31m\ud800"


def document(words: str = HOSTILE) -> Document:
    """A document in which every text is ``words``."""
    source = Source([words], words)
    columns = [Column("method", words, words=True), Column("decode_tok_s", words)]
    row = Row([Cell(words), Cell("2.50", 2.5, 2.0, 3.0, under=words)], "r", part=words)
    table = Table("t", words, columns, [row], source)
    drawn = style.svg(
        cards.decomposition([cards.Factors(words, 2.0, 0.5, Speedup(value=1.0, verdict=""))]), words, words
    )
    line, origins = Line(0, 1, [Piece(words, "pool", "pool")]), {"pool": Origin("p", "pool", words)}
    trace = Trace(words, words, [line], origins, source)
    figure = Figure("f", words, drawn, words, source)
    blocks: list[Block] = [Words([words], "warning"), Words([words]), table, figure, trace]
    return Document(words, words, [Section("s", words, blocks, under=words)])


def test_html_and_markdown_take_everything_for_text() -> None:
    page = to_html(document())
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.encode()
    assert page.count("&lt;img") > 10
    text = to_markdown(document(), PICTURES)
    outside = re.sub(r"```text.*?```", "", text, flags=re.DOTALL)
    assert "<img" not in outside.replace(r"\<img", "")
    assert text.encode()
    (row,) = [line for line in text.splitlines() if line.startswith("|") and "2.50" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3, "two cells"
    assert " Runs: words." in to_markdown(document("words"), PICTURES)


def test_csv_has_a_line_for_each_figure() -> None:
    first, *rest = csv.DictReader(io.StringIO(to_csv(document("words"))))
    assert (first["figure"], first["text"]) == ("method", "words")
    (figure,) = rest
    assert (figure["table"], figure["run"], figure["row"], figure["figure"]) == ("t", "r", "words", "decode_tok_s")
    assert [float(figure[end]) for end in ("value", "low", "high")] == [2.5, 2.0, 3.0]


def test_a_report_replaces_the_pictures_of_the_one_before(tmp_path: Path) -> None:
    write_report(document("a"), tmp_path)
    (tmp_path / PICTURES / "old.svg").write_text("")
    (tmp_path / PICTURES / "mine.txt").write_text("")
    write_report(document("a"), tmp_path)
    assert {file.name for file in (tmp_path / PICTURES).iterdir()} == {"f.svg", "mine.txt"}
