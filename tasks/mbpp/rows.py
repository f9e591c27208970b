"""The rows of the three data files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from specbench.common import damaged, read_json, validate
from specbench.evals import read_rows

_TODO = "fetch it again"
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlusProblem(BaseModel):
    """A row of MbppPlus.jsonl.

    Attributes:
        contract, assertion: EvalPlus's check of inputs, and the original asserts; not used here.
        atol: absolute tolerance for floats; 0 if the problem sets none.
        base_input, plus_input: lists of argument lists, before EvalPlus's type coercions. Mbpp/793 has {} for [].
    """

    model_config = _STRICT

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    base_input: list[list[Any]]
    plus_input: list[list[Any]] | dict[Literal[""], Any]
    atol: float
    contract: str
    assertion: str

    @property
    def id(self) -> str:
        """Such as "Mbpp/2"."""
        return self.task_id


class Asserted(BaseModel):
    """A problem whose tests are asserts."""

    model_config = _STRICT

    task_id: int
    code: str
    test_list: list[str]

    @property
    def id(self) -> str:
        """Such as "Mbpp/11"."""
        return f"Mbpp/{self.task_id}"

    @property
    def statement(self) -> str:
        """The statement."""
        raise NotImplementedError

    @property
    def setup(self) -> str:
        """Code that the asserts need."""
        raise NotImplementedError


class Problem(Asserted):
    """A row of mbpp.jsonl."""

    text: str
    test_setup_code: str
    challenge_test_list: list[str]

    @property
    def statement(self) -> str:
        return self.text

    @property
    def setup(self) -> str:
        return self.test_setup_code


class SanitizedProblem(Asserted):
    """An entry of sanitized-mbpp.json."""

    source_file: str
    prompt: str
    test_imports: list[str]

    @property
    def statement(self) -> str:
        return self.prompt

    @property
    def setup(self) -> str:
        return "\n".join(self.test_imports)


Kind = TypeVar("Kind", PlusProblem, Problem, SanitizedProblem)


def load_plus(path: Path) -> dict[str, PlusProblem]:
    """MBPP+ by id."""
    return _by_id(path, read_rows(path, PlusProblem))


def load_full(path: Path) -> dict[str, Asserted]:
    """mbpp.jsonl by id. Raises as :func:`load_plus`."""
    return dict(_by_id(path, read_rows(path, Problem)))


def load_sanitized(path: Path) -> dict[str, Asserted]:
    """sanitized-mbpp.json by id; the file is one JSON list."""
    entries = read_json(path, _TODO)
    if not isinstance(entries, list):
        raise damaged(path, "not a JSON list", _TODO)
    rows = [
        (number, validate(SanitizedProblem, entry, f"{path} entry {number}", _TODO))
        for number, entry in enumerate(entries, 1)
    ]
    return dict(_by_id(path, rows))


def _by_id(path: Path, rows: Iterable[tuple[int, Kind]]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for number, row in rows:
        if row.id in found:
            raise damaged(f"{path} line {number}", f"field 'task_id': {row.id} is there twice", _TODO)
        found[row.id] = row
    return found
