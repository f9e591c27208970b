"""Options of commands: typer's parameters made from the fields of a plan, and what several commands take besides."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

import annotated_types
import typer

from specbench.common import UsageError
from specbench.common.options import Flags, flag_of, given
from specbench.runner.plan import PROFILES, RESULTS, Decoding

REPORTS = Path("reports")

JSON = typer.Option(False, "--json", help="JSON to stdout.")

P = TypeVar("P", bound=Flags)


def takes(
    plan: type[P], *, first: Sequence[str] = (), without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function: it takes the fields of ``plan`` as options, and gets the plan they make.

    Args:
        plan: its fields, see :class:`specbench.common.options.Flags`.
        first: fields that the help begins with.
        without: fields that this command has not.

    Returns:
        A decorator. The function's first parameter is the plan; further ones are typer's, as ever.
    """

    def command(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        names = [*first, *(name for name in plan.model_fields if name not in (*first, *without))]
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=of(name, plan),
                annotation=_typed(plan.model_fields[name].annotation),
            )
            for name in names
        ]
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        def called(**values: Any) -> None:
            mine = {name: values.pop(name) for name in names}
            function(given(plan, mine), **values)

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return command


def of(field: str, plan: type[Flags] = Decoding, **changes: Any) -> Any:
    """Typer's option of one field of a plan, for a command that takes no whole one.

    Args:
        changes: typer's arguments that are other ones here, ``help`` for one.
    """
    info, written = plan.model_fields[field], flag_of(plan, field)
    default = list(info.default) if isinstance(info.default, tuple) else ... if info.is_required() else info.default
    arguments: dict[str, Any] = {"help": info.description, "metavar": written.metavar, **dict(_limits(info.metadata))}
    if written.shown is not None:
        arguments["show_default"] = written.shown
    elif info.is_required():
        arguments["show_default"] = False
    if written.exists is not None:
        arguments |= {"exists": True, "dir_okay": written.exists == "folder", "file_okay": written.exists == "file"}
    arguments |= changes
    default = arguments.pop("default", default)
    if not written.name.startswith("-"):
        return typer.Argument(default, **{**arguments, "metavar": written.name})
    return typer.Option(default, *filter(None, (written.name, written.short)), **arguments)


def _limits(metadata: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The limits that typer says by itself, both ends included."""
    for limit in metadata:
        if isinstance(limit, annotated_types.Ge):
            yield "min", limit.ge
        elif isinstance(limit, annotated_types.Le):
            yield "max", limit.le


def _typed(annotation: Any) -> Any:
    """A field's type as typer takes it: texts for what is repeatable, a text where the field allows some words only."""
    kind = get_origin(annotation)
    return list[str] if kind is collections.abc.Sequence else str if kind is Literal else annotation


#: Instead of a folder's name: the newest run, sweep or profile.
LATEST = "latest"

# Where it is looked for: where commands write by default, and where those of older versions did.
_LOOKED_THROUGH = (RESULTS, PROFILES, Path("runs"), Path("sweeps"))


def folders(help: str, metavar: str) -> Any:
    """The argument of a command that reads folders: one, or several, which may be FOLDER:METHOD. It takes LATEST."""
    return typer.Argument(help=f"{help} Or {LATEST}, the newest.", metavar=metavar, callback=_with_latest)


def _with_latest(given: Any) -> Any:
    """What was given, as paths or as texts, with the folder's name for LATEST.

    Raises:
        UsageError: there is none.
    """
    if isinstance(given, (list, tuple)):
        return [_with_latest(each) for each in given]
    name, colon, method = str(given).partition(":")
    if name != LATEST or Path(name).exists() or Path(str(given)).exists():  # a folder that is called so is that folder
        return given
    from specbench.report import newest

    if (found := newest(_LOOKED_THROUGH)) is None:
        *others, last = (f"{folder}/" for folder in _LOOKED_THROUGH)
        raise UsageError(f"no run, sweep or profile in {', '.join(others)} or {last} here; name its folder")
    from specbench.cli import output

    output.stderr().print(f"latest: {found}", soft_wrap=True, markup=False)
    return type(given)(f"{found}{colon}{method}")


def assert_answers(run: Mapping[str, Any]) -> None:
    """Refuses to judge what a lottery wrote; ``run`` is the content of ``run.json``."""
    if run.get("simulated"):
        raise UsageError("acceptance was simulated in this run, so its text answers nothing; run it without")
