"""The rows of the data files. Private tests take gigabytes, so a problem only stores where its line is in the file."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from specbench.common import damaged, json_object, open_file, parse_json, unreadable, validate
from specbench.evals import Cases
from specbench.tasks.livecodebench.packed import unpack

_TODO = "fetch it again"

LONGEST = 256 << 20
"""Bytes that a line may have: there are problems with tens of megabytes of compressed tests."""


class Test(BaseModel):
    """A test case: input and expected output; or arguments, one per line, and the expected return value."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    input: str
    output: str
    testtype: Literal["stdin", "functional"]


_TESTS = TypeAdapter(list[Test])


class Row(BaseModel):
    """A line of a data file, the private tests still packed."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    question_title: str
    question_content: str
    platform: Literal["leetcode", "codeforces", "atcoder"]
    question_id: str = Field(min_length=1)
    contest_date: str
    starter_code: str
    difficulty: Literal["easy", "medium", "hard"]
    public_test_cases: str
    private_test_cases: str
    metadata: str

    @field_validator("contest_date")
    @classmethod
    def _is_a_date(cls, value: str) -> str:
        if datetime.datetime.fromisoformat(value).tzinfo is not None:
            raise ValueError("a time without a zone is needed")
        return value

    @property
    def id(self) -> str:
        """Such as "atcoder/abc301_a"."""
        return f"{self.platform}/{self.question_id}"

    @property
    def date(self) -> datetime.datetime:
        """When the contest was."""
        return datetime.datetime.fromisoformat(self.contest_date)


@dataclass(frozen=True)
class Problem:
    """The part of a row that is kept in memory.

    Attributes:
        id: see :attr:`Row.id`.
        starter: code that the answer must continue; empty for a script.
        date: of the contest.
        path, number, offset: file, line number and byte offset of the problem's line.
    """

    id: str
    statement: str
    starter: str
    difficulty: str
    platform: str
    date: datetime.datetime
    path: Path
    number: int
    offset: int

    @property
    def where(self) -> str:
        """The problem's file and line, for error messages."""
        return f"{self.path} line {self.number}"


def load(paths: Sequence[Path]) -> dict[str, Problem]:
    """The problems of some files by id, in file order; private tests are not unpacked yet."""
    found: dict[str, Problem] = {}
    for path in paths:
        before = len(found)
        for number, offset, line in _lines(path):
            where = f"{path} line {number}"
            row = _row(line, where)
            _function(row, where)
            _tests(row.public_test_cases, where, "public_test_cases")
            if row.id in found:
                raise damaged(where, f"field 'question_id': {row.id} is there twice", _TODO)
            found[row.id] = Problem(
                row.id, row.question_content, row.starter_code, row.difficulty, row.platform, row.date, path, number,
                offset,
            )  # fmt: skip
        if len(found) == before:
            raise damaged(path, "it has no problems", _TODO)
    return found


def cases(problem: Problem, private: bool) -> Cases:
    """The tests of a problem, read again from its line.

    Args:
        private: include tests that are not in the statement.
    """
    with open_file(problem.path, _TODO) as file:
        file.seek(problem.offset)
        row = _row(file.readline(LONGEST + 1), problem.where)
    if row.id != problem.id:
        raise damaged(problem.where, f"it has changed since {problem.id} was read from it", "score again")
    function = _function(row, problem.where)
    public = _tests(row.public_test_cases, problem.where, "public_test_cases")
    tests = [*public, *(_private(row, problem.where) if private else [])]
    if not tests:
        raise damaged(problem.where, "it has no tests", _TODO)
    inputs: list[Any] = [test.input for test in tests]
    outputs: list[Any] = [test.output for test in tests]
    if function is not None:
        inputs = [[_value(part, problem.where) for part in one.split("\n")] for one in inputs]
        outputs = [_value(one, problem.where) for one in outputs]
    return Cases(inputs, outputs, function, len(public))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number, offset, content) of each line that is not blank."""
    number = offset = 0
    with open_file(path, _TODO) as file:
        try:
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise unreadable(f"{path} line {number}", f"longer than {LONGEST >> 20} MiB", _TODO)
                if line.strip():
                    yield number, offset, line
                offset += len(line)
        except OSError as error:
            raise unreadable(path, f"after line {number}: {error.strerror}", _TODO) from None


def _row(line: bytes, where: str) -> Row:
    return validate(Row, json_object(parse_json(line, where, _TODO), where, _TODO), where, _TODO)


def _function(row: Row, where: str) -> str | None:
    """The name of the function to call; None for a script."""
    content = json_object(parse_json(row.metadata, f"{where} field 'metadata'", _TODO), where, _TODO)
    name = content.get("func_name")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise damaged(where, "field 'metadata': func_name must be a name", _TODO)
    return name


def _private(row: Row, where: str) -> list[Test]:
    text = row.private_test_cases
    if not text.lstrip().startswith("["):
        try:
            text = unpack(text)
        except ValueError as error:
            raise damaged(where, f"field 'private_test_cases': {error}", _TODO) from None
    return _tests(text, where, "private_test_cases")


def _tests(text: str, where: str, field: str) -> list[Test]:
    content = parse_json(text, f"{where} field '{field}'", _TODO)
    try:
        return _TESTS.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise damaged(where, f"field '{field}', {at}: {first['msg']}", _TODO) from None


def _value(text: str, where: str) -> Any:
    """A JSON value of a test."""
    return parse_json(text, f"{where}, a test's value", _TODO, nan=True)
