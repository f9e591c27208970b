"""Guided: inputs made of those that have reached new branches, by atheris (libFuzzer), where that is installed.

It takes a draw of our own mutants, which know the forms of the inputs, in every second step and its own in the others.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.run import Trial

MISSING = "atheris is not installed: pip install atheris, or leave --guided out"
_LONGEST = 1 << 17  # bytes of an input
_SLOWER = 8  # than without saying which branches are taken, at most


@contextmanager
def watching() -> Iterator[None]:
    """What is imported inside says which of its branches are taken.

    Raises:
        ImportError: atheris is not installed.
    """
    import atheris

    with (
        contextlib.redirect_stderr(io.StringIO()),  # it names each module
        atheris.instrument_imports(include=["specbench"], enable_loader_override=False),
    ):
        yield


def draw(trial: Trial, folder: Path) -> None:
    """Tries inputs until the time is over, and ends this process.

    Args:
        trial: has its good inputs and those that are kept.
        folder: for what it begins with.
    """
    import atheris

    trial.kinds = {name: replace(kind, seconds=_SLOWER * kind.seconds) for name, kind in trial.kinds.items()}
    seeds, names = folder / "seeds", list(trial.kinds)
    seeds.mkdir()
    for number, name in enumerate(names):
        for at, content in enumerate(trial.pool[name]):
            (seeds / f"{number}-{at}").write_bytes(bytes([number]) + content)
    one, other = made(trial, names, lambda content, most: bytes(atheris.Mutate(content, most)))
    # The first byte is the kind. Time and memory are limited by our own means, each input by itself.
    without = ("rss_limit_mb", "malloc_limit_mb", "timeout", "handle_alrm", "len_control")
    flags: dict[str, object] = dict.fromkeys(without, 0)
    flags |= {"max_len": _LONGEST, "seed": 1 + random.Random(trial.seed).randrange(1 << 30)}
    flags["artifact_prefix"] = f"{folder}/"
    argv = [sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(seeds)]
    atheris.Setup(argv, one, custom_mutator=other)
    atheris.Fuzz()


def made(
    trial: Trial, names: list[str], library: Callable[[bytes, int], bytes]
) -> tuple[Callable[[bytes], None], Callable[[bytes, int, int], bytes]]:
    """What tries an input, and what makes another of one.

    Args:
        trial: takes them.
        names: of its kinds.
        library: makes another content, of so many bytes at most.
    """

    def one(data: bytes) -> None:
        if time.monotonic() > trial.until:
            trial.write()
            os._exit(0)
        if data:
            trial.tried(names[data[0] % len(names)], data[1:])

    def other(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        number = data[0] % len(names) if data else draw.randrange(len(names))
        ours = draw.random() < 0.5
        content = trial.varied(draw, names[number], data[1:]) if ours else library(data[1:], most - 1)
        return bytes([number]) + content[: most - 1]

    return one, other
