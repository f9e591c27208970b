"""Passages of a text, each to be continued; the text that really follows is scored next to the speed."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from specbench.common import Prompt, UsageError, option, read_text
from specbench.evals import OwnFileOptions, Unscored, read_rows, with_hash

_ROWS = (".jsonl", ".json", ".parquet", ".gz")
_TODO = "give a text in UTF-8, or rows with a column text or sentence"


class Options(OwnFileOptions):
    """Options of the task."""

    words: int = option(128, ge=1, help="words of a passage that are the prompt; as many follow as its reference")


class Row(BaseModel):
    """A row of the hub's WikiText ("text") or Penn Treebank ("sentence")."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    text: str = Field(validation_alias=AliasChoices("text", "sentence"))


class Task(Unscored):
    """Passages that follow each other, without overlap; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: ignored; ``options.file`` names the file."""
        if not options.file:
            raise UsageError("task 'raw-text' needs a file: --data-file wiki.txt")
        self.options = with_hash(options)
        self._passages = passages(_text(Path(options.file)), options.words)
        if not self._passages:
            raise UsageError(
                f"cannot continue {options.file}: it has less than {2 * options.words} words; give a longer text or "
                "lower --task-set raw-text.words"
            )

    def prompts(self, chat: bool) -> list[Prompt]:
        """All passages in the order of the text; an incomplete last one is left out."""
        self.options = self.options.model_copy(update={"file": Path(self.options.file).name})
        return [
            Prompt(f"raw-text/{number}", prompt, False, reference=reference)
            for number, (prompt, reference) in enumerate(self._passages)
        ]


def passages(text: str, words: int) -> list[tuple[str, str]]:
    """Cut a text into pairs of ``words`` words each; a word keeps the blanks before it."""
    found = re.findall(r"\s*\S+", text)
    starts = range(0, len(found) - 2 * words + 1, 2 * words)
    return [("".join(found[at : at + words]).lstrip(), "".join(found[at + words : at + 2 * words])) for at in starts]


def _text(path: Path) -> str:
    if path.suffix not in _ROWS:
        return read_text(path, _TODO)
    rows = [row.text for _, row in read_rows(path, Row)]
    return ("" if any(row.endswith("\n") for row in rows) else "\n").join(rows)
