"""Prompt lookup against a plain scan of the text for every window, as its published code does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import greedy, language, walk

from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.ar import decoder as ar
from specbench.methods.pld.decoder import Decoder, Options
from specbench.runner.methods import plan_methods

A, B, C, D = 1, 2, 3, 4


def decoder(**options: Any) -> Decoder:
    return Decoder(Options(**options), Context(50, 49, random.Random(0)))


def drafted(text: Sequence[int], **options: Any) -> TokenTree:
    """The tree behind a text, whose last token is the prefill's."""
    made = decoder(**options)
    made.begin(list(text[:-1]))
    made.observe(StepResult([text[-1]], [0], [text[-1]]))
    return made.draft()


def branches(tree: TokenTree) -> list[list[int]]:
    """Tokens below the root of each path to a leaf, by the number of the leaf's row."""
    leaves = [row for row in range(len(tree)) if row not in tree.parents]
    paths = []
    for leaf in leaves:
        path: list[int] = []
        while leaf:
            path.insert(0, tree.tokens[leaf])
            leaf = tree.parents[leaf]
        paths.append(path)
    return [path for path in paths if path]


def draft(text: Sequence[int], **options: Any) -> list[int]:
    """The only continuation, empty where there is none."""
    tree = drafted(text, **options)
    assert list(tree.parents) == list(range(-1, len(tree) - 1))
    assert tree.tokens[0] == text[-1]
    assert tree.accept is None
    return list(tree.tokens[1:])


# ------------------------------------------------------------------ by hand


def test_copies_what_followed_the_last_three_tokens() -> None:
    #       0  1  2  3  4  5  6  7  8
    text = [A, B, C, 7, 8, 9, A, B, C]
    assert draft(text, draft_length=3) == [7, 8, 9]


def test_a_longer_match_goes_before_an_earlier_one() -> None:
    # C alone occurs first, before 5; B C before 6; A B C last, before 7.
    text = [C, 5, 5, B, C, 6, 6, A, B, C, 7, 7, A, B, C]
    assert draft(text, k=2) == [7, 7]
    assert draft(text, k=2, max_ngram=2) == [6, 6]
    assert draft(text, k=2, max_ngram=1) == [5, 5]


def test_backs_off_to_shorter_matches_down_to_the_shortest_allowed() -> None:
    text = [C, 5, 5, 9, 9, D, C]
    assert draft(text, k=2) == [5, 5]
    assert draft(text, k=2, min_ngram=2) == []


def test_a_match_is_used_only_where_a_whole_draft_follows_it() -> None:
    # What follows the match at the end of "A B C" is 7 A B C, the match itself included: 4 tokens and no more.
    text = [A, B, C, 7, A, B, C]
    assert draft(text, k=4) == [7, A, B, C]
    assert draft(text, k=5) == []
    assert draft(text, k=5, full_only=False) == [7, A, B, C]


def test_a_longer_match_without_a_whole_draft_gives_way_to_a_shorter_one() -> None:
    # B C occurs at 3, 4 tokens before the end; C alone at 0.
    text = [C, 5, 6, B, C, 7, B, C]
    assert draft(text, k=4) == [5, 6, B, C]
    assert draft(text, k=4, full_only=False) == [7, B, C]


def test_the_last_tokens_do_not_match_themselves() -> None:
    assert draft([5, 6, 7], full_only=False) == []
    assert draft([5, 6, 6], full_only=False) == [6]  # the first 6 does


def test_earliest_and_latest_of_equally_long_matches() -> None:
    text = [B, C, 5, 5, B, C, 6, 6, B, C, 7, 7, B, C]
    assert draft(text, k=2) == [5, 5]
    assert draft(text, k=2, order="latest") == [7, 7]


def test_latest_first_among_the_longest_matches_only() -> None:
    text = [B, C, 5, 5, C, 6, 6, B, C]
    assert draft(text, k=2, order="latest") == [5, 5]


def test_branches_are_different_and_share_what_they_begin_with() -> None:
    text = [C, 5, 6, C, 5, 6, C, 5, 7, C, 8, 8, C]
    tree = drafted(text, k=2, branches=3)
    assert branches(tree) == [[5, 6], [5, 7], [8, 8]]  # 5 6 comes twice in the text, and once in the tree
    assert list(tree.tokens) == [C, 5, 6, 7, 8, 8]
    assert list(tree.parents) == [-1, 0, 1, 1, 0, 4]
    assert branches(drafted(text, k=2, branches=2)) == [[5, 6], [5, 7]]
    assert branches(drafted(text, k=2, branches=9)) == [[5, 6], [5, 7], [8, 8]]
    assert branches(drafted(text, k=2, branches=2, order="latest")) == [[8, 8], [5, 7]]


def test_branches_of_longer_matches_come_first() -> None:
    text = [C, 5, 5, B, C, 6, 6, B, C]
    assert branches(drafted(text, k=2, branches=2)) == [[6, 6], [5, 5]]


