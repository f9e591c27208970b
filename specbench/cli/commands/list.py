"""``specbench list``: show what is registered, without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import annotated_types
import typer

from specbench.cli import output
from specbench.common import EngineFault, UsageError, one_line, option_names, registry, unknown_name

if TYPE_CHECKING:
    from specbench.backends import Backend, Mode

# Columns that would make a table wider than a terminal.
_ONLY_JSON = {"options", "paper", "broken"}

_KINDS = ("methods", "engines", "tasks", "presets", "models", "families", "gpus")


def list_(
    kind: str = typer.Argument(
        help="methods, engines, tasks, presets, models, families or gpus; or the name of a method, a task or an "
        "engine's mode"
    ),
    training: bool = typer.Option(False, "--training", help="The options of a method's training (train METHOD --set)."),
    as_json: bool = typer.Option(False, "--json", help="JSON to stdout, with every option of every method and task."),
) -> None:
    """List methods, tasks, presets, models or GPUs; or the options of one method or task, as in list jf.

    families are the model classes of transformers that the engine runs or
    refuses. engines are other engines, whose modes can be rows of a run:
    list vllm:ngram has the options of one.
    """
    if kind in ("models", "families"):
        from specbench.cli.commands.list_models import list_models
        from specbench.cli.list_families import list_families

        (list_models if kind == "models" else list_families)(as_json)
        return
    listings = {"methods": _methods, "engines": _engines, "tasks": _tasks, "presets": _presets, "gpus": _gpus}
    rows = listings[kind](as_json) if kind in listings and not training else _options_of(kind, training)
    if as_json:
        output.emit_json(rows)
        return
    if ":" in kind:
        output.stdout().print(_about(kind))
    columns = [name for name in rows[0] if name not in _ONLY_JSON] if rows else []
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    output.stdout().print(output.table(columns, cells))


def _options_of(name: str, training: bool) -> list[dict[str, Any]]:
    """The options of a method, of its training, or of a task, one row each; shared ones come last."""
    methods, tasks = registry.methods(), registry.tasks()
    if training:
        owner: Any = registry.trainable(name).recipe().Options
    elif ":" in name:  # a row of another engine
        from specbench.backends import engine_mode  # every command imports this module

        owner = engine_mode(name)[2].options
    elif name not in methods and name not in tasks:
        if meant := registry.suggestion(name):
            raise UsageError(f"unknown listing '{one_line(name, 80)}'; {meant}")
        raise unknown_name("listing", name, [*_KINDS, *methods, *tasks], see="specbench list --help says more")
    else:
        owner = (methods[name] if name in methods else tasks[name]).load().Options
    spellings = option_names(owner)
    return [
        {
            "option": field,
            "short": ", ".join(short for short, of in spellings.items() if of == field != short),
            "default": info.default,
            "what it is": f"{info.description or ''}{_range(info)}",
        }
        for field, info in sorted(owner.model_fields.items(), key=lambda item: item[0] not in owner.__annotations__)
    ]


def _range(info: Any) -> str:
    """Its limits or its allowed words, in brackets."""
    if get_origin(info.annotation) is Literal:
        return f" ({', '.join(map(str, get_args(info.annotation)))})"
    low = next((limit.ge for limit in info.metadata if isinstance(limit, annotated_types.Ge)), None)
    high = next((limit.le for limit in info.metadata if isinstance(limit, annotated_types.Le)), None)
    return "" if low is None or high is None else f" ({low} to {high})"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)


def _broken(each: registry.Broken, column: str) -> dict[str, Any]:
    """The cells of a broken plug-in; ``column`` has the reason."""
    return {"from": each.origin, column: f"broken: {each.error}", "options": None, "broken": str(each.error)}


def _methods(full: bool) -> list[dict[str, Any]]:
    broken = registry.broken("method")
    return [
        {
            "method": card.name,
            "lossless": bool(card.info.get("lossless", False)),
            "trained": bool(card.info.get("trained", False)),
            "from": card.origin,
            "what it does": card.info.get("summary", ""),
            "options": _options(card) if full else None,
            "broken": "",
        }
        for card in registry.methods().values()
        if card.name not in broken
    ] + [
        {"method": name, "lossless": None, "trained": None, **_broken(each, "what it does")}
        for name, each in broken.items()
    ]


def _tasks(full: bool) -> list[dict[str, Any]]:
    broken = registry.broken("task")
    return [
        {
            "task": card.name,
            "version": card.info["version"],
            "metric": card.info.get("metric", ""),
            "here": _data_here(card),
            "from": card.origin,
            "what it is": card.info.get("title", ""),
            "options": _options(card) if full else None,
            "broken": "",
        }
        for card in registry.tasks().values()
        if card.name not in broken
    ] + [
        {"task": name, "version": None, "metric": "", "here": None, **_broken(each, "what it is")}
        for name, each in broken.items()
    ]


def _engines(full: bool) -> list[dict[str, Any]]:
    from specbench.backends import engines

    rows = [
        {
            "row": f"{name}:{mode}",
            "here": _installed(backend, kind),
            "tried": kind.tried or "untried",
            "what it does": kind.help,
            "engine": backend.title,
            "lossless": kind.lossless,
            "by URL": backend.by_url != "no",
            "options": dict(kind.options.model_json_schema(by_alias=False)["properties"]),
        }
        for name, backend in engines().items()
        for mode, kind in backend.modes.items()
    ]
    if full:
        return rows
    for row in rows:  # the table has no space for more, and a version with a build name is long
        row.update(here=str(row["here"]).partition(" ")[0], tried=str(row["tried"]).partition(":")[0])
    return [dict(list(row.items())[:4]) for row in rows]


def _about(name: str) -> str:
    """A sentence about a mode of another engine."""
    from specbench.backends import engine_mode

    backend, _, mode = engine_mode(name)
    runs = {"no": "started here", "can be": "started here or by URL", "has to be": "by URL"}[backend.by_url]
    return f"{backend.title}, {runs}: {mode.help} ({mode.tried or 'untried'})"


def _installed(backend: type[Backend], kind: Mode) -> str:
    """The installed version; empty if it is not installed, or known only to a server."""
    if backend.by_url == "has to be":
        return ""
    try:
        return backend.version(kind.options()) or ""
    except EngineFault:
        return "no"


def _data_here(card: registry.Card) -> str:
    """Whether the task's files are on this machine: all, some (a variant or metric needs the others), or none."""
    from specbench.evals import is_present, manifest  # every command imports this module, and one reads data

    here = [is_present(file) for file in manifest(card.folder / "task.toml")]
    return "" if not here else "yes" if all(here) else "some" if any(here) else "no"


def _presets(full: bool) -> list[dict[str, Any]]:
    from specbench.planning import load_presets

    return [
        {
            "preset": name,
            "task": preset.task,
            "budget": preset.max_new_tokens,
            "prompts": preset.limit,
            "options": preset.options,
            "paper": preset.paper,
            "what it is": preset.title,
        }
        for name, preset in load_presets().items()
    ]


def _options(card: registry.Card) -> dict[str, Any]:
    schema: dict[str, Any] = card.load().Options.model_json_schema(by_alias=False)
    return dict(schema.get("properties", {}))


def _gpus(full: bool) -> list[dict[str, Any]]:
    from specbench.hardware import gpus

    return [
        {
            "gpu": gpu.name,
            "memory GB": gpu.memory_gb,
            "GB/s": gpu.bandwidth_gb_s,
            "bf16": gpu.bf16,
            "fp16": gpu.fp16,
            "fp8": gpu.fp8,
            "fp32 TFLOP/s": gpu.fp32,
            "TDP W": gpu.power_w,
        }
        for gpu in gpus.GPUS
    ]
