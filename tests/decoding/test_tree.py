"""A token tree refuses shapes that the engine's masks would misread."""

from __future__ import annotations

from typing import Any

import pytest
from support.wording import wording

from specbench.decoding.tree import Proposal, TokenTree


def test_malformed_trees_are_refused() -> None:
    malformed: Any = [
        ([], [], None),
        ([5, 6], [-1], None),
        ([5, 6], [-1, 0], [True]),
        ([5, 6], [0, 0], None),
        ([5, 6, 7], [-1, 0, 2], None),
        ([5, 6, 7], [-1, 2, 0], None),
        ([5, 6], [-1, -1], None),
    ]
    for tokens, parents, accept in malformed:
        with pytest.raises(ValueError, check=wording):
            TokenTree(tokens, parents, accept)
    # Duplicate siblings and any order of parents are allowed.
    assert len(TokenTree([5, 6, 6, 7], [-1, 0, 0, 1], [True, True, False, True])) == 4


def test_scores_are_one_for_each_row_whether_they_are_there_or_found_later() -> None:
    with pytest.raises(ValueError, check=wording):
        TokenTree.chain([5, 6, 7], scores=[None, -0.5])
    with pytest.raises(ValueError, check=wording):
        TokenTree.chain([5, 6], scores=lambda tree: [None] * 3).row_scores()
    asked: list[TokenTree] = []

    def scores(tree: TokenTree) -> list[float | None]:
        asked.append(tree)
        return [None, *(-float(token) for token in tree.tokens[1:])]

    made = TokenTree.chain([5, 6, 7], scores=scores)
    assert (len(made), made == TokenTree.chain([5, 6, 7]), asked) == (3, True, []), "asked before anybody looks"
    assert (made.row_scores(), asked) == ((None, -6.0, -7.0), [made])
    assert TokenTree.chain([5, 6]).row_scores() is None


def test_what_has_a_proposal_is_a_chain_that_may_be_emitted_with_a_row_for_each_draft() -> None:
    rows: Any = [[0.5, 0.5]] * 2  # any sequence of rows: a tree looks at their number only
    made = TokenTree.chain([5, 6, 7], proposal=Proposal(rows))
    assert made == TokenTree.chain([5, 6, 7])
    assert repr(made) == repr(TokenTree.chain([5, 6, 7]))
    assert len(TokenTree.chain([5], proposal=Proposal([]))) == 1  # type: ignore[arg-type]
    for tree, accept in (([-1, 0, 0], None), ([-1, 0, 1], [True, True, False])):
        with pytest.raises(ValueError, check=wording):
            TokenTree([5, 6, 7], tree, accept, proposal=Proposal(rows))
    for tokens in ([5, 6], [5, 6, 7, 8], [5]):
        with pytest.raises(ValueError, check=wording):
            TokenTree.chain(tokens, proposal=Proposal(rows))
