"""Checks: what has to hold of a folder and of an exit, whatever has happened to the command."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.commands import Ended

#: What README says that a command may come to, where not all went well.
DOCUMENTED = {1, 2, 3, 4, 5, 6, 7, 130, 143}


def whole(folder: Path) -> None:
    """Every JSON file is JSON, and every line but a last one that was cut off; nothing half-written has its name.

    Raises:
        AssertionError: names the file.
    """
    for file in sorted(folder.rglob("*.json")):
        try:
            json.loads(file.read_text())
        except ValueError as error:
            raise AssertionError(f"{file.relative_to(folder)} is half-written: {error}") from None
    for file in sorted(folder.rglob("*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines(keepends=True), 1):
            if line.endswith("\n"):
                try:
                    json.loads(line)
                except ValueError as error:
                    raise AssertionError(f"{file.relative_to(folder)} line {number} is damaged: {error}") from None


def finished(folder: Path) -> dict[str, list[str]]:
    """Whole lines of every file of records, by file."""
    return {
        str(file.relative_to(folder)): [
            line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        for file in sorted(folder.rglob("*.jsonl"))
    }


def kept(before: dict[str, list[str]], after: dict[str, list[str]]) -> int:
    """Whether what was finished is there still, as it was; how many lines that is.

    Raises:
        AssertionError: names the file.
    """
    for file, lines in before.items():
        found = after.get(file)
        assert found is not None, f"{file} is gone, and {len(lines)} finished lines with it"
        assert found[: len(lines)] == lines, f"{file} has lost or changed some of {len(lines)} finished lines"
    return sum(map(len, before.values()))


def said(ended: Ended, codes: set[int], what: str = "") -> None:
    """Whether it ended with one of these codes, in a sentence.

    Raises:
        AssertionError: says how it ended.
    """
    shown = f"exit code {ended.code}: {ended.err[-900:]}"
    assert "Traceback" not in ended.err, shown
    assert "Exception ignored" not in ended.err, shown
    assert ended.code in codes, shown
    if ended.code in DOCUMENTED:
        assert any(line.startswith("error: ") for line in ended.err.splitlines()), shown
    assert what in ended.err, f"nothing is said of {what}; {shown}"
