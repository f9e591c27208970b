"""The page's cards: marks where the figures are, names that are nothing but words, and SVG that a page can hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from specbench.report.charts import cards, style
from specbench.results.figures_schema import Accuracy, Speedup

LONG = "a long name of a method " * 9


def speedup(value: float, low: float | None = None, high: float | None = None) -> Speedup:
    return Speedup(value=value, low=low, high=high, verdict="")


HALF = Accuracy(passed=2, scored=4, value=0.5, low=0.1, high=0.9)
MANY = [
    cards.Factors(f"method {at}", 1 + at, 1 / (at + 2), speedup((1 + at) / (at + 2), 0.1, 1.5 + at)) for at in range(14)
]
DRAWN: dict[str, Callable[[str], Figure]] = {
    "decomposition": lambda name: cards.decomposition([cards.Factors(name, 2.0, 0.8, speedup(1.6, 1.5, 1.7)), *MANY]),
    "hardly any speedup": lambda name: cards.decomposition([cards.Factors(name, 1.0, 1.0, speedup(1.0))]),
    "a far one": lambda name: cards.decomposition([cards.Factors(name, 40.0, 0.001, speedup(0.04, 0.01, 0.1))]),
    "phases": lambda name: cards.phases({name: dict.fromkeys("abcdef", 0.5), "n": dict.fromkeys("abcdef", 1e-6)}),
    "no time": lambda name: cards.phases({name: {"draft": 0.0}}),
    "accepted": lambda name: cards.accepted(
        {name: Counter({0: 1, 1: 3, 50: 2}), "n": Counter([2]), "o": Counter([3]), "p": Counter([8])}
    ),
    "dumbbells": lambda name: cards.dumbbells([cards.Dumbbell(name, 4, 1.2, None), cards.Dumbbell("y", 2, 0.4, 9.0)]),
    "scatter": lambda name: cards.scatter({f"{at} {name}": (10.0 * at, HALF) for at in range(1, 30)}, name),
    "nothing right": lambda name: cards.scatter({name: (3.0, Accuracy(passed=0, scored=4, value=0.0))}, "score"),
}


def texts(figure: Figure) -> list[Text]:
    """The words that are seen."""
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("kind", DRAWN)
def test_words_stay_inside_and_apart(kind: str) -> None:
    """By DejaVu Sans, which is wider than what most readers have."""
    with style.styled(style.CARD):
        figure = DRAWN[kind](LONG)
        boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts(figure)]
    wide, high = figure.bbox.width, figure.bbox.height
    slack = figure.dpi / 72  # a point
    for words, box in boxes:
        assert -slack <= box.x0 < box.x1 <= wide + slack, words
        assert -slack <= box.y0 < box.y1 <= high + slack, words
    for at, (words, box) in enumerate(boxes):
        for others, other in boxes[at + 1 :]:
            across, up = (
                (min(box.x1, other.x1) - max(box.x0, other.x0)),
                (min(box.y1, other.y1) - max(box.y0, other.y0)),
            )
            assert across <= slack or up <= 3 * slack, (words, others)


def test_a_drawing_can_stand_in_a_page_with_others() -> None:
    def drawn(name: str) -> str:
        return style.svg(DRAWN["decomposition"]("jf"), name, "words")

    assert drawn("a") == drawn("a")
    assert drawn("a").startswith("<svg ")
    ids = [set(re.findall(r' id="([^"]*)"', drawn(name))) for name in "ab"]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, mine in zip(map(drawn, "ab"), ids, strict=True):
        assert set(re.findall(r'[("]#(\w+)', text)) == mine, "what is referred to is there, and nothing else"
    assert not re.search(r"\.\d{3}", text), "rounded"
    assert "202" not in re.sub(r'"[^"]*"', "", text), "no date"


def test_the_bars_of_a_decomposition_go_to_tpf_and_back_to_the_speedup() -> None:
    (panel,) = cards.decomposition([cards.Factors("m", 2.0, 0.8, speedup(1.6, 1.5, 1.7))]).axes
    tokens, ratio = (bar[0] for bar in panel.containers[:2])
    assert (tokens.get_x(), tokens.get_x() + tokens.get_width()) == (1, 2)
    assert (ratio.get_x(), ratio.get_x() + ratio.get_width()) == pytest.approx((2, 1.6))
    (mark,) = (line for line in panel.lines if line.get_label() == "speedup")
    assert np.asarray(mark.get_xdata()).tolist() == [1.6]
    (whisker,) = panel.findobj(LineCollection)[1:]
    assert isinstance(whisker, LineCollection)
    assert whisker.get_segments()[0][:, 0] == pytest.approx([1.5, 1.7])
    low, high = panel.get_xlim()
    assert low < 1 < 2 < high
    assert 1 in panel.get_xticks()
