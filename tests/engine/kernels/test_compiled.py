"""The kernels are those that were last compiled for every GPU generation, which takes minutes and is done when they
change: `pytest -m slow tests/engine/kernels`, and then this file as a script writes down what was compiled."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from specbench.engine import kernels

SOURCES = sorted(Path(kernels.__file__ or "").parent.glob("*.py"))
RECORD = Path(__file__).with_name("compiled.sha256")


def digest() -> str:
    return hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in SOURCES)).hexdigest()


def test_the_kernels_are_those_that_were_compiled() -> None:
    assert len(SOURCES) > 5
    assert RECORD.read_text().split() == [digest()], "kernels have changed: see the head of this file"


if __name__ == "__main__":
    RECORD.write_text(f"{digest()}\n")
    sys.stdout.write(f"{RECORD.name} written\n")
