"""Fuzz: mutants of every kind of file that is read give a value or one sentence, never a traceback and never a hang."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import cases
from fuzz.cases import outcome
from kinds_read import KINDS, Kind
from mutants import mutant

from specbench.common.reading import LARGEST
from specbench.evals import own_file

FEW, MANY = 100, 10_000
LONGEST_S = 5.0  # of the processor, for one file: a slow machine does each in a hundredth


def fault(kind: Kind, path: Path) -> str:
    """What is wrong with how a file is read; empty where nothing is."""
    came = outcome(cases.Kind(bytes, lambda content: kind.read(path), seconds=LONGEST_S), b"")
    if came.fault or not came.error or not kind.names_it:
        return came.fault
    named = path.name in str(came.error) or path.parent.name in str(came.error)
    return "" if named else f"does not name the file: {came.error}"


def fuzz(name: str, count: int) -> None:
    kind = KINDS[name]
    good = kind.make()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = Path(folder, kind.file)
        path.write_bytes(good)
        kind.read(path)  # or the mutants were of no such file
        for at in range(count):
            content = mutant(random.Random(f"{name}/{at}"), good, kind.form)
            path.write_bytes(content)
            wrong = fault(kind, path)
            assert not wrong, f"mutant {at} of {name}: {wrong}: {content[:2000]!r}"


@pytest.mark.parametrize("name", KINDS)
def test_mutants_are_read_or_refused_in_a_sentence(name: str) -> None:
    fuzz(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_ten_thousand_mutants_of_each_kind(name: str) -> None:
    fuzz(name, MANY)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # a socket's own path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)  # without a block of it on disk


PLACES: dict[str, Callable[[Path], Any]] = {
    "folder": Path.mkdir, "pipe": os.mkfifo, "socket": _socket, "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"), "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "file that cannot be read": lambda path: path.symlink_to("/proc/self/mem"), "file without end": _large,
    "nothing": lambda path: None, "empty file": Path.touch,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_what_stands_in_a_files_place_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_file, "_LARGEST", LARGEST)  # a user's own prompts may be a whole GiB, which takes its time
    for name, kind in KINDS.items():
        if name in _NO_FILES:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, kind.file)
            PLACES[place](path)
            wrong = fault(kind, path)
            assert not wrong, f"{place} for {name}: {wrong}"


_REPLIES = ("reply of a judge", "stream of a server", "steps of a worker")
_NO_FILES = (*_REPLIES, "claims.toml", *(name for name in KINDS if name.startswith("folder of ")))
