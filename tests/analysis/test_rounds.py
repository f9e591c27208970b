"""Rounds: what became of each row of a tree, which rows are worth a place, and which forward tells most."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import oracles, runs
from support.decoders import random_tree
from support.wording import wording

from specbench.analysis.tracing.rounds import Round, round_of, telling_round
from specbench.common import UsageError
from specbench.decoding.tree import TokenTree
from specbench.results.request_schema import RequestRecord


def decode(ids: Sequence[int]) -> str:
    return "".join(f" {i}" for i in ids)


def scored() -> RequestRecord:
    """Root 10; the drafter prefers 20 to 11; after 11 it has 12 and a draft-only row with a high score."""
    tree = TokenTree(
        [10, 20, 11, 12, 30, 31, 21, 13],
        [-1, 0, 0, 2, 2, 3, 1, 3],
        [True, True, True, True, False, True, True, True],
        ["", "head", "head", "head", "window", "head", "head", "head"],
        [None, -0.25, -1.5, -0.5, -0.01, -2.0, -0.75, None],
    )
    return runs.traced_record(decode, 10, [(tree, [0, 2, 3], 40), (TokenTree.chain([40, 41]), [0], 42)], budget=5)


def test_a_worked_round() -> None:
    found = round_of(scored(), 1)
    assert [row.row for row in found.rows if row.accepted] == [0, 2, 3]
    # 20 has a better score than 11; after 12 no row with a score was accepted; draft-only rows are never a top pick.
    assert [row.row for row in found.rows if row.missed] == [1, 5]
    assert [row.depth for row in found.rows] == [0, 1, 1, 2, 2, 3, 2, 3]
    assert [row.path_score for row in found.rows] == [0.0, -0.25, -1.5, -2.0, -1.51, -4.0, -1.0, None]
    assert (found.accepted, found.rejected, found.emitted) == (2, 4, 3)
    assert (found.bonus_id, found.bonus, found.root, found.number, found.forwards) == (40, " 40", 0, 1, 2)
    assert [row.row for row in found.children[0]] == [2, 1]
    assert [row.row for row in found.children[2]] == [3, 4], "a draft-only row comes last"
    assert [row.row for row in found.children[3]] == [5, 7], "rows without a score come last"
    assert round_of(scored(), 2).rows[0].text == " 40"


def test_an_answer_that_ends_on_the_path_has_no_bonus_token() -> None:
    made = runs.traced_record(decode, 10, [(TokenTree.chain([10, 11, 12, 13]), [0, 1, 2, 3], 14)], budget=3)
    found = round_of(made, 1)
    assert (found.emitted, found.accepted, found.bonus, found.bonus_id) == (2, 3, None, None)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_forward_that_there_is_not(number: int) -> None:
    with pytest.raises(UsageError, check=wording):
        round_of(scored(), number)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[RequestRecord, Round]:
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    tree = random_tree(rng, 0, 4, rng.randint(2, 30))
    scores = [rng.choice([None, -0.5, -round(rng.random(), 4)]) for _ in tree.tokens] if rng.random() < 0.8 else None
    path = [0]
    while under := [
        row
        for row in range(1, len(tree))
        if tree.parents[row] == path[-1] and (tree.accept is None or tree.accept[row]) and rng.random() < 0.8
    ]:
        path.append(rng.choice(under))
    made = TokenTree(tree.tokens, tree.parents, tree.accept, scores=scores)
    record = runs.traced_record(decode, 0, [(made, path, 9)], budget=1 + len(path))
    return record, round_of(record, 1)


@given(rounds(), st.integers(1, 40))
def test_any_round(made: tuple[RequestRecord, Round], most: int) -> None:
    record, found = made
    assert {row.row for row in found.rows if row.missed} == oracles.missed(record.model_dump(mode="json"), 1)
    drawn = found.best_rows(most)
    assert {row.row for row in found.rows if row.accepted} <= drawn
    assert all(found.rows[row].parent in drawn for row in drawn - {0})
    assert len(drawn) == len(found.rows) or len(drawn) >= most
    assert sorted(row.row for under in found.children.values() for row in under) == list(range(1, len(found.rows)))


def test_the_best_rows_are_those_of_the_best_paths() -> None:
    found = round_of(scored(), 1)
    assert found.best_rows(1) == {0, 2, 3}, "the path is always there"
    assert found.best_rows(5) == {0, 2, 3, 1, 5}, "then what was missed on it"
    assert found.best_rows(6) == {0, 2, 3, 1, 5, 6}
    assert found.best_rows(7) == {0, 2, 3, 1, 5, 6, 7}, "a draft-only row last"


def test_the_telling_round() -> None:
    def step(root: int, right: int, wrong: int, *, branch: bool = True) -> runs.Taken:
        """``right`` accepted rows in a chain, and ``wrong`` others: under the root, or after the chain."""
        tokens = [root, *range(50, 50 + right), *[99] * wrong]
        parents = [0] * wrong if branch else range(right, right + wrong)
        return TokenTree(tokens, [-1, *range(right), *parents]), range(right + 1), root + 1

    def tells(*steps: runs.Taken) -> int | None:
        return telling_round(runs.traced_record(decode, steps[0][0].tokens[0], steps, budget=200))

    assert tells(step(1, 2, 3), step(2, 1, 9), step(3, 4, 5), step(4, 2, 6)) == 4, "most rejected of two accepted"
    assert tells(step(1, 2, 3), step(2, 1, 9), step(3, 2, 6), step(4, 4, 6)) == 3, "of equals the first"
    assert tells(step(1, 0, 9), step(2, 1, 2), step(3, 1, 3), step(4, 0, 20)) == 3, "none accepted two"
    assert tells(step(1, 0, 2), step(2, 0, 3)) == 2
    assert tells(step(1, 3, 4, branch=False), step(2, 1, 1)) == 2, "a chain is no tree"
    assert tells(step(1, 3, 4, branch=False)) is None
    window = TokenTree([1, 5, 6, 7], [-1, 0, 0, 0], [True, True, False, False])
    assert tells((window, [0, 1], 2)) is None, "draft-only rows make no tree"
