"""The files of Spider: questions, descriptions of the databases, and the databases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from specbench.common import UsageError, damaged, open_file
from specbench.evals import by_field, digest, read_rows

_TODO = "unpack Spider's archive again"
_HEADER = b"SQLite format 3\x00"
_KNOWN = ConfigDict(extra="ignore", frozen=True, strict=True)  # other fields contain parsed forms of the texts


class Question(BaseModel):
    """An entry of dev.json.

    Attributes:
        db_id: name of the database, and of its file: path separators are refused.
        query: the gold query.
    """

    model_config = _KNOWN

    db_id: str = Field(pattern=r"^[A-Za-z0-9_]+$")
    question: str = Field(min_length=1)
    query: str = Field(min_length=1)


class Schema(BaseModel):
    """An entry of tables.json. Columns are numbered over all tables; the first, "*", is in no table.

    Attributes:
        column_names_original: [number of the table, name].
        primary_keys: each a column, or a list of columns for a composite key.
        foreign_keys: [column, referenced column].
    """

    model_config = _KNOWN

    db_id: str
    table_names_original: list[str]
    column_names_original: list[list[int | str]]
    column_types: list[str]
    primary_keys: list[int | list[int]]
    foreign_keys: list[list[int]]

    @field_validator("column_names_original")
    @classmethod
    def _are_places_and_names(cls, value: list[list[int | str]]) -> list[list[int | str]]:
        if not all(len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], str) for pair in value):
            raise ValueError("a column is the number of its table and a name")
        return value

    @model_validator(mode="after")
    def _refers_to_what_there_is(self) -> Schema:
        columns = range(len(self.column_names_original))
        if len(self.column_types) != len(columns):
            raise ValueError("there is a type for each column")
        if not all(place in range(-1, len(self.table_names_original)) for place, _ in self.columns):
            raise ValueError("a column is in a table that does not exist")
        if not all(len(pair) == 2 for pair in self.foreign_keys):
            raise ValueError("a foreign key is two columns")
        keys = [key if isinstance(key, list) else [key] for key in self.primary_keys]
        if not all(column in columns for group in (*keys, *self.foreign_keys) for column in group):
            raise ValueError("a key names a column that does not exist")
        return self

    @property
    def columns(self) -> list[tuple[int, str]]:
        """(number of the table, name) of each column."""
        return [(int(place), str(name)) for place, name in self.column_names_original]


def load(dev: Path, tables: Path) -> tuple[list[tuple[str, Question]], dict[str, Schema]]:
    """(questions, each with the name of its row for errors; schemas by database)."""
    questions = [(f"{dev} row {number}", row) for number, row in read_rows(dev, Question)]
    schemas: dict[str, Schema] = by_field(tables, read_rows(tables, Schema), "db_id")
    for where, row in questions:
        if row.db_id not in schemas:
            raise damaged(where, f"field 'db_id': {tables} does not describe {row.db_id}", _TODO)
    if not questions:
        raise damaged(dev, "it has no questions", _TODO)
    return questions, schemas


def databases(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """The files of databases by name; ``folder`` holds ``NAME/NAME.sqlite``."""
    found = {}
    for name in sorted(set(names)):
        path = folder / name / f"{name}.sqlite"
        if not path.is_file():
            raise UsageError(f"{folder} has no {name}/{name}.sqlite, which a question is about; {_TODO}")
        with open_file(path, _TODO) as file:
            if file.read(len(_HEADER)) != _HEADER:
                raise damaged(path, "not an SQLite database", _TODO)
        found[name] = path
    return found


def fingerprint(files: dict[str, Path]) -> str:
    """SHA-256 over names and contents of the databases."""
    together = hashlib.sha256()
    for name, path in sorted(files.items()):
        together.update(f"{name} {digest(path)[1]}\n".encode())
    return together.hexdigest()