def test_the_output_is_searched_like_the_prompt() -> None:
    made = decoder(k=2)
    made.begin([A, B, 7])
    made.observe(StepResult([8], [0], [8]))
    made.observe(StepResult([9, A, B], [0, 1, 2], [9, A, B]))
    assert list(made.draft().tokens) == [B, 7, 8]
    made.observe(StepResult([7, 8, 9], [0, 1, 2], [7, 8, 9]))
    assert list(made.draft().tokens) == [9, A, B]


# ------------------------------------------------------------------ against a plain scan


def scan(text: Sequence[int], longest: int, shortest: int, length: int, full: bool, latest: bool) -> list[list[int]]:
    """Every continuation in the order of the search: windows of ``longest`` tokens first, from the left."""
    found = []
    for size in range(longest, shortest - 1, -1):
        key = list(text[len(text) - size :])
        starts = [at for at in range(len(text) - size) if list(text[at : at + size]) == key]
        for at in reversed(starts) if latest else starts:
            continuation = list(text[at + size : at + size + length])
            if len(continuation) == length or (continuation and not full):
                found.append(continuation)
    return found


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_drafts_are_those_of_a_plain_scan(
    text: list[int], one: int, other: int, length: int, full: bool, latest: bool, most: int
) -> None:
    shortest, longest = sorted([one, other])
    options = {
        "max_ngram": longest,
        "min_ngram": shortest,
        "draft_length": length,
        "full_only": full,
        "order": "latest" if latest else "earliest",
    }
    expected: list[list[int]] = []
    for continuation in scan(text, longest, shortest, length, full, latest):
        if continuation not in expected:
            expected.append(continuation)
    assert draft(text, **options) == (expected[0] if expected else [])

    tree = drafted(text, branches=most, **options)
    kept = expected[:most]
    beginnings = {tuple(path[:end]) for path in kept for end in range(1, len(path) + 1)}
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(1, len(tree)):
        paths[row] = (*paths[tree.parents[row]], tree.tokens[row])
    rows = [paths[row] for row in range(1, len(tree))]
    assert set(rows) == beginnings
    assert len(rows) == len(beginnings)  # each once
    assert len(tree) <= Decoder.max_rows(Options(branches=most, **options))  # type: ignore[arg-type]


def test_the_draft_of_each_step_is_that_of_a_scan_of_the_text_so_far() -> None:
    for seed in range(10):
        target = language(seed, words=5, memory=1 + seed % 3, period=7)
        prompt = [random.Random(seed).randrange(5) for _ in range(20)]
        walked = walk(decoder(draft_length=4), target, prompt, 80)
        text = list(prompt)
        for tree, before in zip(walked.trees, walked.results, strict=False):
            text += before.emitted
            found = scan(text, 3, 1, 4, True, False)
            assert list(tree.tokens[1:]) == (found[0] if found else [])
        assert walked.output == greedy(target, prompt, len(walked.output))
        assert len(walked.trees) < 79  # some drafts were right


# ------------------------------------------------------------------ nothing to copy


def test_a_text_in_which_nothing_recurs_is_decoded_as_by_ar() -> None:
    prompt = [1, 2, 3]
    lookup, plain = (
        walk(made, lambda prompt, out: 100 + len(out), prompt, 30)
        for made in (decoder(), ar.Decoder(ar.Options(), Context(50, 49, random.Random(0))))
    )
    assert lookup.drafts == plain.drafts
    assert lookup.emitted == plain.emitted == [[101 + step] for step in range(29)]


# ------------------------------------------------------------------ options


def test_the_published_settings_are_the_default() -> None:
    default = plan_methods(["pld"], [])[1]
    assert default.options == plan_methods(["pld"], ["preset=published"])[1].options
    assert default.options.model_dump() == {
        "max_ngram": 3,
        "min_ngram": 1,
        "draft_length": 10,
        "branches": 1,
        "order": "earliest",
        "full_only": True,
    }
    assert default.max_rows == 11


def test_the_transformers_preset_takes_two_tokens_and_what_follows_however_short() -> None:
    method = plan_methods(["pld"], ["preset=transformers"])[1]
    text = [9, B, C, 5, 5, A, B, C, 6, A, B, C]
    made = method.new(Context(50, 49, random.Random(0)))
    made.begin(text[:-1])
    made.observe(StepResult([C], [0], [C]))
    # Two tokens match at most, so the earliest B C wins over the A B C behind it; 9 tokens follow, of 10 wanted.
    assert list(made.draft().tokens) == [C, 5, 5, A, B, C, 6, A, B, C]
    assert len(drafted(text)) == 1  # the published rule drafts nothing here


def test_rows_of_several_branches() -> None:
    assert plan_methods(["pld"], ["branches=3", "k=10"])[1].max_rows == 31


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (["min_ngram=3", "max_ngram=2"], "min_ngram 3 is above max_ngram 2"),
        (["min_ngram=4"], "min_ngram 4 is above max_ngram 3"),
        (["min_ngram=0"], "min_ngram"),
        (["k=0"], "draft_length"),
        (["branches=0"], "branches"),
        (["order=random"], "order"),
        (["k=256", "branches=2"], "513 rows; the limit is 512"),
    ],
)
def test_options_that_are_refused(settings: list[str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        plan_methods(["pld"], settings)
