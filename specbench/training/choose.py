"""Options of a recipe, chosen: those of a paper or of the user's file, and what is set beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.common import Card, UsageError, option_names, parse_options, unknown_name, yaml

_FOLDER = "recipes"


def published(card: Card) -> dict[str, Path]:
    """The YAML files that a method brings, by name: a publication's options each."""
    return {path.stem: path for path in sorted((card.folder / _FOLDER).glob("*.yaml"))}


def choose(card: Card, options: Any, recipe: str | None, settings: Sequence[str]) -> Any:
    """The options that a training runs with.

    Args:
        recipe: name of one of :func:`published`, or a YAML file of the user's; None is the defaults.
        settings: ``NAME=VALUE``, which win over it.
    """
    own = assigned(settings)
    if recipe is None:
        return parse_options(options, own, f"the recipe of {card.name}")
    known = option_names(options)
    set_here = {known.get(name.replace("-", "_")) for name in own}
    theirs = {name: value for name, value in _read(card, recipe).items() if known.get(name) not in set_here}
    return parse_options(options, {**theirs, **own}, f"the recipe of {card.name}")


def assigned(settings: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` as a mapping; raises a UsageError for what is none, or set twice."""
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name:
            raise UsageError(f"--set {setting} is not NAME=VALUE; write --set lr=0.001, for one")
        if name in found:
            raise UsageError(f"--set {name} is given twice; keep one")
        found[name] = value
    return found


def _read(card: Card, recipe: str) -> Mapping[str, Any]:
    path = published(card).get(recipe, Path(recipe))
    if path.suffix not in (".yaml", ".yml"):
        raise unknown_name(f"recipe of {card.name}", recipe, published(card))
    found = yaml.read(path, "give a .yaml file of options, as in 'lr: 0.0001'")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"recipe file {recipe} does not map options to values, as 'lr: 0.0001' does")
    return found
