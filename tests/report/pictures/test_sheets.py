"""Pictures of trajectories and rounds: well-formed SVG with every word as text, whatever a model wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from support import runs
from support.wording import wording

from specbench.analysis.tracing.rounds import round_of
from specbench.analysis.tracing.trajectories import trajectory
from specbench.decoding.tree import ORIGINS, TokenTree
from specbench.report.charts.round_chart import round_svg
from specbench.report.charts.states_chart import trajectory_svg
from specbench.results.request_schema import RequestRecord

WORDS = ["def", " a$b$", "x\ny", " b):", "\u202egnp.", "<script>", " 漢字", "\x1b[31m", "", "&amp;"]


def record(words: Sequence[str] = WORDS) -> RequestRecord:
    def shown_text(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids)

    tree = TokenTree(
        [0, 1, 2, 5, 6, 7], [-1, 0, 1, 0, 1, 2], [True, True, True, True, True, False],
        ["", "head", "head", "a\u202eb$", "head", "window"], [None, -0.5, -0.25, -0.125, -3.0, None],
    )  # fmt: skip
    chain = TokenTree.chain([3, 4, 9, 8], origins=["", "guess", "guess", "noise"])
    return runs.traced_record(shown_text, 0, [(tree, [0, 1, 2], 3), (chain, [0, 1], 5)], budget=6)


def texts(svg: str) -> list[str]:
    """Its words, after a parser has found it well-formed."""
    return ["".join(found.itertext()) for found in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_trajectory_has_every_token_with_its_sign() -> None:
    shown_text = texts(trajectory_svg(trajectory(record()), "t"))
    assert wording(shown_text[0])
    for cell in ("»def", "✓ a$b$", "✓x\\ny", "» b):", "✓\\u202e…", "✗&amp;"):
        assert cell in shown_text
    assert {"accepted", "stationary", "misplaced", "+3", "forward"} <= {*shown_text}


def test_a_round_has_its_tokens_scores_and_origins() -> None:
    shown_text = texts(round_svg(round_of(record(), 1), "r"))
    for cell in ("»def", "✓ a$b$", "✓x\\ny", "+ b):", "▸<script>", "✗ 漢字", "◇\\x1b[31m", "61%", "78%", "88%", "5%"):
        assert cell in shown_text
    assert {"a\\u202eb$", "top pick not accepted", *(f"{word}: {ORIGINS[word]}" for word in ("head", "window"))} <= {
        *shown_text
    }
    untitled = texts(round_svg(round_of(record(), 1), "r", titled=False))
    assert len(untitled) == len(shown_text) - 1


def test_a_whole_round_draws_every_row() -> None:
    """Two blocks of 32 and a branch of 20: a page shows a part of them, a picture of its own all."""
    words, branch = [f"w{at}" for at in range(90)], range(64, 84)
    origins = ["", *["guess"] * 31, *["block"] * 30, *["block-noise"] * 2, *["pool"] * 20]
    tree = TokenTree([*range(84)], [-1, *range(63), 0, *branch[:-1]], None, origins)
    made = runs.traced_record(lambda ids: "".join(words[i] for i in ids), 0, [(tree, [0, 1], 85)], budget=4)
    found = round_of(made, 1)
    part, whole = texts(round_svg(found, "r")), texts(round_svg(found, "r", whole=True))
    assert {f"✗w{at}" for at in range(2, 84)} <= {*whole}
    assert len({*part} & {f"✗w{at}" for at in range(2, 84)}) < 40
    assert {f"{word}: {ORIGINS[word]}" for word in ("guess", "block", "block-noise", "pool")} <= {*whole}
    assert any(text.startswith("60 to 63") for text in whole), "deep rows continue below"


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(max_size=9), min_size=len(WORDS), max_size=len(WORDS)))
def test_any_text_is_text(words: list[str]) -> None:
    made = record(words)
    for svg in (trajectory_svg(trajectory(made), "t"), round_svg(round_of(made, 1), "r")):
        tags = {found.tag.rpartition("}")[2] for found in ElementTree.fromstring(svg).iter()}
        assert not tags & {"script", "a", "image", "foreignObject"}
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]", svg)
