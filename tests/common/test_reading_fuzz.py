"""Fuzz: mutants of every kind of file that is read give a value or one sentence, never a traceback and never a hang."""

from __future__ import annotations

import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kinds_read import KINDS, Kind, prompts
from mutants import mutant

from specbench.common.errors import SpecbenchError
from specbench.common.reading import LARGEST

FEW, MANY = 100, 10_000
LONGEST_S = 5.0  # of the processor, for one file: a slow machine does each in a hundredth


class Hung(BaseException):
    """Reading took too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends what does not end."""

    def end(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(kind: Kind, path: Path) -> str:
    """What is wrong with how a file is read; empty where nothing is."""
    began = time.process_time()
    try:
        with limited():
            kind.read(path)
    except SpecbenchError as error:
        said = str(error)
        if not said.isprintable() or len(said) > 1200:
            return f"no sentence: {said[:300]!r}"
        if kind.names_it and path.name not in said and path.parent.name not in said:
            return f"does not name the file: {said}"
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return f"{type(error).__name__}: {str(error)[:300]}"
    spent = time.process_time() - began
    return f"{spent:.1f} s" if spent > LONGEST_S else ""


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
    monkeypatch.setattr(prompts, "_LARGEST", LARGEST)  # a user's own prompts may be a whole GiB, which takes its time
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
