"""Corpus: what fuzzing has found stays found. Every input that is kept gives a value or one sentence, soon."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from fuzz import guided
from fuzz.cases import CORPUS, MOST_OF_A_CASE, Kind, Outcome, kept, outcome, sentence_class, smallest
from fuzz.run import Trial
from fuzz.targets import TARGETS
from specbench.common.errors import UsageError


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_kept_is_a_value_or_a_sentence(target: str) -> None:
    kinds = TARGETS[target]()
    found = list(kept(target, kinds))
    assert found
    for name, content, file in found:
        came = outcome(kinds[name], content)
        assert not came.fault, f"{target}/{file}: {came.fault}\n{content!r}"


def test_it_is_small_and_of_kinds_that_there_are() -> None:
    files = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == {*TARGETS}
    assert len(files) <= 160
    assert all(file.stat().st_size <= MOST_OF_A_CASE for file in files)


def test_guided_inputs_are_of_both_makers_and_reach_their_kind(tmp_path: Path) -> None:
    trial = Trial("toys", {"a": KIND, "b": KIND}, tmp_path, "1", math.inf, pool={"a": [], "b": []})
    one, other = guided.made(trial, ["a", "b"], lambda content, most: (b"library" + content)[:most])
    found = [other(b"\x03some content", 40, seed) for seed in range(100)]
    assert {each[0] for each in found} == {1}, "the kind stays"
    assert 20 < sum(each.startswith(b"\x01library") for each in found) < 80
    assert len({*found}) > 20
    assert max(map(len, found)) <= 40
    one(b"")
    one(b"\x00good")
    assert (trial.cases, (tmp_path / "now").read_bytes()) == (1, b"a\ngood")


def _read(content: bytes) -> None:
    if b"loop" in content:
        while True:
            pass
    if b"refuse" in content:
        raise UsageError("'this' cannot be read; mend it")
    if b"two lines" in content:
        raise UsageError("")
    if b"trace" in content:
        raise KeyError(content)


KIND = Kind(lambda: b"good", _read, seconds=0.1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"good", ""), (b"refuse", "UsageError: ~ cannot be read; mend it"), (b"two lines", "fault: no sentence: ''"),
        (b"trace", "fault: KeyError, in test_corpus.py _read"),
        (b"loop", "fault: over 0.1 s of processor time, in test_corpus.py _read"),
    ],
)  # fmt: skip
def test_what_it_comes_to(content: bytes, expected: str) -> None:
    assert outcome(KIND, content).key == expected


def test_the_smallest_comes_to_the_same() -> None:
    large = random.Random(1).randbytes(300) + b"trace" + random.Random(2).randbytes(300)
    came = outcome(KIND, large)
    assert smallest(large, lambda less: outcome(KIND, less).key == came.key, 5) == b"trace"


def test_sentences_that_differ_in_what_they_quote_are_one_class() -> None:
    said = ("the run of '/x/y' has 3 lines (not 4)", "the run of 'z' has 12 lines (no)")
    assert sentence_class(said[0]) == sentence_class(said[1])
    assert sentence_class("a is missing") != sentence_class("a is damaged")
    assert Outcome().key == ""
