"""Circles at an answer's end, runs of a token, and sentences that come up again and again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from specbench.training.data.answers import before_run, cut_circle, without_circles
from specbench.training.data.sentences import before_repeat, sentences
from specbench.training.recipe import Text


def test_rounds_beyond_those_kept_are_cut() -> None:
    start = [90, 91, 92]
    for circle, keep in product(([7], [1, 2], [5, 6, 7, 5], list(range(40))), (1, 2, 3)):
        found = list(cut_circle([*start, *circle * (keep + 3)], keep))
        assert found[: len(start) + keep * len(circle)] == [*start, *circle * keep]
        assert len(found) < len(start) + (keep + 1) * len(circle)
    # A round that was broken off is cut with the others.
    assert list(cut_circle([9, *[1, 2, 3] * 5, 1, 2], 2)) == [9, *[1, 2, 3] * 2]


def test_others_stay_as_they_are() -> None:
    for answer in ([], [1], [1, 1, 1], [1, 2, 3, 4] * 3, [*[1, 2] * 9, 3], list(range(300))):
        assert cut_circle(answer, 3) == answer
    assert len(cut_circle(list(range(10)) * 6, 2, longest=9)) == 60  # a circle longer than looked for


def test_zero_keeps_everything() -> None:
    texts = [Text("a", [1], [4] * 50)]
    assert without_circles(texts, 0) == texts
    assert [list(text.answer) for text in without_circles(texts, 3)] == [[4] * 3]


def test_an_answer_is_sound_up_to_a_run() -> None:
    for answer, sound in (([], 0), ([1], 1), ([1, 1, 1], 2), ([1, 2, 2, 3, 3, 3, 3], 5), ([1, 1, 2, 1, 1], 5)):
        assert before_run(answer, 3) == sound


def test_sentences_end_at_marks_with_a_blank_after_and_at_line_breaks() -> None:
    long = "x" * 16
    chinese = "这是一个很长的句子它有十六个字以上。"
    text = f"  {long}. 3.14 {long}?{long}!  Yes.  {long}  {long}\n\n  {long}\n}}\n{chinese}{long}"
    found = list(sentences(text))
    assert [sentence for _, sentence in found] == [
        f"{long}.", f"3.14 {long}?{long}!", f"{long} {long}", long, chinese, long
    ]  # fmt: skip
    assert all(text[start:].split()[0] == sentence.split()[0] or "。" in sentence for start, sentence in found)
    assert list(sentences("")) == list(sentences(" \n ")) == []


def characters(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def test_an_answer_is_sound_before_a_sentence_comes_up_too_often() -> None:
    one, other = "I think it is twelve.", "It is thirteen apples."
    text = f"{one} Yes. {other} {one}\nYes. Yes. {one} {other} {other}"
    ids = list(map(ord, text))
    starts = {2: text.index(one, 1), 3: text.index(one, text.index(one, 1) + 1)}
    for most, sound in {**starts, 4: len(text)}.items():
        assert before_repeat(ids, characters, most) == sound
    twice = list(map(ord, f"{one}  {one.upper()} {one} so"))  # what is written otherwise is another sentence
    assert before_repeat(twice, characters, 3) == len(twice)
    assert before_repeat([], characters, 2) == 0


def test_a_token_that_reaches_into_the_sentence_is_its_first() -> None:
    pieces = ["A long sentence, ", "it is", ". ", "So", ".\nA lo", "ng sentence,", " it is."]

    def decode(ids: Sequence[int]) -> str:
        return "".join(pieces[each] for each in ids)

    assert before_repeat(range(7), decode, 2) == 4
    halves = list("A long sentence. A long sentence. Ж long sentence, Ж long sentence,\nЖ long".encode())

    def bytes_decoded(ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    assert before_repeat(halves, bytes_decoded, 2) == 17
