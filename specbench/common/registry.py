"""Find methods and tasks by name without importing them; a broken one does not affect the others.

A folder of ``methods/`` (``tasks/``) with a ``method.toml`` (``task.toml``) is registered under its own name, or under
the ``name`` in that file. Other packages register through the entry-point groups ``specbench.methods`` and
``specbench.tasks``: the entry point's name is the registered name, its value the package that holds the same two files.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import plugins, toml
from specbench.common.errors import SpecbenchError, UsageError, one_line, unknown_name
from specbench.common.reading import read_text, validate

# Through the links that make the top-level methods/ and tasks/ importable and put them in the wheel.
_PACKAGE = Path(__file__).parents[1]
#: Origin of specbench's own methods and tasks.
OWN = "specbench"

_LARGEST_MODULE = 4 << 20
_MODULES = {"method": "decoder", "task": "task"}
_CLASSES = {"method": "Decoder", "task": "Task"}


class _Method(BaseModel):
    """The fields of a ``method.toml`` that are checked; others are allowed."""

    model_config = ConfigDict(strict=True)

    name: str = ""
    title: str = ""
    summary: str = ""
    aliases: list[str] = []
    similar: list[str] = []
    lossless: bool = False
    trained: bool = False
    recipe: bool = False
    trains: str = ""
    noise: str = "shared"
    measures: dict[str, str] = {}
    presets: dict[str, dict[str, Any]] = {}
    tune: dict[str, list[Any]] = {}
    draft_length: dict[str, str | int] = {}


class _Task(BaseModel):
    """The fields of a ``task.toml`` that are checked; :mod:`specbench.evals.data` reads its data files."""

    model_config = ConfigDict(strict=True)

    name: str = ""
    title: str
    version: int = Field(ge=1)
    metric: str
    max_new_tokens: int = Field(ge=1)
    training: bool = False
    judge: bool = False
    data_file: bool = False
    sample: str = ""


_SAYS: dict[str, type[BaseModel]] = {"method": _Method, "task": _Task}


@dataclass(frozen=True)
class Card:
    """A registered method or task, not yet imported.

    Attributes:
        origin: :data:`OWN` or the distribution that contains it.
        info: its TOML file, parsed.
    """

    kind: str
    name: str
    package: str
    folder: Path
    origin: str
    info: dict[str, Any]

    @property
    def who(self) -> str:
        """Its name in errors."""
        return _who(self.kind, self.name, self.origin)

    def load(self) -> Any:
        """Import the module with its classes: ``Options``, and ``Decoder`` of a method or ``Task`` of a task.

        Raises:
            UsageError: a module is missing or not valid Python, or a class is missing; the text names it.
            PluginFault: the import tried to end the command, or raised something else.
        """
        with plugins.plugin_call(self.who):
            try:
                module = importlib.import_module(f"{self.package}.{_MODULES[self.kind]}")
            except (ImportError, SyntaxError) as error:
                raise UsageError(f"{self.who} cannot be imported: {error}") from error
        for needed in ("Options", _CLASSES[self.kind]):
            if not isinstance(getattr(module, needed, None), type):
                raise UsageError(f"{self.who}: {module.__name__} has no class {needed}, which every {self.kind} needs")
        return module

    def recipe(self) -> Any:
        """Import ``train.py`` of a method; :mod:`specbench.training.recipe` describes it."""
        if not self.info.get("recipe", False):
            having = (
                ", ".join(name for name, card in _found(self.kind).cards.items() if card.info.get("recipe")) or "none"
            )
            raise UsageError(f"method '{self.name}' has no training recipe; with one: {having}")
        with plugins.plugin_call(self.who):
            try:
                return importlib.import_module(f"{self.package}.train")
            except (ImportError, SyntaxError) as error:
                raise UsageError(f"the recipe of method '{self.name}' cannot be imported: {error}") from error


@dataclass(frozen=True)
class Broken:
    """A method or task of another package that cannot work.

    Attributes:
        error: raised when it is requested by name.
    """

    origin: str
    error: SpecbenchError


def _who(kind: str, name: str, origin: str) -> str:
    return f"{kind} '{name}' (from {origin})"


def _read(kind: str, name: str, package: str, folder: Path, origin: str) -> Card:
    path, todo = folder / f"{kind}.toml", f"fix it or uninstall {origin}"
    try:
        info = toml.read(path, todo)
        validate(_SAYS[kind], info, path, todo)
    except UsageError as error:
        raise UsageError(f"{kind} '{name}' (from {origin}) has no readable {kind}.toml: {error}") from None
    # Not every name can be a package: "mt-bench" is in mt_bench, whose TOML file has the name.
    card = Card(kind, str(info.get("name", name)), package, folder, origin, info)
    plugins.expect(package, card.who)
    return card


@dataclass(frozen=True)
class _Found:
    cards: dict[str, Card]
    broken: dict[str, Broken]


@cache
def _found(kind: str) -> _Found:
    group = f"{kind}s"
    folders = [file.parent for file in sorted((_PACKAGE / group).glob(f"*/{kind}.toml"))]
    own = [_read(kind, folder.name, f"specbench.{group}.{folder.name}", folder, OWN) for folder in folders]
    cards = {card.name: card for card in own}
    broken: dict[str, Broken] = {}
    for point in entry_points(group=f"specbench.{group}"):
        name, origin = point.name, point.dist.name if point.dist else point.value
        before = cards[name].origin if name in cards else broken[name].origin if name in broken else None
        try:
            if before is not None:
                raise UsageError(f"{kind} '{name}' of {origin} is registered by {before} already; uninstall one")
            cards[name] = _brought(kind, name, point.value, origin)
        except SpecbenchError as error:
            # Of two packages with the same name neither is used, because their order is arbitrary. Our own win.
            key = name
            if before == OWN:
                key = f"{name} of {origin}"
            else:
                cards.pop(name, None)
            broken[key] = Broken(origin, error)
    return _Found(cards, broken)


def _brought(kind: str, name: str, value: str, origin: str) -> Card:
    """The card made from an entry point."""
    who = _who(kind, name, origin)
    plugins.expect(value, who)
    with plugins.plugin_call(who):  # finding a subpackage imports its parent
        try:
            spec = importlib.util.find_spec(value)
        except ModuleNotFoundError:  # not even the parent package
            spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"{kind} '{name}' of {origin} points at '{value}', which is not a package")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return replace(_read(kind, name, value, folder, origin), name=name)


def methods() -> dict[str, Card]:
    """All registered methods by name."""
    return _found("method").cards


def tasks() -> dict[str, Card]:
    """All registered tasks by name."""
    return _found("task").cards


def broken(kind: str) -> dict[str, Broken]:
    """The methods or tasks of other packages that cannot work, as far as can be seen without importing them, by name;
    a name of our own is shown with its origin."""
    found = _found(kind)
    seen = {
        card.name: Broken(card.origin, UsageError(f"{card.who} cannot be imported: {why}"))
        for card in found.cards.values()
        if card.origin != OWN and (why := _import_fault(card.folder / f"{_MODULES[kind]}.py"))
    }
    return {**found.broken, **seen}


def method(name: str) -> Card:
    """A method by name; raises a UsageError with the nearest names, or what is wrong with a broken one."""
    return _find("method", name)


def task(name: str) -> Card:
    """A task by name; raises a UsageError with the nearest names, or what is wrong with a broken one."""
    return _find("task", name)


def trainable(name: str) -> Card:
    """A method by name, or by the ``trains`` of its ``method.toml``: "draft" is a method's draft model."""
    known = methods()
    other = {str(card.info["trains"]): card for card in known.values() if card.info.get("trains")}
    if name not in known and name not in other:
        raise _unknown("method", name, {**other, **known})
    return known[name] if name in known else other[name]


