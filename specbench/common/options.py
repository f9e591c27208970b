"""Typed options of methods, tasks and commands: defaults, ranges, short names, and errors that help."""

from __future__ import annotations

import inspect
import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from specbench.common.errors import LIMIT_WORDS, UsageError, one_line, unknown_name


class Options(BaseModel):
    """Base of a method's or a task's options. A misspelt option is an error, never ignored."""

    # No infinity or NaN: JSON has none, and every option is recorded.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _in_range_as_float32(self) -> Options:
        """Tensors hold options in float32, where 1e-50 is 0 and 1 - 1e-9 is 1: their ranges must also hold there."""
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, float) and not _within(_float32(value), info.metadata):
                raise ValueError(f"{name}={value} is {_float32(value):g} in float32, out of its range")
        return self


def _float32(value: float) -> float:
    try:
        return cast(float, struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


def _within(value: float, limits: Iterable[Any]) -> bool:
    """Whether a number is finite and within the limits of a field."""
    return math.isfinite(value) and all(
        compare(value, getattr(limit, name))
        for limit in limits
        for name, compare in _LIMITS.items()
        if hasattr(limit, name)
    )


#: Temperatures by which float32 logits can be divided: below, a quotient is infinite or the divisor 0.
_COLDEST, _HOTTEST = 1e-30, 1e30


def temperature_fault(temperature: float) -> str:
    """Why logits cannot be divided by a temperature; empty if they can, and for 0 (greedy)."""
    if temperature == 0 or _COLDEST <= temperature <= _HOTTEST:
        return ""
    return f"temperature must be 0 (greedy) or from {_COLDEST:g} to {_HOTTEST:g}, not {temperature}"


def option(default: Any, *short: str, help: str, **limits: Any) -> Any:
    """A field of :class:`Options`.

    Args:
        short: other names it is accepted under, such as the paper's symbol.
        limits: pydantic constraints (``ge``, ``le``, …).
    """
    return Field(default, validation_alias=AliasChoices(*short) if short else None, description=help, **limits)


def option_names(options: type[BaseModel]) -> dict[str, str]:
    """Map every accepted spelling of every option to the option's name."""
    known: dict[str, str] = {}
    for name, info in options.model_fields.items():
        known[name] = name
        alias = info.validation_alias
        known.update({str(short): name for short in (alias.choices if isinstance(alias, AliasChoices) else [])})
    return known


T = TypeVar("T", bound=BaseModel)


def parse_options(options: type[T], raw: Mapping[str, Any], owner: str, flag: str = "") -> T:
    """Parse options given by the user.

    Args:
        raw: name (or short name, dashes allowed) -> value; values may be strings.
        flag: how the options were written, without the last name, such as "--set jacobi"; empty if in no flag.

    Raises:
        UsageError: an unknown name, one option given twice, or a value that is not allowed.
    """
    known = option_names(options)
    values: dict[str, Any] = {}
    for written, value in raw.items():
        name = known.get(written.replace("-", "_"))
        if name is None:
            raise unknown_name(
                "option", written, known, f"of {owner}", see="" if " " in owner else f"specbench list {owner} shows all"
            )
        if name in values:
            raise UsageError(f"option '{name}' of {owner} is set twice; keep one of its names")
        values[name] = value
    try:
        return options.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        where = known.get(where, where)
        if not where:  # an error about a combination of options
            raise UsageError(f"options of {owner}: {first['msg'].removeprefix('Value error, ')}") from error
        why = _requirement(options.model_fields.get(where), first)
        if flag:
            written = next((each for each in raw if known[each.replace("-", "_")] == where), where)
            raise UsageError(f"{flag}.{written}={one_line(str(first['input']), 40)}: {why}") from error
        raise UsageError(f"option '{where}' of {owner}: {why}, not {first['input']!r}") from error


def _requirement(info: FieldInfo | None, error: Mapping[str, Any]) -> str:
    """What a field accepts, in words, for a wrong value; the reason given by pydantic for other errors."""
    kind = str(error["type"])
    if info is not None and kind.startswith(("int_", "float_", "greater_", "less_", "finite_")):
        return f"give {_number_in_words(info)}"
    if kind.startswith("bool_"):
        return "give true or false"
    if kind == "literal_error":
        return f"give {error['ctx']['expected']}"
    why = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{why[:1].lower()}{why[1:]}"


def _number_in_words(info: FieldInfo) -> str:
    """The kind and limits of a numeric field, such as "an integer of at least 1"."""
    kind = "a number" if float in {info.annotation, *get_args(info.annotation)} else "an integer"
    limits = {
        name: f"{value:,}" if isinstance(value, int) else f"{value:g}"
        for limit in info.metadata
        for name in _LIMITS
        if (value := getattr(limit, name, None)) is not None
    }
    if {"ge", "le"} <= limits.keys():
        return f"{kind} from {limits['ge']} to {limits['le']}"
    bounds = [f"{LIMIT_WORDS[name]} {limits[name]}" for name in LIMIT_WORDS if name in limits]
    return f"{kind} {' and '.join(bounds)}".replace(" and of ", " and ").strip()


class Flags(BaseModel):
    """Base of the options of a command. A field made by :func:`flag` is an option there and a keyword in Python."""

    # Deferred: every command line imports the options of all commands but checks those of one. No infinity or NaN: no
    # option allows them, and JSON cannot store them.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True, allow_inf_nan=False)

    def anchored(self: F, *names: str) -> F:
        """The same options with absolute paths in some fields, independent of the working directory, which a plug-in
        may change."""
        paths = {name: path.absolute() for name in names if (path := getattr(self, name)) is not None}
        return self.model_copy(update=paths)


@dataclass(frozen=True)
class Flag:
    """How a field is written on the command line.

    Attributes:
        name: with its dashes; a name without dashes is an argument.
        metavar: placeholder of the value in the help.
        shown: the default in words, if the value does not show it.
        exists: kind of the existing path that is required; None if it may be created.
        recorded: it decides what is measured, and contains nothing about this machine.
    """

    name: str
    short: str | None = None
    metavar: str | None = None
    shown: str | None = None
    exists: Literal["file", "folder"] | None = None
    recorded: bool = True


def flag(
    default: Any,
    name: str,
    *,
    help: str,
    short: str | None = None,
    metavar: str | None = None,
    shown: str | None = None,
    exists: Literal["file", "folder"] | None = None,
    recorded: bool = True,
    **limits: Any,
) -> Any:
    """A field of :class:`Flags`."""
    written = Flag(name, short, metavar, shown, exists, recorded)
    return Field(default, description=help, json_schema_extra={"flag": written}, **limits)  # type: ignore[dict-item]


def parse_number(owner: type[Flags], field: str, text: Any) -> Any:
    """Parse the number of a field from its text on the command line; the limits are checked by :func:`parse_flags`."""
    info = owner.model_fields[field]
    kind: Callable[[str], float] = float if float in {info.annotation, *get_args(info.annotation)} else int
    try:
        return kind(text) if isinstance(text, str) else text
    except ValueError:  # also for an integer of thousands of digits
        raise UsageError(f"{flag_of(owner, field).name} {one_line(text, 40)}: give {_number_in_words(info)}") from None


def flag_of(owner: type[Flags], field: str) -> Flag:
    """How a field is written on the command line."""
    extra = owner.model_fields[field].json_schema_extra
    assert isinstance(extra, dict), f"{owner.__name__}.{field} is made by flag()"
    return cast(Flag, extra["flag"])


F = TypeVar("F", bound=Flags)


def parse_flags(owner: type[F], values: Mapping[str, Any]) -> F:
    """Parse the options of a command, given by the names of the fields."""
    for name in values:
        if name not in owner.model_fields:
            raise unknown_name("option", name, owner.model_fields)
    # Paths may be texts; integers may not, and a boolean is not a number. Repeatable options are compared by value.
    paths = {name for name in values if "Path" in str(owner.model_fields[name].annotation)}
    typed: dict[str, Any] = {name: _plain(value) for name, value in values.items()}
    typed |= {name: Path(typed[name]) for name in paths if isinstance(typed[name], str)}
    try:
        made = owner.model_validate(typed)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        written = flag_of(owner, name).name
        if first["type"] == "missing":
            raise UsageError(f"{written} is missing: {owner.model_fields[name].description}") from None
        if first["type"] == "literal_error":
            allowed = get_args(owner.model_fields[name].annotation)
            raise unknown_name("value", str(first["input"]), allowed, f"of {written}") from None
        # If the type is wrong, "2" must look different from 2.
        found = repr(first["input"]) if str(first["type"]).endswith("_type") else first["input"]
        raise UsageError(f"{written} {found}: {_requirement(owner.model_fields[name], first)}") from None
    for name in paths:
        _check_path(flag_of(owner, name), getattr(made, name))
    return made


def _plain(value: Any) -> Any:
    """Normalise a value: a list becomes a tuple, and a numpy integer becomes an int."""
    if isinstance(value, list):
        return tuple(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


P = ParamSpec("P")
R = TypeVar("R")


def keywords(owner: Callable[P, F]) -> Callable[[Callable[[F], R]], Callable[P, R]]:
    """Turn a function of some options into one that takes them as typed keyword arguments."""
    fields = cast("type[Flags]", owner).model_fields

    def taking(function: Callable[[F], R]) -> Callable[P, R]:
        def call(*args: P.args, **values: P.kwargs) -> R:
            if args:  # positional arguments would depend on the order in which fields are declared
                raise UsageError(
                    f"{function.__name__} takes its options by name, as in {function.__name__}(model=…); "
                    f"name the option for {args[0]!r}"
                )
            return function(parse_flags(cast("type[F]", owner), values))

        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if info.is_required() else info.default,
                annotation=info.annotation,
            )
            for name, info in fields.items()
        ]
        listed = "\n".join(f"    {name}: {info.description}" for name, info in fields.items())
        call.__name__ = call.__qualname__ = function.__name__
        call.__module__ = function.__module__
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nArgs:\n{listed}\n"
        returns = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
        return call

    return taking


def _check_path(written: Flag, path: Path | None) -> None:
    if path is None or written.exists is None:
        return
    there = path.is_file() if written.exists == "file" else path.is_dir()
    if not there:
        raise UsageError(f"{written.name} {path}: no such {written.exists}; name one that exists")
