"""Derive the columns of the long tables from the fields of a pydantic model.

A field of a plain type becomes a column with the field's name. A field that is a model itself becomes several columns
with its name as prefix: ``speedup`` makes ``speedup``, ``speedup_low``, … A field without a column is marked where it
is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

# The marks are values of a field's ``json_schema_extra``.

#: The field makes no column.
NO_COLUMN: JsonDict = {"column": "none"}

#: The column is named like the model that contains the field: ``Speedup.value`` is the column ``speedup``.
FIGURE: JsonDict = {"column": "figure"}

#: The field's columns exist only if a row has a value.
SPARSE: JsonDict = {"column": "sparse"}


def named_columns(prefix: str) -> JsonDict:
    """Mark a dictionary of figures: it makes a column ``PREFIX_NAME`` for each key that a row has a value for."""
    return {"column": "named", "prefix": prefix}


_DTYPES = {str: ("string", "string"), bool: ("bool", "boolean"), int: ("int64", "Int64"), float: ("float64", "float64")}


def columns_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the columns that every table of this model has, with their pandas dtypes, in the order of the fields."""
    return dict(_columns(model, "", False))


def cells_of(part: BaseModel) -> dict[str, Any]:
    """Return the values of one model by column, including sparse columns and dictionaries of figures."""
    found: dict[str, Any] = {}
    _fill(found, part, "")
    return found


def _columns(model: type[BaseModel], within: str, optional: bool) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        if (mark := _mark(field)) not in ("", "figure"):
            continue
        column = _column(within, name, mark)
        kind, missing = _kind(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _columns(kind, column, True)
        elif kind in _DTYPES:
            yield column, _DTYPES[kind][optional or missing]
        else:
            raise TypeError(f"{model.__name__}.{name}: {field.annotation} makes no column; mark the field")


def _fill(found: dict[str, Any], part: BaseModel, within: str) -> None:
    values = vars(part)
    for name, column, by_name in _fields(type(part), within):
        value = values[name]
        if by_name:
            for key, figure in (value or {}).items():
                _put(found, f"{column}_{key}", figure)
        else:
            _put(found, column, value)


def _put(found: dict[str, Any], column: str, value: Any) -> None:
    if isinstance(value, BaseModel):
        _fill(found, value, column)
    elif value is not None:
        found[column] = value


@cache  # called for every row of a table
def _fields(model: type[BaseModel], within: str) -> list[tuple[str, str, bool]]:
    """The fields that make columns: (name, column, whether the column is the prefix of one column per key)."""
    found = []
    for name, field in model.model_fields.items():
        mark = _mark(field)
        if mark == "named":
            found.append((name, str(_extra(field)["prefix"]), True))
        elif mark != "none":
            found.append((name, _column(within, name, mark), False))
    return found


def _column(within: str, name: str, mark: str) -> str:
    if not within:
        return name
    return within if mark == "figure" else f"{within}_{name}"


def _extra(field: FieldInfo) -> JsonDict:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _mark(field: FieldInfo) -> str:
    return str(_extra(field).get("column", ""))


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a field without None (``str`` for a Literal), and whether None is allowed."""
    optional = False
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = [each for each in get_args(annotation) if each is not NoneType]
        optional = True
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return (str, optional) if get_origin(annotation) is Literal else (annotation, optional)
