"""The stop rule reads tokens one by one: how many of them a forward brings must change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.runner.stop import Output, StopRule, cut

# A byte-level vocabulary: whole letters, merges over the borders of stop strings, halves of a two-byte and thirds of a
# three-byte character, and two special tokens, which decode to nothing.
PIECES = [
    b"a", b"b", b"`", b"``", b"\n", b"\n`", b"a\n", b"`b", b"ab",
    b"\xc3", b"\xa9", "é".encode(), b"\xe2", b"\x82", b"\xac", b"\xc3\xa9a",
    b"", b"",
]  # fmt: skip
STOP, PAD = 16, 17
TICKS, SPLIT_TICKS = "\n```", [5, 3]  # "\n`" + "``"


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode(errors="replace")


def ids_of(text: str) -> list[int]:
    """``text`` in one-byte tokens."""
    return [PIECES.index(bytes([byte])) for byte in text.encode()]


def run(
    tokens: Sequence[int],
    chunks: Sequence[int] = (1,),
    *,
    stops: Sequence[str] = (),
    stop_ids: Sequence[int] = (STOP,),
    budget: int = 1000,
) -> Output:
    """Feeds ``tokens``, cut into chunks of these sizes over and over, until the answer ends or they run out."""
    output = Output(StopRule(frozenset(stop_ids), tuple(stops), budget, decode))
    at = turn = 0
    while output.reason is None and at < len(tokens):
        size = chunks[turn % len(chunks)]
        before = len(output.ids)
        taken = output.extend(tokens[at : at + size])
        assert taken == len(output.ids) - before
        at, turn = at + size, turn + 1
    assert len(output.ids) + output.overshoot == min(at, len(tokens))
    return output


def expected(
    tokens: Sequence[int], stops: Sequence[str], stop_ids: Sequence[int], budget: int
) -> tuple[list[int], str | None]:
    """The definition, computed slowly: look at everything so far after every single token."""
    for end in range(1, len(tokens) + 1):
        ids = list(tokens[:end])
        if any(stop in decode(ids) for stop in stops):
            return ids, "stop-string"
        if ids[-1] in stop_ids:
            return ids, "stop"
        if end == budget:
            return ids, "length"
    return list(tokens), None


def few_specials(tokens: Sequence[int]) -> bool:
    # The window that is searched for a stop string allows for so many tokens without text inside it, and says so.
    return sum(token >= STOP for token in tokens) <= 4


STREAMS = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=40).filter(few_specials)
CHUNKS = st.lists(st.integers(1, 12), min_size=1, max_size=5)
STOPS = st.lists(st.sampled_from([TICKS, "``", "ab", "é", "€", "b\n", "a\na", "éa", "`€"]), max_size=3, unique=True)


@settings(max_examples=300)
@given(STREAMS, CHUNKS, STOPS, st.sets(st.sampled_from([STOP, PAD, 8])), st.integers(1, 45))
def test_any_chunking_ends_where_the_definition_says(
    tokens: list[int], chunks: list[int], stops: list[str], stop_ids: set[int], budget: int
) -> None:
    ids, reason = expected(tokens, stops, list(stop_ids), budget)
    output = run(tokens, chunks, stops=stops, stop_ids=list(stop_ids), budget=budget)
    assert (output.ids, output.reason) == (ids, reason)
    assert output.text() == cut(decode(ids), stops)


@settings(max_examples=300)
@given(STREAMS, CHUNKS, STOPS)
def test_the_tail_is_what_the_text_does_not_need(tokens: list[int], chunks: list[int], stops: list[str]) -> None:
    output = run(tokens, chunks, stops=stops)
    tail = output.stop_tail()
    if output.reason != "stop-string":
        assert tail == 0
        return
    kept = len(output.ids) - tail
    assert decode(output.ids[:kept]).startswith(output.text())  # nothing of the answer is in the tail
    assert kept == 0 or not decode(output.ids[: kept - 1]).startswith(output.text())  # and nothing else is left of it


@pytest.mark.parametrize("chunk", range(1, 9))
def test_a_stop_string_split_over_tokens(chunk: int) -> None:
    output = run([0, 1, *SPLIT_TICKS, 0, 0, 0], [chunk], stops=[TICKS])
    assert (output.ids, output.reason, output.text()) == ([0, 1, *SPLIT_TICKS], "stop-string", "ab")
    assert output.stop_tail() == 2
    assert output.overshoot == -(-4 // chunk) * chunk - 4 if chunk < 7 else 3


def test_of_several_stop_strings_the_earliest_in_the_text_wins() -> None:
    for stops in (["ab", "``"], ["``", "ab"]):
        output = run([1, 3, 0, 1], [4], stops=stops)
        assert (output.ids, output.text()) == ([1, 3], "b")
    output = run([0, 7], [2], stops=["b", "a`"])  # "a" + "`b"
    assert (output.ids, output.text()) == ([0, 7], "")
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one two", ["x"]) == "one two"
    assert cut("one two", []) == "one two"
    assert cut("one", ["one"]) == ""


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "tail"),
    [
        pytest.param([0, 5, 3], TICKS, "a", 2, id="string of two tokens"),
        pytest.param([0, 6, 2, 3], TICKS, "aa", 2, id="first token half in the answer"),
        pytest.param([8], "b", "a", 0, id="one token that is both"),
        pytest.param([5, 3], TICKS, "", 2, id="nothing before the string"),
        pytest.param([0, 0, PAD, 5, 3], TICKS, "aa", 3, id="a token without text before it"),
        # A length in characters would take the halves for a whole: "\xc3" decodes to one replacement character.
        pytest.param([9, 10, 3], "``", "é", 1, id="a character in two tokens before the string"),
        pytest.param([12, 13, 14, 3], "``", "€", 1, id="a character in three tokens before the string"),
        pytest.param([0, 3], "x", "a``", 0, id="no stop string at all"),
    ],
)
def test_stop_tail(tokens: list[int], stop: str, text: str, tail: int) -> None:
    output = run(tokens, [4], stops=[stop])
    assert (output.text(), output.stop_tail()) == (text, tail)


@pytest.mark.parametrize("chunk", [1, 4, 11])
def test_a_stop_string_is_looked_for_over_as_many_tokens_as_it_has_bytes(chunk: int) -> None:
    output = run([0, *ids_of("€€€"), 0], [chunk], stops=["€€€"])
    assert (len(output.ids), output.reason, output.text()) == (10, "stop-string", "a")
    output = run([0, 1, *[PAD] * 4, 0, 0], [chunk], stops=["aba"])  # and over four more that decode to no text
    assert (len(output.ids), output.reason, output.text()) == (7, "stop-string", "")
