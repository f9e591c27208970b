"""One document in three formats: the same figures, and nothing that a run has written is taken for markup."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specbench.report.page import charts, svg
from specbench.report.page.build import vocabulary
from specbench.report.page.document import (  # fmt: skip
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
from specbench.report.page.write import PICTURES, to_csv, to_html, to_markdown, write_report

HOSTILE = "<img src=x onerror=alert(1)> | `*_[a](b)\x1b[31m\ud800"
README = Path(__file__).parents[3] / "README.md"


def document(words: str = HOSTILE) -> Document:
    """A document in which every text is ``words``."""
    source = Source([words], words)
    columns = [Column("method", words, words=True), Column("decode_tok_s", words)]
    row = Row([Cell(words), Cell("2.50", 2.5, 2.0, 3.0, under=words)], "r", part=words)
    table = Table("t", words, columns, [row], source)
    drawing = svg.Drawing(10, 10, words)
    drawing.text(1, 1, words)
    line, origins = Line(0, 1, [Piece(words, "pool", "pool")]), {"pool": Origin("p", "pool", words)}
    trace = Trace(words, words, [line], origins, source)
    figure = Figure("f", words, drawing.svg(), words, source)
    blocks: list[Block] = [Words([words], "warning"), Words([words]), table, figure, trace]
    return Document(words, words, [Section("s", words, blocks, under=words)])


def test_html_takes_everything_for_text() -> None:
    page = to_html(document())
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.encode()
    assert page.count("&lt;img") > 10


def test_markdown_takes_everything_for_text() -> None:
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


def test_the_words_are_those_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    found = vocabulary()
    assert found["clock"] in " ".join(text.split())
    assert len(found["term"]) > 10
    for term in found["term"]:
        assert f"| {term['word']} | {term['means']} |" in text


@pytest.mark.parametrize("most", [0.0, 0.03, 1.0, 7.3, 99.0, 12345.0])
def test_ticks_begin_at_nothing_and_end_behind_the_most(most: float) -> None:
    ticks = svg.nice_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most
    assert 2 <= len(ticks) <= 7


def test_drawings_are_xml_and_stay_inside_their_frame() -> None:
    many = [charts.Factors(f"method {at}", 1 + at, 1 / (at + 2), (1 + at) / (at + 2), None, None) for at in range(9)]
    points = [charts.Point("a long name of a method " * 3, 10.0 * at, 0.5, 0.1, 0.9) for at in range(1, 30)]
    from collections import Counter

    drawn = [
        charts.decomposition(many),
        charts.decomposition([charts.Factors("x", 40.0, 0.001, 0.04, 0.01, 0.1)]),
        charts.phases({"m": {"draft": 0.5, "forward": 1e-6}}),
        charts.accepted({"m": Counter({0: 1, 1: 3, 50: 2}), "n": Counter({2: 1})}),
        charts.scatter(points, "tok/s", "right", percent=True, says="x"),
        charts.dumbbells([charts.Dumbbell("x", 4.0, 1.2, None), charts.Dumbbell("y", 2.0, 0.4, 9.0)]),
    ]
    for text in drawn:
        root = ElementTree.fromstring(text)
        wide, high = float(root.attrib["width"]), float(root.attrib["height"])
        assert wide == svg.WIDTH
        for at in root.iter():
            for name, limit in (("x", wide), ("x1", wide), ("x2", wide), ("cx", wide), ("y", high), ("cy", high)):
                if name in at.attrib:
                    assert -0.1 <= float(at.attrib[name]) <= limit + 0.1, (at.tag, at.attrib)
            if "width" in at.attrib and "x" in at.attrib:
                assert float(at.attrib["x"]) + float(at.attrib["width"]) <= wide + 0.1


def test_shares_add_up_and_the_last_bar_has_all_the_rest() -> None:
    from collections import Counter

    found = charts.shares(Counter({1: 2, 3: 1, 8: 1, 40: 4}))
    assert math.fsum(found.values()) == pytest.approx(1)
    assert found[8] == pytest.approx(5 / 8)
    assert charts.kept_word(8) == "8+"
