"""The rows of the two data files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from specbench.evals import Reference, by_field, pack_inputs, read_rows


class Problem(BaseModel):
    """A row of HumanEval.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


class PlusProblem(Problem):
    """A row of HumanEvalPlus.jsonl.

    Attributes:
        contract: EvalPlus's own check of inputs; not used here.
        atol: absolute tolerance for floats; 0 if the problem sets none.
        base_input, plus_input: lists of argument lists.
    """

    contract: str
    atol: float
    base_input: list[list[Any]]
    plus_input: list[list[Any]]

    @functools.cached_property
    def reference(self) -> Reference:
        """The problem in the form of ``plus_checks``."""
        return Reference(
            id=self.task_id,
            entry_point=self.entry_point,
            solution=self.prompt + self.canonical_solution,
            base=pack_inputs(self.base_input),
            plus=pack_inputs(self.plus_input),
            atol=self.atol,
            # The roots are not unique. EvalPlus 0.3.1 intends to do the same but fails every answer.
            rule="polynomial" if self.entry_point == "find_zero" else "exact",
        )


Kind = TypeVar("Kind", bound=Problem)


def load(path: Path, kind: type[Kind]) -> dict[str, Kind]:
    """The problems of a data file by id."""
    return by_field(path, read_rows(path, kind), "task_id")
