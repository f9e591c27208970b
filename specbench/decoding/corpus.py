"""Corpus: a user's texts that a method drafts from, and how much of an answer they hold. No torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError, read_bytes, read_json_lines, validate

#: A measure of methods that draft from other texts than the request's own: the share of an answer's tokens that stand
#: in a string of :data:`STRETCH` or more of its tokens that those texts hold. A corpus that has seen the answers makes
#: a method look fast.
SEEN = "seen"
SEGMENT = 16

_LARGEST = 64 << 20  # bytes of a file
_TODO = "give a .txt file, or a .jsonl file with a text in each line"


class _Row(BaseModel):
    """A line of a .jsonl file; what else it has is not looked at, so a run's ``requests.jsonl`` is a corpus too."""

    model_config = ConfigDict(strict=True)

    text: str


@dataclass(frozen=True)
class Texts:
    """Texts of a file."""

    texts: list[str]
    weights: Mapping[str, str]


def check_corpus(path: str, owner: str) -> None:
    """Refuses a corpus that is not there, before a model is loaded."""
    if not os.path.isfile(os.path.expanduser(path)):  # which take any text; Path's raise
        raise UsageError(f"option 'corpus' of {owner}: there is no file {path}; {_TODO}")


def read_corpus(path: str) -> Texts:
    """The texts of a file: one in each line of a .jsonl file, under ``text``; any other file is one text.

    Raises:
        UsageError: it cannot be read, is larger than 64 MiB, has a line without a text, or none that is not blank.
    """
    file = Path(os.path.expanduser(path))
    content = read_bytes(file, _TODO, _LARGEST)
    if file.suffix == ".jsonl":
        rows = [validate(_Row, row, f"{file} line {number}", _TODO) for number, row in read_json_lines(file, _TODO)]
        texts = [row.text for row in rows]
    else:
        try:
            texts = [content.decode()]
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is no text of UTF-8 ({error.reason}); {_TODO}") from error
    if not (texts := [text for text in texts if text.strip()]):
        raise UsageError(f"{file} holds no text; {_TODO}")
    return Texts(texts, {"corpus": file.name, "corpus_sha256": hashlib.sha256(content).hexdigest()})
