"""The exact questions of the benchmarks, from the data files on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specbench.common import EnvironmentRefused, UsageError, registry
from specbench.evals.data import DataFile, is_present, manifest, resolve_file
from specbench.evals.rows import numbered

#: Fewest characters of a question that is recognised; shorter ones occur by chance.
SHORTEST = 40

_LABEL = re.compile(r"[A-Za-z]+:\s")  # "Question: …", as in plain-text prompts


def known_questions(data_dir: Path | None = None) -> dict[str, str]:
    """The task of each question, by its words. Files that are not on this machine are not covered."""
    asking = list(_asking(data_dir))
    # Files with a published hash come before files that may hold anything.
    asking.sort(key=lambda each: each[1].sha256 is None)
    found: dict[str, str] = {}
    for task, file in asking:
        try:
            found = {**dict.fromkeys(_questions(file, data_dir), task), **found}
        except (UsageError, EnvironmentRefused):  # not a file that the task can read; measuring with it gives the error
            continue
    return found


def _asking(data_dir: Path | None) -> Iterator[tuple[str, DataFile]]:
    """The benchmark files on this machine, each with the name of its task."""
    for task, card in registry.tasks().items():
        try:
            yield from (
                (task, file) for file in manifest(card.folder / "task.toml") if file.asks and is_present(file, data_dir)
            )
        except UsageError:
            continue


def task_asking(text: str, known: dict[str, str]) -> str | None:
    """The task whose question a prompt is, or contains as a paragraph or line; None if there is none."""
    parts = (text, *text.split("\n\n"), *text.splitlines())
    return next((known[words] for part in parts for words in _readings(part) if words in known), None)


def _readings(part: str) -> Iterator[str]:
    words = " ".join(part.split())
    yield words
    if label := _LABEL.match(words):
        yield words[label.end() :]


def _questions(file: DataFile, data_dir: Path | None) -> Iterator[str]:
    fields = [file.asks] if isinstance(file.asks, str) else file.asks
    for _, row in numbered(resolve_file(file, data_dir)):
        asked = next((row[field] for field in fields if row.get(field)), None)
        first = asked[0] if isinstance(asked, list) and asked else asked
        words = " ".join(first.split()) if isinstance(first, str) else ""
        if len(words) >= SHORTEST:
            yield words
