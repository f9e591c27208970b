"""The kernels are those that were last compiled for three GPU generations, and what they took is in a table.

Compiling takes minutes and is done when kernels change: `pytest -m slow tests/engine/kernels/test_compiles.py`, and
then this file as a script, with `tests` on the path, writes down what was compiled.
"""

from __future__ import annotations

import csv
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.kernels import builds, cases, over_limits, tools

from specbench.engine import kernels

SOURCES = sorted(Path(kernels.__file__ or "").parent.glob("*.py"))
RECORD, TABLE = Path(__file__).with_name("compiled.sha256"), Path(__file__).with_name("compiled.csv")
CAPABILITIES = (80, 90, 100)
COUNTS = ("threads", "registers", "shared", "spilled")
COLUMNS = ("kernel", "configuration", "arch", *COUNTS)


def digest() -> str:
    return hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in SOURCES)).hexdigest()


def table() -> list[dict[str, Any]]:
    """The committed table's lines; its first one says what compiled them."""
    head, *lines = TABLE.read_text().splitlines()
    assert head.startswith("# triton ")
    return [row | {name: int(row[name]) for name in COUNTS} for row in csv.DictReader(lines)]


def test_the_kernels_are_those_that_were_compiled() -> None:
    assert len(SOURCES) > 5
    assert RECORD.read_text().split() == [digest()], "kernels have changed: see the head of this file"


def test_the_table_has_every_kernel_and_each_fits_its_card() -> None:
    found = [(row["kernel"], row["configuration"], row["arch"]) for row in table()]
    wanted = [(case.kernel, case.configuration, f"sm_{arch}") for arch in CAPABILITIES for case in cases(arch)]
    assert found == wanted
    assert [row for row in table() if over_limits(row)] == []


def write() -> None:
    with tempfile.TemporaryDirectory() as cache, TABLE.open("w", newline="") as file:
        file.write(f"# {tools()}\n")
        rows = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        rows.writeheader()
        for capability in CAPABILITIES:
            rows.writerows(builds(capability, Path(cache)))
    RECORD.write_text(f"{digest()}\n")


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{TABLE.name} and {RECORD.name} written\n")
