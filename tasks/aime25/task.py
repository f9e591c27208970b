"""AIME 2025: 30 problems of the American Invitational Mathematics Examination I and II, with integer answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from specbench.common import damaged
from specbench.evals import TODO, Verdict, lm_eval_tasks, manifest, mathematics, read_rows, resolve_file, row_place

# The hub's data sets give the digits, sometimes with leading zeros as AIME prints them, or with a degree sign.
_ANSWER = re.compile(r"\$?\s*([0-9]{1,3})(?:\s*(?:\^\s*\{?\\circ\}?|°))?\s*\$?")
_DIGITS = re.compile(r"\$?\s*([0-9]{1,9})\s*\$?")

Options = mathematics.Options


class Problem(BaseModel):
    """A row of any of the hub's data sets of AIME 2025, which differ in their columns.

    Strict on ``problem`` (or ``question``) and ``answer``, an integer from 0 to 999; further columns are allowed.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    problem: str = Field(min_length=1, validation_alias=AliasChoices("problem", "question"))
    answer: int = Field(ge=0, le=999)
    id: str | int | None = None

    @field_validator("answer", mode="before")
    @classmethod
    def _digits(cls, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)  # some copies of the data have floats: 70.0
        found = _ANSWER.fullmatch(value.strip()) if isinstance(value, str) else None
        return int(found[1]) if found else value

    @property
    def solution(self) -> str:
        """The answer in a box; some data sets have no longer solution."""
        return f"$\\boxed{{{self.answer}}}$"


class Task(mathematics.Task):
    """The 30 problems."""

    name = "aime25"

    def read(self, data_dir: Path | None) -> list[Problem]:
        """``data_dir``: folder that holds aime25.jsonl or .parquet."""
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        return load(resolve_file(file, data_dir))

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Also ``exact_match``: whether the last box is exactly that integer."""
        problem = self._problem(prompt_id)
        lm_eval_tasks.settled(self.name, self.options)
        found = mathematics.compare(str(problem.answer), text)
        digits = _DIGITS.fullmatch(found.box) if found.box is not None else None
        exact = digits is not None and int(digits[1]) == problem.answer
        return Verdict(found.passed, found.reason, found.detail, {"exact_match": exact}, found.extracted)


def load(path: Path) -> list[Problem]:
    """The problems in data order."""
    found: list[Problem] = []
    ids: set[str] = set()
    for number, row in read_rows(path, Problem):
        if row.id is not None and str(row.id) in ids:
            raise damaged(row_place(path, number), f"field 'id': {row.id} is there twice", TODO)
        if row.problem in {other.problem for other in found}:
            raise damaged(row_place(path, number), "field 'problem': it is there twice", TODO)
        ids |= {str(row.id)} if row.id is not None else set()
        found.append(row)
    if not found:
        raise damaged(path, "it has no problems", TODO)
    return found
