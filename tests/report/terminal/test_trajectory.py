"""A trajectory and a round in the terminal: golden, at any width, and harmless whatever a model wrote."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from support import runs

from specbench.decoding.tree import TokenTree
from specbench.report.terminal.round import ROWS, RoundTree
from specbench.report.terminal.trajectory import TrajectoryGrid
from specbench.results.rounds import round_of
from specbench.results.schema import RequestRecord
from specbench.results.trajectory import trajectory

WORDS = ["def", " add", "(a,", " b):", "\n    ", "return", " a + b", "\x1b[31m", "", "漢字漢字", "[red]", "$x$"]


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in ids)


def record(words: Sequence[str] = WORDS) -> RequestRecord:
    """Three forwards: a chain with a token that stays right, a tree with scores, and the end."""
    chain = TokenTree.chain([0, 7, 9, 3, 8, 10], origins=["", "guess", "guess", "guess", "noise", "noise"])
    tree = TokenTree(
        [1, 2, 3, 10, 11, 9, 6], [-1, 0, 1, 0, 2, 2, 3], [True, True, True, True, True, True, False],
        ["", "head", "head", "head", "head", "head", "window"], [None, -0.5, -0.25, -2.0, -0.105, -3.0, None],
    )  # fmt: skip
    last = TokenTree.chain([4, 5, 6], origins="lookup")
    steps = [(chain, [0], 1), (tree, [0, 1, 2], 4), (last, [0, 1, 2], 11)]

    def said(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids)

    return runs.traced_record(said, 0, steps, budget=8, method="jf", prompt="HumanEval/0")


def printed(made: RenderableType, columns: int, **terminal: object) -> str:
    console = Console(width=columns, file=io.StringIO(), **{"color_system": None, **terminal})  # type: ignore[arg-type]
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


GRID = """\
jf on HumanEval/0: 3 states over 8 positions

position  0       1       2       3       4       5       6       7
answer    def      add    (a,      b):    \\n      return   a + b  $x$
   1   +1 »def    ✗\\x1b[… ✗漢字…  ● b):   ✗◌      ✗[red]
   2   +3         » add   ✓(a,    ✓ b):   ✗$x$
   3   +3                                 »\\n     ✓return ✓ a + b

» root       3 emitted before this forward
✓ accepted   4 draft accepted by this forward
● stationary 1 right ahead of its turn, until it is accepted
○ right      0 right, but not accepted here, and lost again or drawn at random
≈ misplaced  0 in a run of 3 or more that stands elsewhere in the answer
✗ wrong      5 any other draft
2.33 tokens per forward; 2 of 3 forwards are fast-forwards, of 6 tokens, 2.00
per forward; stationary tokens: 1; misplaced: 0.
out: tokens that a forward emitted; ◌ a token without text of its own."""

TREE = """\
jf on HumanEval/0, forward 2 of 3: 7 rows, 2 accepted, 3 rejected, 3 emitted

depth token        log p   p origin
    0 »  add                 bonus
    1   ✗ [red]    -2.00 14% head
    2   ◇  a + b             window
    1 ✓ (a,        -0.50 61% head
    2 ✓  b):       -0.25 78% head
    3   ▸ $x$      -0.10 90% head
    3   ✗ 漢字漢字 -3.00  5% head
    3 + \\n                   bonus

» last token emitted before; ✓ accepted; ▸ top pick not taken: the drafter's
best-scored child there; ✗ rejected; ◇ draft-only: its forward only generates
drafts; + the target's own next token.
log p: natural log-probability that the drafter gave a token under its parent;
p: the same as a share."""


def test_golden() -> None:
    assert printed(TrajectoryGrid(trajectory(record())), 80) == GRID
    assert printed(RoundTree(round_of(record(), 2)), 80) == TREE


def views(made: RequestRecord) -> list[RenderableType]:
    return [TrajectoryGrid(trajectory(made)), *(RoundTree(round_of(made, number)) for number in (1, 2, 3))]


@given(st.lists(st.text(max_size=12), min_size=len(WORDS), max_size=len(WORDS)), st.integers(20, 160))
def test_no_text_reaches_the_terminal_as_anything_but_text(words: list[str], columns: int) -> None:
    for view in views(record(words)):
        said = printed(view, columns)
        assert all(cell_len(line) <= columns for line in said.splitlines())
        assert not [one for one in said if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Zl")]


@pytest.mark.parametrize("columns", [1, 5, 12, 17, 24])
def test_a_terminal_that_is_too_narrow_is_no_error(columns: int) -> None:
    for view in views(record()):
        assert printed(view, columns)


def test_colours_add_nothing_but_themselves() -> None:
    for view in views(record()):
        coloured = printed(view, 100, force_terminal=True, color_system="truecolor")
        assert "\x1b[" in coloured
        console = Console(width=100, file=io.StringIO(), force_terminal=True, no_color=True)
        console.print(view)
        assert isinstance(console.file, io.StringIO)
        assert "»" in console.file.getvalue()
        assert "✗" in console.file.getvalue() or "✓" in console.file.getvalue()
        assert "[3" not in console.file.getvalue().replace("\\x1b[3", ""), "a colour"


def test_of_a_wide_tree_the_rest_is_counted() -> None:
    wide = TokenTree([0, *[2] * 80, *[3] * 5], [-1, *[0] * 85], [True] * 81 + [False] * 5)
    made = runs.traced_record(decode, 0, [(wide, [0, 7], 1)], budget=3)
    said = printed(RoundTree(round_of(made, 1)), 80)
    assert said.count("✗ (a,") == ROWS - 2
    assert f"{86 - ROWS}" in said
    assert "log p" not in said, "without scores"


def test_the_figures_of_a_tree_are_there_beside_words_of_any_length() -> None:
    tree = TokenTree([10, 11], [-1, 0], None, "[/x]" * 20, [None, -0.5])
    made = runs.traced_record(lambda ids: "".join(" word" * 30 for _ in ids), 10, [(tree, [0, 1], 40)], budget=8)
    said = printed(RoundTree(round_of(made, 1)), 60)
    assert "-0.50 61%" in said
    assert "[/x][/x]" in said, "an origin is a method's own word, and no markup"
    assert max(map(cell_len, said.splitlines())) <= 60


def test_a_long_answer_takes_as_long_as_it_is() -> None:
    """Each window looks at the states that reach it alone: twice the answer is twice the work and not four times."""

    def looked_at(forwards: int) -> int:
        steps = [(TokenTree.chain([at, 7, 8], origins="guess"), [0], at + 1) for at in range(forwards)]
        made = trajectory(runs.traced_record(lambda ids: "x" * len(ids), 0, steps, budget=forwards + 1))
        counted = [Counted(state) for state in made.states]
        said = printed(TrajectoryGrid(replace(made, states=counted)), 80)  # type: ignore[arg-type]
        assert sum(" +1 " in line for line in said.splitlines()) >= forwards
        return sum(one.asked for one in counted)

    class Counted:
        def __init__(self, state: object) -> None:
            self.asked, self._state = 0, state

        def __getattr__(self, name: str) -> object:
            self.asked += 1
            return getattr(self._state, name)

    assert looked_at(400) < 2.2 * looked_at(200)
