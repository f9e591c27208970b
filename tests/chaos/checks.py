"""Check the folder and the exit of a command after it was disturbed."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.commands import Ended

#: Exit codes that the README documents for commands that did not succeed.
DOCUMENTED = {1, 2, 3, 4, 5, 6, 7, 130, 143}


def whole(folder: Path) -> None:
    """Check that every JSON file and every line is complete, except an interrupted last line.

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
    """Return the complete lines of every file of records, by file."""
    return {
        str(file.relative_to(folder)): [
            line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        for file in sorted(folder.rglob("*.jsonl"))
    }


def kept(before: dict[str, list[str]], after: dict[str, list[str]]) -> int:
    """Check that all finished lines are still unchanged; return their number.

    Raises:
        AssertionError: names the file.
    """
    for file, lines in before.items():
        found = after.get(file)
        assert found is not None, f"{file} is gone, and {len(lines)} finished lines with it"
        assert found[: len(lines)] == lines, f"{file} has lost or changed some of {len(lines)} finished lines"
    return sum(map(len, before.values()))


def ended_with(ended: Ended, codes: set[int], what: str = "") -> None:
    """Check that the command ended with one of these codes and an error line that contains ``what``.

    Raises:
        AssertionError: describes how it ended.
    """
    shown = f"exit code {ended.code}: {ended.err[-900:]}"
    assert "Traceback" not in ended.err, shown
    assert "Exception ignored" not in ended.err, shown
    assert ended.code in codes, shown
    if ended.code in DOCUMENTED:
        assert any(line.startswith("error: ") for line in ended.err.splitlines()), shown
    assert what in ended.err, f"the error does not contain {what}; {shown}"
