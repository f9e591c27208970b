"""Names -> methods and tasks, found without importing any of them.

A folder of ``methods/`` (``tasks/``) that holds a ``method.toml`` (``task.toml``) is registered under its own name, or
under the ``name`` in that file.
Other packages register through the entry-point groups ``specbench.methods`` and ``specbench.tasks``: the entry point's
name is the registered name, its value the package that holds the same two files.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import guests, moved, toml
from specbench.common.errors import UsageError, unknown
from specbench.common.reading import fitted

# Through the links that make the top-level methods/ and tasks/ importable and put them in the wheel.
_PACKAGE = Path(__file__).parents[1]
#: Where methods and tasks come from that no other package brought.
OWN = "specbench"

_MODULES = {"method": "decoder", "task": "task"}
_CLASSES = {"method": "Decoder", "task": "Task"}


class _Method(BaseModel):
    """What of a ``method.toml`` is looked at; there may be more in it."""

    model_config = ConfigDict(strict=True)

    name: str = ""
    title: str = ""
    summary: str = ""
    lossless: bool = False
    trained: bool = False
    recipe: bool = False
    trains: str = ""
    noise: str = "shared"
    measures: dict[str, str] = {}
    presets: dict[str, dict[str, Any]] = {}
    tune: dict[str, list[Any]] = {}


class _Task(BaseModel):
    """The same of a ``task.toml``; its data files are read by :mod:`specbench.evals.data`."""

    model_config = ConfigDict(strict=True)

    name: str = ""
    title: str
    version: int = Field(ge=1)
    metric: str
    max_new_tokens: int = Field(ge=1)
    training: bool = False
    judge: bool = False
    data_file: bool = False


_SAYS: dict[str, type[BaseModel]] = {"method": _Method, "task": _Task}


@dataclass(frozen=True)
class Card:
    """A registered method or task, not yet imported.

    Attributes:
        kind: "method" or "task".
        name: registered name.
        package: import name of its package.
        folder: where its files are.
        origin: :data:`OWN` or the distribution that brought it.
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
        """How an error names it."""
        return _who(self.kind, self.name, self.origin)

    def load(self) -> Any:
        """Imports the module with its classes: ``Options``, and ``Decoder`` of a method or ``Task`` of a task.

        Raises:
            UsageError: the import failed, or a class is missing; names which.
            PluginFault: the import ended the command.
        """
        try:
            with guests.hosting(self.who):
                module = importlib.import_module(f"{self.package}.{_MODULES[self.kind]}")
        except (ImportError, SyntaxError) as error:
            raise UsageError(f"{self.who} cannot be imported: {error}{_hint(error)}") from error
        for needed in ("Options", _CLASSES[self.kind]):
            if not isinstance(getattr(module, needed, None), type):
                raise UsageError(f"{self.who}: {module.__name__} has no class {needed}, which every {self.kind} needs")
        return module

    def recipe(self) -> Any:
        """Imports ``train.py`` of a method, which is described in :mod:`specbench.training.recipe`.

        Raises:
            UsageError: the method has none, or it cannot be imported.
            PluginFault: the import ended the command.
        """
        if not self.info.get("recipe", False):
            having = ", ".join(name for name, card in _cards(self.kind).items() if card.info.get("recipe")) or "none"
            raise UsageError(f"method '{self.name}' has no training recipe; with one: {having}")
        try:
            with guests.hosting(self.who):
                return importlib.import_module(f"{self.package}.train")
        except (ImportError, SyntaxError) as error:
            raise UsageError(f"the recipe of method '{self.name}' cannot be imported: {error}{_hint(error)}") from error


def _hint(error: Exception) -> str:
    return moved.hint(error) if isinstance(error, ImportError) else ""


def _who(kind: str, name: str, origin: str) -> str:
    return f"{kind} '{name}' (from {origin})"


def _read(kind: str, name: str, package: str, folder: Path, origin: str) -> Card:
    path, todo = folder / f"{kind}.toml", f"mend it or uninstall {origin}"
    try:
        info = toml.read(path, todo)
        fitted(_SAYS[kind], info, path, todo)
    except UsageError as error:
        raise UsageError(f"{kind} '{name}' (from {origin}) has no readable {kind}.toml: {error}") from None
    # A package cannot have every name: "mt-bench" lives in mt_bench and says so.
    card = Card(kind, str(info.get("name", name)), package, folder, origin, info)
    guests.expect(package, card.who)
    return card


@cache
def _cards(kind: str) -> dict[str, Card]:
    group = f"{kind}s"
    folders = [file.parent for file in sorted((_PACKAGE / group).glob(f"*/{kind}.toml"))]
    own = [_read(kind, folder.name, f"specbench.{group}.{folder.name}", folder, OWN) for folder in folders]
    cards = {card.name: card for card in own}
    for point in entry_points(group=f"specbench.{group}"):
        origin = point.dist.name if point.dist else point.value
        if point.name in cards:
            raise UsageError(
                f"{kind} '{point.name}' of {origin} is registered by {cards[point.name].origin} already; uninstall one"
            )
        who = _who(kind, point.name, origin)
        guests.expect(point.value, who)
        try:
            with guests.hosting(who):  # to find a package within another one imports that
                spec = importlib.util.find_spec(point.value)
        except ModuleNotFoundError:  # not even the package around it
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise UsageError(f"{kind} '{point.name}' of {origin} points at '{point.value}', which is no package")
        folder = Path(spec.submodule_search_locations[0])
        cards[point.name] = replace(_read(kind, point.name, point.value, folder, origin), name=point.name)
    return cards


def methods() -> dict[str, Card]:
    """All registered methods by name."""
    return _cards("method")


def tasks() -> dict[str, Card]:
    """All registered tasks by name."""
    return _cards("task")


def method(name: str) -> Card:
    """A method by name; raises a UsageError with the nearest names."""
    return _find("method", name)


def task(name: str) -> Card:
    """A task by name; raises a UsageError with the nearest names."""
    return _find("task", name)


def trainable(name: str) -> Card:
    """A method by name, or by what its ``method.toml`` says that it ``trains``: "draft" is the draft model of one.

    Raises:
        UsageError: there is none, with the nearest names.
    """
    known = _cards("method")
    other = {str(card.info["trains"]): card for card in known.values() if card.info.get("trains")}
    if name not in known and name not in other:
        raise unknown("method", name, {**other, **known})
    return known[name] if name in known else other[name]


def _find(kind: str, name: str) -> Card:
    known = _cards(kind)
    if name not in known:
        raise unknown(kind, name, known)
    return known[name]
