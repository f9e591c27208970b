"""Asked: the questions that tasks measure on, word for word, from the data files at hand. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specbench.common import EnvironmentRefused, UsageError, registry
from specbench.evals.data import DataFile, manifest, present, resolve
from specbench.evals.rows import numbered

#: Characters of a question that is told apart: shorter ones are asked by chance.
SHORTEST = 40

_LABEL = re.compile(r"[A-Za-z]+:\s")  # "Question: …", as prompts in plain text have it


def measured(data_dir: Path | None = None) -> dict[str, str]:
    """The task of each question, by its words; of files that are not on this machine nothing is known.

    Args:
        data_dir: as of :func:`specbench.evals.data.resolve`.
    """
    found: dict[str, str] = {}
    for task, card in registry.tasks().items():
        try:
            files = manifest(card.folder / "task.toml")
            asking = [file for file in files if file.asks and present(file, data_dir)]
            found = {**{words: task for file in asking for words in _questions(file, data_dir)}, **found}
        except (UsageError, EnvironmentRefused):  # no such file as the task reads: whoever measures by it is told
            continue
    return found


def asks(text: str, known: dict[str, str]) -> str | None:
    """The task whose question a prompt is, as a whole or as one of its paragraphs or lines; None of any other prompt.

    Args:
        text: of the prompt.
        known: see :func:`measured`.
    """
    parts = (text, *text.split("\n\n"), *text.splitlines())
    return next((known[words] for part in parts for words in _readings(part) if words in known), None)


def _readings(part: str) -> Iterator[str]:
    words = " ".join(part.split())
    yield words
    if label := _LABEL.match(words):
        yield words[label.end() :]


def _questions(file: DataFile, data_dir: Path | None) -> Iterator[str]:
    fields = [file.asks] if isinstance(file.asks, str) else file.asks
    for _, row in numbered(resolve(file, data_dir)):
        asked = next((row[field] for field in fields if row.get(field)), None)
        first = asked[0] if isinstance(asked, list) and asked else asked
        words = " ".join(first.split()) if isinstance(first, str) else ""
        if len(words) >= SHORTEST:
            yield words
