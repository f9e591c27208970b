"""Typed options of methods and tasks: defaults, ranges, short names, and errors that help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from specbench.common.errors import UsageError, unknown


class Options(BaseModel):
    """Base of a method's or a task's options. A misspelt option is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True)


def option(default: Any, *short: str, help: str, **limits: Any) -> Any:
    """A field of :class:`Options`.

    Args:
        default: its value when not set.
        short: other names it is accepted under, such as the paper's symbol.
        help: one line, shown by ``specbench list methods --json`` and in errors.
        limits: pydantic constraints (``ge``, ``le``, …).
    """
    return Field(default, validation_alias=AliasChoices(*short) if short else None, description=help, **limits)


def names(options: type[BaseModel]) -> dict[str, str]:
    """Every accepted spelling of every option, mapped to the option's name."""
    known: dict[str, str] = {}
    for name, info in options.model_fields.items():
        known[name] = name
        alias = info.validation_alias
        known.update({str(short): name for short in (alias.choices if isinstance(alias, AliasChoices) else [])})
    return known


T = TypeVar("T", bound=BaseModel)


def parse(options: type[T], raw: Mapping[str, Any], owner: str) -> T:
    """Options from what the user wrote.

    Args:
        options: the options class.
        raw: name (or short name, dashes allowed) -> value; values may be strings.
        owner: whose options these are, for errors ("jacobi").

    Raises:
        UsageError: an unknown name, one option given twice, or a value that is not allowed.
    """
    known = names(options)
    values: dict[str, Any] = {}
    for written, value in raw.items():
        name = known.get(written.replace("-", "_"))
        if name is None:
            raise unknown(f"option of {owner}", written, known)
        if name in values:
            raise UsageError(f"option '{name}' of {owner} is set twice; keep one of its names")
        values[name] = value
    try:
        return options.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        where = known.get(where, where)
        raise UsageError(f"option '{where}' of {owner}: {first['msg']}, not {first['input']!r}") from error
