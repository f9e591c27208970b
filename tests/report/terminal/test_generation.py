"""The terminal's picture of a generation: golden at two widths, and harmless whatever a model wrote."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support import runs
from support.wording import wording

from specbench.decoding.tree import TokenTree
from specbench.report.answers.generation import Generation, escaped, generation_data, letters
from specbench.results.request_schema import RequestRecord

WORDS = [
    "def", " add", "(a,", " b):", "\n    ", "return", " a + b", "\n\n", "print(", "add(1, 2))", " # 漢字", "\x1b[31m",
    "", " sub", " mul",
]  # fmt: skip
DEF, ADD, A, B, NEW, RETURN, SUM, GAP, PRINT, CALL, NOTE, RED, END, SUB, MUL = range(len(WORDS))


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in ids)


def record(whole: bool = True) -> RequestRecord:
    """Four forwards: a tree of guesses and recycled n-grams, a chain, one too long for a line, and the end."""
    branched = TokenTree(
        [DEF, ADD, A, SUB, MUL, SUB, A],
        [-1, 0, 1, 0, 0, 4, 5],
        origins=["", "guess", "noise", "pool", "pool", "pool", "pool"],
    )
    body = [B, NEW, RETURN, SUM, GAP, PRINT, CALL, NOTE, NEW, PRINT, CALL]
    long = TokenTree.chain(body, origins="lookup")
    steps = [
        (branched, [0, 1, 2], B), (long, range(len(body)), RED), (TokenTree.chain([RED, *[CALL] * 9]), [0], GAP),
        (TokenTree.chain([GAP]), [0], END),
    ]  # fmt: skip
    return runs.traced_record(decode, DEF, steps, stop_ids=[END], method="jf", prompt="HumanEval/0", whole=whole)


def printed(made: RequestRecord, columns: int, **terminal: object) -> str:
    console = Console(width=columns, file=io.StringIO(), **{"color_system": None, **terminal})  # type: ignore[arg-type]
    console.print(Generation(made))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(made: RequestRecord, columns: int) -> str:
    return "\n".join(line.rstrip() for line in printed(made, columns).splitlines())


def test_at_eighty_columns_and_with_nothing_broken_at_a_hundred_and_forty() -> None:
    assert wording(shown(record(), 80))
    lines = shown(record(), 140).splitlines()
    body = "⟨l:\\n    │return│ a + b│\\n\\n│print(│add(1, 2))│ # 漢字│\\n    │print(│add(1, 2))⟩\\x1b[31m"
    assert f"   2   11     11 {body}" in lines
    assert f"                 ✗ ⟨d:{'│'.join(['add(1, 2))'] * 9)}⟩" in lines
    assert len(lines) == len(shown(record(), 80).splitlines()) - 2
    text = shown(record(whole=False), 80)
    assert "✗" not in text
    assert "--trace" in text


def test_colours_stand_for_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(record(), 80, force_terminal=True, color_system="standard", no_color=False)
    assert "⟨" not in text
    assert "\x1b[32m add\x1b[0m" in text  # a guess
    assert "\x1b[31m(a,\x1b[0m" in text  # noise
    assert "\x1b[2;9;35m sub\x1b[0m" in text  # rejected: dim and struck through
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(record(), 80, force_terminal=True, color_system="standard")
    assert "⟨g: add⟩" in text


@given(st.text())
def test_no_text_reaches_the_terminal_unprintable(text: str) -> None:
    found = escaped(text)
    assert found.isprintable()
    assert not set(found) & set("⟨⟩│∎◌␣✗"), "brackets and signs are ours"
    assert found.encode("latin-1", "backslashreplace").decode("unicode_escape") == text


def test_names_are_escaped_and_origins_have_letters_of_their_own() -> None:
    made = runs.traced_record(
        decode, DEF, [(TokenTree.chain([DEF, ADD], origins="w\x1b[2J"), [0, 1], A)], prompt="p\x1b[2J"
    )
    for columns in (80, 140):
        assert "\x1b" not in shown(made, columns)
    found = letters(["bonus", "guess", "gamble", "garble", "noise"])
    assert found == {"bonus": "", "guess": "g", "gamble": "a", "garble": "r", "noise": "n"}


def test_data() -> None:
    data = generation_data(record())
    assert (data["request_id"], data["tokens_per_forward"], data["origins"]["lookup"]) == ("jf|HumanEval/0|0", 4.0, 10)
    assert "".join(token["text"] for step in data["steps"] for token in step["tokens"]) == record().text
    assert [len(step["drafts"] or []) for step in data["steps"]] == [0, 6, 10, 9, 0]
