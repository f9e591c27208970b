"""Options that a training runs with: from a paper's recipe or the user's file, changed by ``--set``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.common import Card, UsageError, option_names, parse_options, unknown_name, yaml

_FOLDER = "recipes"


def published(card: Card) -> dict[str, Path]:
    """Return the recipe files of a method, by name: each holds the options of one publication."""
    return {path.stem: path for path in sorted((card.folder / _FOLDER).glob("*.yaml"))}


def choose(card: Card, options: Any, recipe: str | None, settings: Sequence[str]) -> Any:
    """Return the options that a training runs with.

    Args:
        recipe: name of one of :func:`published`, or the path of a YAML file; None is the defaults.
        settings: ``NAME=VALUE``, which override the recipe.
    """
    own = assigned(settings)
    if recipe is None:
        return parse_options(options, own, f"the recipe of {card.name}")
    known = option_names(options)
    set_here = {known.get(name.replace("-", "_")) for name in own}
    theirs = {name: value for name, value in _read(card, recipe).items() if known.get(name) not in set_here}
    return parse_options(options, {**theirs, **own}, f"the recipe of {card.name}")


def assigned(settings: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` settings; raise a UsageError where one has another form or a name is set twice."""
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name:
            raise UsageError(f"cannot read --set {setting}: it is not NAME=VALUE; write --set lr=0.001, for example")
        if name in found:
            raise UsageError(f"--set {name} is given twice; keep one")
        found[name] = value
    return found


def _read(card: Card, recipe: str) -> Mapping[str, Any]:
    path = published(card).get(recipe, Path(recipe))
    if path.suffix not in (".yaml", ".yml"):
        raise unknown_name("recipe", recipe, published(card), f"of {card.name}")
    found = yaml.read(path, "give a .yaml file of options, as in 'lr: 0.0001'")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError(
            f"cannot read recipe file {recipe}: it does not map options to values; write lines such as 'lr: 0.0001'"
        )
    return found