def _find(kind: str, name: str) -> Card:
    found = _found(kind)
    if name in found.broken:
        raise found.broken[name].error
    if name not in found.cards:
        raise _unknown(kind, name, found.cards)
    return found.cards[name]


def suggestion(name: str) -> str:
    """The method that a user means by another name of it, or the most similar one; empty where no method claims it."""
    wanted = _letters(name)
    for key, words in (("aliases", "did you mean"), ("similar", "it is not in specbench; similar:")):
        for card in methods().values():
            if wanted in map(_letters, (*card.info.get(key, []), *([card.name] if key == "aliases" else []))):
                title = str(card.info.get("title", "")).partition(" (")[0]
                return f"{words} {card.name}{f' ({title})' if title else ''}{'?' if key == 'aliases' else ''}"
    return ""


def _letters(text: str) -> str:
    return "".join(each for each in text[:200].lower() if each.isalnum())


def _unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    if kind == "method" and (meant := suggestion(name)):
        return UsageError(f"unknown method '{one_line(name, 80)}'; {meant}")
    return unknown_name(kind, name, known, see=f"specbench list {kind}s shows all")


def _import_fault(file: Path) -> str | None:
    """Return why a module cannot be imported, from its text without running it; None if it can.

    Only top-level imports count: an import inside a ``try`` or a function may fail.
    """
    try:
        tree = ast.parse(read_text(file, "install its package again", _LARGEST_MODULE))
    except UsageError as error:
        return str(error)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{file.name} is not valid Python{line}: {one_line(getattr(error, 'msg', None) or str(error))}"
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    lacking = (name for name in names if (top := name.partition(".")[0]) and not _is_here(top))
    return next((f"{file.name} imports {one_line(name, 60)}, which is not installed" for name in lacking), None)


def _is_here(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ValueError, ImportError):  # a module that was inserted by hand has no spec
        return True
