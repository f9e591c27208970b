"""Read a user's corpus that a method drafts from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError, read_bytes, read_json_lines, validate

#: Figure of methods that draft from other texts than the request's own: the share of an answer's tokens that are part
#: of a segment of at least :data:`SEGMENT` tokens which also occurs in those texts. A corpus that contains the answers
#: makes a method seem fast.
SEEN = "seen"
SEGMENT = 16

_LARGEST = 64 << 20  # bytes of a file
_TODO = "give a .txt file, or a .jsonl file with a text in each line"


class _Row(BaseModel):
    """A line of a .jsonl file. Other fields are ignored, so a run's ``requests.jsonl`` is a valid corpus."""

    model_config = ConfigDict(strict=True)

    text: str


@dataclass(frozen=True)
class Texts:
    """Texts of a file; ``weights`` has its name and sha256 for the record."""

    texts: list[str]
    weights: Mapping[str, str]


def check_corpus(path: str, owner: str) -> None:
    """Refuse a missing corpus before a model is loaded."""
    if not os.path.isfile(os.path.expanduser(path)):  # Path.is_file raises for some texts
        raise UsageError(f"cannot use option 'corpus' of {owner}: there is no file {path}; {_TODO}")


def read_corpus(path: str) -> Texts:
    """Read the texts of a file: the field ``text`` of each line of a .jsonl file; any other file is one text.

    Raises:
        UsageError: the file cannot be read, is larger than 64 MiB, has a line without a text, or only blank texts.
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
            raise UsageError(f"cannot read corpus {file}: it is not UTF-8 ({error.reason}); {_TODO}") from error
    if not (texts := [text for text in texts if text.strip()]):
        raise UsageError(f"cannot use corpus {file}: it has no text; {_TODO}")
    return Texts(texts, {"corpus": file.name, "corpus_sha256": hashlib.sha256(content).hexdigest()})
