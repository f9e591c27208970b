"""A picture's bytes come from what is drawn and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from support.asserting import known
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.report.charts import style


@style.styled()
def drawn(title: str = "a title", note: str = "a note") -> Figure:
    figure, ((panel,),) = style.panels(height=3)
    panel.plot([1, 2, 4], [1, 3, 2], label="a line", **style.series(0))
    panel.legend()
    style.titled(figure, title, note)
    return figure


def chunks(png: bytes) -> list[bytes]:
    """Types of the chunks of a PNG."""
    found, at = [], 8
    while at < len(png):
        found.append(png[at + 4 : at + 8])
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return found


def test_bytes_repeat_under_any_configuration_and_tell_no_time(tmp_path: Path) -> None:
    first = style.save(drawn(), tmp_path / "first.png").read_bytes()
    readers: dict[Any, Any] = {"font.size": 30, "savefig.dpi": 50, "axes.facecolor": "red", "legend.loc": "center"}
    with matplotlib.rc_context(readers):
        again = style.save(drawn(), tmp_path / "again.png").read_bytes()
    assert again == first
    assert style.save(drawn("another title"), tmp_path / "other.png").read_bytes() != first
    png = style.save(drawn(), tmp_path / "picture.png").read_bytes()
    assert set(chunks(png)) == {b"IHDR", b"pHYs", b"IDAT", b"IEND"}
    with pytest.raises(EnvironmentRefused, check=wording):
        style.save(drawn(), tmp_path / "no such folder" / "picture.png")
    assert {path.name for path in tmp_path.iterdir()} == {"first.png", "again.png", "other.png", "picture.png"}


def test_settings_of_the_reader_and_dollars_are_as_they_were() -> None:
    with matplotlib.rc_context({"font.size": 30}):
        drawn()
        assert matplotlib.rcParams["font.size"] == 30
    figure = drawn("costs $1 or $2", "a $note$")
    assert [text.get_text() for text in figure.texts] == ["costs $1 or $2", "a $note$"]
    assert [text.get_parse_math() for text in figure.texts] == [False, False]


def test_long_titles_and_notes_are_wrapped_inside_the_figure() -> None:
    figure = drawn("wide words " * 30, "many a word of a note " * 30)
    figure.draw_without_rendering()
    width = figure.bbox.width
    above, below = figure.texts
    assert 0.6 * width < above.get_window_extent().x1 <= width
    assert 0.6 * width < below.get_window_extent().x1 <= width
    panel = known(figure.axes[0].get_tightbbox())
    assert below.get_window_extent().y1 <= panel.y0
    assert panel.y1 <= above.get_window_extent().y0
