"""Which characters are whose, whatever the tokenizer does, and what a step leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import runs
from support.wording import wording

from specbench.decoding.tree import TokenTree
from specbench.models.loaded_model import ByteTokenizer, LoadedModel
from specbench.results.request_schema import LETTERS
from specbench.runner.stop import Decode
from specbench.runner.trace import characters, verified

as_bytes = ByteTokenizer().decode


def texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """The part of the text that each id has."""
    counts = characters(ids, decode)
    assert len(counts) == len(ids)
    text = decode(ids)
    assert sum(counts) == len(text)
    return [text[start:end] for start, end in pairwise(accumulate(counts, initial=0))]


def test_whose_a_character_is() -> None:
    assert texts(list("né€!".encode()), as_bytes) == ["n", "", "é", "", "", "€", "!"]
    assert texts([0x41, 0xE2, 0x82], as_bytes) == ["A", "", "�"]
    assert texts([0xFF, 0x41, 0x42], as_bytes) == ["", "�A", "B"]
    assert texts([1, 2, 3], sentencepiece) == ["w1", " w2", " w3"]
    # The blank of the first token is gone once the full stop is there: it was no one's.
    assert texts([0, 1, 2], merging) == ["a", ".", " b"]


@given(st.lists(st.integers(0, 299), max_size=40))
def test_the_parts_of_any_bytes_are_the_text(ids: list[int]) -> None:
    texts(ids, as_bytes)  # ids from 256 on are special: they have no text


def merging(ids: Sequence[int]) -> str:
    """A tokenizer that mends blanks in what is already written, as ``clean_up_tokenization_spaces`` does."""
    return "".join({0: "a ", 1: ".", 2: " b"}[i] for i in ids).replace(" .", ".")


def sentencepiece(ids: Sequence[int]) -> str:
    """Words that begin with a blank, except at the beginning of a text."""
    return "".join(f" w{i}" for i in ids).lstrip(" ")


def test_a_real_tokenizer(smollm2: LoadedModel) -> None:
    written = "def naïve(x):\n    return '🙂' * x  # 漢字\n"
    ids = smollm2.tokenizer(written)["input_ids"]
    found = texts(ids, smollm2.decode)
    assert "".join(found) == written
    assert "" in found  # the emoji is several tokens
    assert "def" in found
    end = smollm2.tokenizer.eos_token_id
    assert texts([*ids, end], smollm2.decode)[-1] == ""


def test_a_step_keeps_its_tree_only_when_asked() -> None:
    tree = TokenTree.chain([1, 2, 3], origins=["guess", "guess", "noise"])
    assert verified(tree, [0, 1, 2], whole=False) == (3, None, ["guess", "noise"], None)
    assert verified(tree, [0], whole=True) == (3, None, [], (tree, [0]))
    assert verified(TokenTree.chain([1, 2, 3], origins="lookup"), [0, 1], whole=False).origins == ["lookup"]


CHAIN = TokenTree.chain([1, 2, 3, 4], origins=["guess", "guess", "guess", "noise"])


@pytest.mark.parametrize("whole", [False, True])
def test_origins_are_a_letter_per_kept_token(whole: bool) -> None:
    made = runs.traced_record(as_bytes, 1, [(CHAIN, [0, 1, 2], 9), (CHAIN, [0], 9)], whole=whole)
    assert made.tokens is not None
    assert made.tokens.words[:3] == ["prefill", "guess", "bonus"]
    assert made.tokens.origins == "abbcc"
    assert made.tokens.rows == [4, 4]
    assert (made.tokens.drafts is not None) == whole


def test_what_a_stop_cuts_is_kept_next_to_the_text_without_a_bonus() -> None:
    made = runs.traced_record(as_bytes, 1, [(CHAIN, [0, 1, 2, 3], 9)], budget=3)
    assert made.tokens is not None
    assert made.tokens.origins == "abb"
    assert made.tokens.drafts is not None
    assert made.tokens.drafts[0].path == [1, 2, 3]  # the forward accepted them all the same
    draft = TokenTree.chain(list(b"aXSTOPab"))
    made = runs.traced_record(as_bytes, ord("a"), [(draft, range(8), ord("c"))], stops=["STOP"])
    assert made.tokens is not None
    assert (made.text, made.tokens.tail) == ("aX", "STOP")
    assert made.tokens.chars == [1] * 6


def test_a_draft_is_written_down_in_full_and_a_chain_in_short() -> None:
    tree = TokenTree([65, 66, 67, 68], [-1, 0, 0, 1], [True, True, False, True], ["", "pool", "window", "pool"])
    made = runs.traced_record(as_bytes, 65, [(tree, [0, 1], 70), (TokenTree.chain([70, 66]), [0], 71)])
    assert made.tokens is not None
    assert made.tokens.drafts is not None
    first, second = made.tokens.drafts
    assert (first.ids, first.parents, first.draft_only, first.path) == ([66, 67, 68], [0, 0, 1], [2], [1])
    words = made.tokens.words
    assert [words[LETTERS.index(letter)] for letter in first.origins] == ["pool", "window", "pool"]
    assert (second.ids, second.parents, second.draft_only, second.path) == ([66], None, [], [])
    assert made.tokens.pieces == {66: "B", 67: "C", 68: "D"}


def test_a_tree_has_one_origin_or_one_for_each_row_and_a_letter_for_each() -> None:
    tree = TokenTree.chain(range(80), origins=[f"word{row}" for row in range(80)])
    with pytest.raises(ValueError, check=wording):
        runs.traced_record(lambda ids: "".join(map(str, ids)), 0, [(tree, [0], 1)])
    with pytest.raises(ValueError, check=wording):
        TokenTree.chain([1, 2, 3], origins=["guess", "guess"])


def test_scores_are_kept_rounded_with_the_whole_tree_and_leave_no_trace_where_there_are_none() -> None:
    def steps(scores: Any) -> list[runs.Taken]:
        return [(TokenTree([1, 2, 3, 4], [-1, 0, 0, 1], scores=scores), [0, 2], 5)]

    def drafts(scores: Any, **more: Any) -> Any:
        return runs.traced_record(sentencepiece, 1, steps(scores), **more).model_dump(mode="json")["tokens"]["drafts"]

    (found,) = drafts([None, -0.123456, math.inf, -math.inf])
    assert found["scores"] == [-0.1235, None, None]
    for nothing in (None, [None] * 4, lambda tree: [None, -math.inf, None, None]):
        (found,) = drafts(nothing)
        assert "scores" not in found

    def never(tree: TokenTree) -> list[float | None]:
        raise AssertionError("found although no one traces")

    assert drafts(never, whole=False) is None
