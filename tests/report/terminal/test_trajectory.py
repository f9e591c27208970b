"""A trajectory and a round in the terminal: golden, at any width, and harmless whatever a model wrote."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from support import runs

from specbench.analysis.tracing.rounds import round_of
from specbench.analysis.tracing.trajectories import trajectory
from specbench.decoding.tree import TokenTree
from specbench.report.answers.round_tree import RoundTree
from specbench.report.answers.states_grid import TrajectoryGrid
from specbench.results.request_schema import RequestRecord

WORDS = ["def", " add", "(a,", " b):", "\n    ", "return", " a + b", "\x1b[31m", "", "漢字漢字", "[red]", "$x$"]


def record(words: Sequence[str] = WORDS) -> RequestRecord:
    """Three forwards: a chain with a token that stays right, a tree with scores, and the end."""
    chain = TokenTree.chain([0, 7, 9, 3, 8, 10], origins=["", "guess", "guess", "guess", "noise", "noise"])
    tree = TokenTree(
        [1, 2, 3, 10, 11, 9, 6], [-1, 0, 1, 0, 2, 2, 3], [True, True, True, True, True, True, False],
        ["", "head", "head", "head", "head", "head", "window"], [None, -0.5, -0.25, -2.0, -0.105, -3.0, None],
    )  # fmt: skip
    last = TokenTree.chain([4, 5, 6], origins="lookup")
    steps = [(chain, [0], 1), (tree, [0, 1, 2], 4), (last, [0, 1, 2], 11)]

    def shown_text(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids)

    return runs.traced_record(shown_text, 0, steps, budget=8, method="jf", prompt="HumanEval/0")


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
● stationary 1 right before its turn, and until it is accepted
○ right      0 right but not accepted here; lost again later, or a random guess
≈ misplaced  0 part of 3 or more tokens that occur elsewhere in the answer
✗ wrong      5 any other draft
2.33 tokens per forward; 2 of 3 forwards are fast-forwards, with 6 tokens, 2.00
per forward; stationary tokens: 1; misplaced: 0.
out: tokens emitted by a forward; ◌ a token without text of its own."""

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

» last token emitted before this forward; ✓ accepted; ▸ top pick not accepted:
the drafter's best-scored child there; ✗ rejected; ◇ draft-only: computed only
to generate drafts; + the target's own next token.
log p: natural log-probability of a token after its parent, under the drafter;
p: the same as a share."""


def test_golden() -> None:
    assert printed(TrajectoryGrid(trajectory(record())), 80) == GRID
    assert printed(RoundTree(round_of(record(), 2)), 80) == TREE


def views(made: RequestRecord) -> list[RenderableType]:
    return [TrajectoryGrid(trajectory(made)), *(RoundTree(round_of(made, number)) for number in (1, 2, 3))]


@given(st.lists(st.text(max_size=12), min_size=len(WORDS), max_size=len(WORDS)), st.integers(20, 160))
def test_no_text_reaches_the_terminal_as_anything_but_text(words: list[str], columns: int) -> None:
    for view in views(record(words)):
        shown_text = printed(view, columns)
        assert all(cell_len(line) <= columns for line in shown_text.splitlines())
        assert not [
            one for one in shown_text if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Zl")
        ]
