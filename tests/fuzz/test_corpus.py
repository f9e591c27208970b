"""Corpus: what fuzzing has found stays found. Every input that is kept gives a value or one sentence, soon."""

from __future__ import annotations

import random

import pytest

from fuzz.cases import CORPUS, MOST_OF_A_CASE, Kind, kept, outcome, smallest
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
