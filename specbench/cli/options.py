"""Turn the fields of a plan into typer options; also options shared by several commands."""

from __future__ import annotations

import collections.abc
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer

from specbench.cli.latest import LATEST, newest_folder
from specbench.common import Flags, UsageError, flag_of, parse_flags, parse_number
from specbench.planning import PROFILES as PROFILES
from specbench.planning import RESULTS as RESULTS
from specbench.planning import Decoding, split_names

REPORTS = Path("reports")

JSON = typer.Option(False, "--json", help="JSON to stdout.")
DRY_RUN = typer.Option(False, "--dry-run", help="Predict rows, memory and step times; run nothing.")

P = TypeVar("P", bound=Flags)


def takes(
    plan: type[P], *, shown: Sequence[str], without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function whose first parameter is a plan into a command with the plan's fields as options.

    See :class:`specbench.common.options.Flags`. ``--help`` shows the fields ``shown``, ``--help-all`` all of them.
    The plan's ``model_fields_set`` are the options given by the user.
    """

    def command(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        names = [*shown, *(name for name in plan.model_fields if name not in (*shown, *without))]
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=plan_option(name, plan) if name in shown else plan_option(name, plan, hidden=True),
                annotation=_typed(plan.model_fields[name].annotation),
            )
            for name in names
        ]
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        parameters += [inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=_ALL, annotation=bool)]
        parameters += [inspect.Parameter("command_line", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]

        def called(help_all: bool, command_line: typer.Context, **values: Any) -> None:
            mine = {name: values.pop(name) for name in names}
            sources = {name: command_line.get_parameter_source(name) for name in names}
            given = {name for name, source in sources.items() if source is None or source.name != "DEFAULT"}
            function(parse_flags(plan, {name: mine[name] for name in given}), **values)

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return command


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help including hidden options."""
    if not wanted:
        return
    hidden = [option for option in context.command.params if getattr(option, "hidden", False)]
    for option in hidden:
        option.hidden = False  # type: ignore[attr-defined]
    try:
        typer.echo(context.get_help(), color=context.color)
    finally:
        for option in hidden:
            option.hidden = True  # type: ignore[attr-defined]
    raise typer.Exit


_ALL = typer.Option(False, "--help-all", help="Show every option and exit.", is_eager=True, callback=_show_all)


def plan_option(field: str, plan: type[Flags] = Decoding, **changes: Any) -> Any:
    """A typer option for one field of a plan, for a command without a whole plan; ``changes``: such as ``help``."""
    info, written = plan.model_fields[field], flag_of(plan, field)
    default = list(info.default) if isinstance(info.default, tuple) else ... if info.is_required() else info.default
    metavar = written.metavar or _stands_for(info.annotation)
    arguments: dict[str, Any] = {"help": info.description, "metavar": metavar}
    if written.shown is not None:
        arguments["show_default"] = written.shown
    elif info.is_required():
        arguments["show_default"] = False
    if written.exists is not None:
        arguments |= {"exists": True, "dir_okay": written.exists == "folder", "file_okay": written.exists == "file"}
    if {int, float} & {info.annotation, *get_args(info.annotation)}:
        arguments["parser"] = partial(parse_number, plan, field)
    arguments |= changes
    default = arguments.pop("default", default)
    if not written.name.startswith("-"):
        return typer.Argument(default, **{**arguments, "metavar": written.name})
    return typer.Option(default, *filter(None, (written.name, written.short)), **arguments)


def _stands_for(annotation: Any) -> str | None:
    """Placeholder of a value in the help: one letter, to leave space for the words; None for a switch."""
    kinds = {annotation, *get_args(annotation)}
    return (
        None if bool in kinds else "N" if int in kinds else "X" if float in kinds else "PATH" if Path in kinds else "S"
    )


def _typed(annotation: Any) -> Any:
    """A field's type for typer: a list of texts if repeatable, a text if the field allows only some words."""
    kind = get_origin(annotation)
    return list[str] if kind is collections.abc.Sequence else str if kind is Literal else annotation


def table_option(flag: str, help: str) -> Any:
    """An option for axes or figures of a table, comma-separated."""
    return typer.Option(None, flag, help=help, metavar="A,B", show_default=False)


def layout(rows: str | None, columns: str | None, value: str | None) -> Any:
    """The layout of a table from its options."""
    from specbench.report import Layout

    return Layout(*(tuple(split_names(text or "")) for text in (rows, columns, value)))


#: In place of a folder: the newest run, sweep or profile.


def folders(help: str, metavar: str, *, many: bool = False) -> Any:
    """The argument of a command that reads one or several folders, or FOLDER:METHOD. LATEST is allowed.

    With ``many`` a folder stands for everything in it, otherwise for the newest run, sweep or profile in it.
    """
    callback = _with_latest if many else _single
    return typer.Argument(help=f"{help} Or {LATEST}, the newest.", metavar=metavar, callback=callback)


def folder_option(flag: str, help: str, metavar: str) -> Any:
    """An option for one folder; None without it. LATEST is allowed."""
    return typer.Option(None, flag, help=f"{help} Or {LATEST}, the newest.", metavar=metavar, callback=_optional)


def _optional(given: Any) -> Any:
    return None if given is None else _single(given)


def _single(given: Any) -> Any:
    """The paths or texts given; a folder that ``--out`` named is replaced by the newest run in it."""
    if isinstance(given, (list, tuple)):
        return [_single(each) for each in given]
    given = _with_latest(given)
    text = str(given)
    name, colon, method = (text, "", "") if os.path.isdir(text) else text.partition(":")
    if not os.path.isdir(name):
        return given
    from specbench.report import newest_in

    found = newest_in(Path(name))
    if found is None or found == Path(name):
        return given
    _say(f"newest in {name}: {found}")
    return type(given)(f"{found}{colon}{method}")


def _say(line: str) -> None:
    from specbench.cli import output

    output.stderr().print(line, soft_wrap=True, markup=False)


def _with_latest(given: Any) -> Any:
    """The paths or texts given, with the folder's name for LATEST."""
    if isinstance(given, (list, tuple)):
        return [_with_latest(each) for each in given]
    name, colon, method = str(given).partition(":")
    if name != LATEST or Path(name).exists() or Path(str(given)).exists():  # a folder named "latest" wins
        return given
    if (found := newest_folder()) is None:
        where = " or ".join(f"{folder}/" for folder in (RESULTS, PROFILES))
        raise UsageError(f"no run, sweep or profile in {where} here; name its folder")
    _say(f"latest: {found}")
    return type(given)(f"{found}{colon}{method}")


def assert_answers(run: Mapping[str, Any]) -> None:
    """Refuse to grade answers with simulated acceptance; ``run`` is the content of ``run.json``."""
    if run.get("simulated"):
        raise UsageError("acceptance was simulated in this run, so its text means nothing; run it without simulation")
