"""MATH (Hendrycks et al. 2021, arXiv 2103.03874): the 5,000 competition problems of its test split."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from specbench.common import Prompt, UsageError, damaged, option
from specbench.evals import TODO, chained, is_present, last_box, manifest, mathematics, read_rows, resolve_file

Subject = Literal[
    "Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra",
    "Precalculus",
]  # fmt: skip
SUBJECTS: dict[str, Subject] = {
    "algebra": "Algebra", "counting_and_probability": "Counting & Probability", "geometry": "Geometry",
    "intermediate_algebra": "Intermediate Algebra", "number_theory": "Number Theory", "prealgebra": "Prealgebra",
    "precalculus": "Precalculus",
}  # fmt: skip

_LEVEL = re.compile(r"(?:Level )?([1-5?])")
_OPEN = re.compile(r"\\boxed\s*([^$\s{][^$]*)")  # a box without braces extends to the end of its formula


class Options(mathematics.Options):
    """Options of the task."""

    subject: Literal[
        "all", "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
        "prealgebra", "precalculus",
    ] = option("all", help="one of the seven subjects, or all")  # fmt: skip
    level: int | None = option(None, ge=1, le=5, help="problems of this difficulty, 5 is the hardest; default: all")


class Problem(BaseModel):
    """A row of MATH. Strict on what is needed, also as MATH-500 names it; further columns are allowed.

    Attributes:
        level: 1 to 5; 0 if the data have "Level ?".
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    problem: str = Field(min_length=1)
    solution: str = Field(pattern=r"\\f?boxed")
    level: int = Field(ge=0, le=5)
    subject: Subject = Field(validation_alias=AliasChoices("type", "subject"))

    @model_validator(mode="before")
    @classmethod
    def _answered(cls, row: Any) -> Any:
        """Turn the answer of a row without a solution into a solution that is only a box."""
        if isinstance(row, dict) and "solution" not in row and isinstance(row.get("answer"), str):
            return {**row, "solution": f"$\\boxed{{{row['answer']}}}$"}
        return row

    @field_validator("level", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        found = _LEVEL.fullmatch(value) if isinstance(value, str) else None
        return (0 if found[1] == "?" else int(found[1])) if found else value

    @model_validator(mode="after")
    def _has_an_answer(self) -> Problem:
        if not self.answer:
            raise ValueError("its solution has no answer in a box; fix it")
        return self

    @cached_property
    def answer(self) -> str:
        """The content of the last box of the solution, with braces or without."""
        last = self.solution[max(0, self.solution.rfind("\\boxed")) :]
        if (box := last_box(last)) is not None:
            return box
        bare = _OPEN.match(last)
        return bare[1].strip().rstrip(".,;:") if bare else ""


class Task(mathematics.Task):
    """The 5,000 problems."""

    name = "math"

    def read(self, data_dir: Path | None) -> list[Problem]:
        """``data_dir``: folder that holds math_test.jsonl or the seven files of the subjects."""
        merged, *parts = manifest(Path(__file__).with_name("task.toml"))
        # All subjects are read even if only one is wanted, because ids count over all of them.
        files = [merged] if is_present(merged, data_dir) else parts
        return [row for file in files for row in load(resolve_file(file, data_dir))]

    def prompts(self, chat: bool) -> list[Prompt]:
        """The problems of the chosen subject and level in data order, each with its subject as category."""
        chosen = {number: row for number, row in enumerate(self._problems) if self._is_asked(row)}
        if not chosen:
            raise UsageError(
                f"the data have no problem with subject={self.options.subject} and level={self.options.level}; "
                "leave one of them out"
            )
        named = [
            replace(prompt, id=f"{self.name}/{number}", category=row.subject)
            for prompt, (number, row) in zip(self._asked([*chosen.values()], chat), chosen.items(), strict=True)
        ]
        return chained(named, self.options.chain)

    def _is_asked(self, row: Problem) -> bool:
        of_subject = self.options.subject == "all" or SUBJECTS[self.options.subject] == row.subject
        return of_subject and self.options.level in (None, row.level)


def load(path: Path) -> list[Problem]:
    """The problems of a file in order."""
    found = [row for _, row in read_rows(path, Problem)]
    if not found:
        raise damaged(path, "it has no problems", TODO)
    return found
