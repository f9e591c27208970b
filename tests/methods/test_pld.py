"""Prompt lookup against a plain scan of the text for every window, as its published code does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.decoders import decided, greedy, language, walk

from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.methods.pld.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

A, B, C, D = 1, 2, 3, 4


def decoder(**options: Any) -> Decoder:
    return Decoder(Options(**options), Context(50, 49, random.Random(0)))


def drafted(text: Sequence[int], **options: Any) -> TokenTree:
    """The tree after a text, whose last token is the prefill's."""
    made = decoder(**options)
    made.begin(list(text[:-1]))
    made.observe(decided([text[-1]]))
    return made.draft()


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """Tokens below the root on the path to each row after it."""
    found: list[tuple[int, ...]] = [()]
    for row in range(1, len(tree)):
        found.append((*found[tree.parents[row]], tree.tokens[row]))
    return found[1:]


def branches(tree: TokenTree) -> list[list[int]]:
    """The paths to the leaves."""
    return [list(path) for row, path in enumerate(paths(tree), 1) if row not in tree.parents]


def draft(text: Sequence[int], **options: Any) -> list[int]:
    """The only continuation, empty where there is none."""
    tree = drafted(text, **options)
    assert list(tree.parents) == list(range(-1, len(tree) - 1))
    assert tree.tokens[0] == text[-1]
    assert tree.accept is None
    return list(tree.tokens[1:])


# ------------------------------------------------------------------ by hand


def test_branches_are_different_and_share_what_they_begin_with() -> None:
    text = [C, 5, 6, C, 5, 6, C, 5, 7, C, 8, 8, C]
    tree = drafted(text, k=2, branches=3)
    assert branches(tree) == [[5, 6], [5, 7], [8, 8]]  # 5 6 comes twice in the text, and once in the tree
    assert list(tree.tokens) == [C, 5, 6, 7, 8, 8]
    assert list(tree.parents) == [-1, 0, 1, 1, 0, 4]
    assert branches(drafted(text, k=2, branches=2, order="latest")) == [[8, 8], [5, 7]]
    assert branches(drafted([C, 5, 5, B, C, 6, 6, B, C], k=2, branches=2)) == [[6, 6], [5, 5]]  # longer matches first


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
    st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_drafts_are_those_of_a_plain_scan(
    text: list[int], sizes: list[int], length: int, full: bool, latest: bool, most: int
) -> None:
    shortest, longest = sizes
    options: dict[str, Any] = {"max_ngram": longest, "min_ngram": shortest, "draft_length": length, "full_only": full}
    options["order"] = "latest" if latest else "earliest"
    expected: list[list[int]] = []
    for continuation in scan(text, longest, shortest, length, full, latest):
        if continuation not in expected:
            expected.append(continuation)
    assert draft(text, **options) == (expected[0] if expected else [])

    tree = drafted(text, branches=most, **options)
    beginnings = {tuple(path[:end]) for path in expected[:most] for end in range(1, len(path) + 1)}
    rows = paths(tree)
    assert set(rows) == beginnings
    assert len(rows) == len(beginnings)  # each once
    assert len(tree) <= Decoder.max_rows(Options(branches=most, **options))


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


# ------------------------------------------------------------------ options


def test_the_transformers_preset_takes_two_tokens_and_what_follows_however_short() -> None:
    method = plan_methods(["pld"], ["preset=transformers"])[1]
    text = [9, B, C, 5, 5, A, B, C, 6, A, B, C]
    made = method.new(Context(50, 49, random.Random(0)))
    made.begin(text[:-1])
    made.observe(decided([C]))
    # Two tokens match at most, so the earliest B C wins over the A B C after it; 9 tokens follow, of 10 wanted.
    assert list(made.draft().tokens) == [C, 5, 5, A, B, C, 6, A, B, C]
    assert len(drafted(text)) == 1  # the published rule drafts nothing here
