"""MATH-500 (Lightman et al. 2023, arXiv 2305.20050): 500 competition problems of MATH (Hendrycks et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Prompt
from specbench.evals import chained, manifest, mathematics, read_rows, resolve_file

Options = mathematics.Options


class Problem(BaseModel):
    """A row of math500.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    problem: str
    solution: str = Field(pattern=r"\\f?boxed")
    answer: str = Field(min_length=1)
    subject: str
    level: int
    unique_id: str


class Task(mathematics.Task):
    """The 500 problems."""

    name = "math500"

    def read(self, data_dir: Path | None) -> list[Problem]:
        """``data_dir``: folder that holds math500.jsonl."""
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._path = resolve_file(file, data_dir)
        return [row for _, row in read_rows(self._path, Problem)]

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order, each with its subject as category."""
        asked = zip(self._asked(self._path, chat), self._problems, strict=True)
        return chained([replace(prompt, category=row.subject) for prompt, row in asked], self.options.chain)
