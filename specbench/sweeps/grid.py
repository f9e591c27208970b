"""Build the configurations of a sweep and check them before a model is loaded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from specbench.common import EnvironmentRefused, UsageError, one_line, registry, unknown_name, yaml
from specbench.common import option_names as option_names
from specbench.decoding import Method
from specbench.planning import Settings, make_method
from specbench.results import BASELINE

#: The axis that belongs to the run, not to a method.
CONCURRENCY = "concurrency"

#: More configurations than this are refused without --yes.
MANY = 1000

#: More values than this in one range are a mistake.
MOST = 10**5

_DIGITS = 30  # most digits before or after the point of a range's ends

#: Key of a cell's values in a sweep over the draft length.
DRAFT_LENGTH = "draft_length"

_LENGTHS = {"k": 0, "k+1": 1}  # values of a method's [draft_length]: tokens beyond the length

_PRESET = "preset"  # sets several options at once


@dataclass(frozen=True)
class Axis:
    """One axis: as written by the user (``n`` or ``jf.n``), its row of ``--method`` (empty for all), its values."""

    written: str
    label: str
    option: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One setting of one method, whose label names it, ``jf n=64 pool=4``; ``values`` by the option's own name."""

    method: Method
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        return self.method.label


@dataclass(frozen=True)
class Grid:
    """The configurations of a sweep in the order of the axes, the last axis fastest.

    ``too_large`` ones do not fit in memory."""

    baseline: Method
    cells: tuple[Cell, ...]
    concurrency: tuple[int, ...]
    too_large: tuple[Cell, ...] = ()


def read_axes(written: Sequence[str], file: Path | None = None) -> tuple[Axis, ...]:
    """The axes of ``--grid`` and of a YAML file whose mapping ``grid`` has, per option, a list or a text as here.

    Args:
        written: ``OPTION=V,V,…`` or ``OPTION=LOW:HIGH:STEP``, both ends included; ``METHOD.OPTION`` limits it to one
            method.
    """
    axes: list[Axis] = []
    for text in written:
        name, sign, values = text.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"--grid {text}: write OPTION=V,V,… or OPTION=LOW:HIGH:STEP, as in --grid n=16,32,64")
        axes.append(_axis(name.strip(), _values(name, values)))
    if file is not None:
        mapping = _mapping(file)
        try:
            axes += [_axis(name, _listed(name, values)) for name, values in mapping.items()]
        except UsageError as error:
            raise UsageError(f"{file}: {one_line(str(error), 300)}") from None
    seen = set[str]()
    for axis in axes:
        if axis.written in seen:
            raise UsageError(f"--grid {axis.written} is given twice; write all its values in one")
        seen.add(axis.written)
    if not axes:
        raise UsageError("nothing to sweep; write --grid OPTION=V,V,… as in --grid n=16,32,64")
    return tuple(axes)


def expand(
    labels: Mapping[str, str],
    settings: Settings,
    axes: Sequence[Axis],
    insist: bool = False,
    asked: Settings | None = None,
    refusal: Callable[[Method], str | None] = lambda method: None,
) -> Grid:
    """All configurations of the axes, for every named method.

    A method without any swept option is one configuration.

    Args:
        asked: the settings that the user wrote; others are an alias's defaults, which a swept option or preset
            replaces. Default is all.
        refusal: why a method's trees do not fit in memory, or None; such configurations are listed separately.
    """
    mine = settings if asked is None else asked
    of_methods = [axis for axis in axes if axis.option != CONCURRENCY or axis.label]
    for axis in of_methods:
        if axis.label and axis.label not in labels:
            raise unknown_name("method", axis.label, labels, "in --grid", choose="name one of --method")
    swept = {label: _own(label, name, mine[label], of_methods) for label, name in labels.items() if name != BASELINE}
    raw = {label: _without_swept(labels[label], settings[label], mine[label], swept.get(label, {})) for label in labels}
    if not swept:
        raise UsageError(
            f"nothing to sweep but {BASELINE}, which runs with every configuration; name a --method that drafts"
        )
    for axis in of_methods:
        if not any(axis in own.values() for own in swept.values()):
            known = {option: "" for label in swept for option in _options(labels[label])}
            if not axis.label and axis.option.replace("-", "_") in known:
                raise UsageError(
                    f"--grid {axis.written} applies to no method, because each has an axis of its own; drop it"
                )
            typed = axis.written if axis.option == CONCURRENCY else axis.option
            raise unknown_name(
                "option",
                typed,
                [*known, CONCURRENCY],
                f"of {', '.join(swept)} in --grid",
                see=f"specbench list {labels[next(iter(swept))]} shows all",
            )
    sequences = concurrency_of(axes)
    count = len(sequences) * sum(math.prod(len(axis.values) for axis in own.values()) for own in swept.values())
    if count > MANY and not insist:
        raise UsageError(f"this grid has {count:,} configurations; narrow it, or add --yes to run more than {MANY:,}")
    cells: list[Cell] = []
    too_large: list[Cell] = []
    why: dict[str, str] = {}
    for label, own in swept.items():
        for values in itertools.product(*(axis.values for axis in own.values())):
            chosen = dict(zip(own, values, strict=True))
            named = " ".join([label, *(f"{own[o].option}={value}" for o, value in chosen.items())])
            method = make_method(named, labels[label], {**raw[label], **chosen})
            if method.stateful:
                raise UsageError(
                    f"{named} learns from earlier requests, and a sweep decodes in parts; measure it with specbench run"
                )
            cell = Cell(method, {o: _typed(method, o, value) for o, value in chosen.items()})
            refused = refusal(method)
            if refused:
                why[named] = refused
            (too_large if refused else cells).append(cell)
    if too_large and not cells:
        smallest = min(too_large, key=lambda cell: cell.method.max_rows).label
        raise EnvironmentRefused(f"no configuration of the grid fits in memory; {why[smallest]}")
    baseline = make_method(BASELINE, BASELINE, raw[BASELINE])
    return Grid(baseline, tuple(cells), sequences, tuple(too_large))


def expand_draft_lengths(
    labels: Mapping[str, str],
    settings: Settings,
    lengths: Sequence[int],
    asked: Settings,
    refusal: Callable[[Method], str | None] = lambda method: None,
) -> Grid:
    """A configuration per method and draft length, from the methods' ``[draft_length]``; arguments as :func:`expand`.

    The user's settings replace those of the method's table that do not depend on the length, such as ``tree``.
    """
    cells: list[Cell] = []
    for label, name in labels.items():
        if name == BASELINE:
            continue
        rule = registry.method(name).info.get("draft_length")
        if not rule:
            raise UsageError(
                f"cannot sweep the draft length of {label}: no option of it sets one; leave it out of --method"
            )
        known = _options(name)
        mine = {known.get(written.replace("-", "_"), written) for written in asked[label]}
        for option in sorted(mine & {option for option, value in rule.items() if value in _LENGTHS}):
            raise UsageError(f"{option} of {label} is set, and --acceptance sweeps it; leave it out of --set")
        for length in lengths:
            chosen = {
                option: length + _LENGTHS[value] if value in _LENGTHS else value
                for option, value in rule.items()
                if value in _LENGTHS or option not in mine
            }
            fixed = {
                written: value
                for written, value in settings[label].items()
                if known.get(written.replace("-", "_"), written) not in chosen
            }
            method = make_method(f"{label} {DRAFT_LENGTH}={length}", name, {**fixed, **chosen})
            if method.stateful:
                raise UsageError(f"{label} learns from earlier requests, and a sweep decodes in parts; leave it out")
            if method.stops:
                raise UsageError(
                    f"{label} stops drafting by measured times, so its acceptance varies; set {label}.stop=false"
                )
            if refused := refusal(method):
                raise EnvironmentRefused(f"{method.label} does not fit in memory; {refused}")
            cells.append(Cell(method, {DRAFT_LENGTH: length}))
    if not cells:
        raise UsageError(f"nothing to sweep but {BASELINE}; name a --method that drafts")
    return Grid(make_method(BASELINE, BASELINE, dict(settings.get(BASELINE, {}))), tuple(cells), (1,))


def read_lengths(text: str) -> tuple[int, ...]:
    """The draft lengths of ``--acceptance``: LOW:HIGH or a list."""
    written = f"{text}:1" if text.count(":") == 1 else text
    try:
        lengths = tuple(map(int, _values("draft length", written)))
    except (UsageError, ValueError):
        lengths = ()
    if not lengths or min(lengths) < 1 or len({*lengths}) < len(lengths):
        raise UsageError(
            f"--acceptance {text}: write draft lengths from 1, as in --acceptance 1:8 or --acceptance 1,2,4"
        )
    return lengths


def _own(label: str, name: str, fixed: Mapping[str, Any], axes: Sequence[Axis]) -> dict[str, Axis]:
    """The axes of one method by the option's own name; an axis with its label wins over one without."""
    known = _options(name)
    found: dict[str, Axis] = {}
    for axis in sorted(axes, key=lambda axis: axis.label != ""):
        option = known.get(axis.option.replace("-", "_"))
        if option is not None and axis.label in ("", label):
            before = found.get(option)
            if before is not None and before.label == axis.label:
                raise UsageError(f"--grid {before.written} and {axis.written} are one option of {label}; keep one")
            found[option] = axis
    for written in fixed:
        if known.get(written.replace("-", "_")) in found:
            raise UsageError(f"{written} of {label} is both set and swept; leave one out")
    return {found_option: found[found_option] for axis in axes for found_option in found if found[found_option] is axis}


def _without_swept(
    name: str, fixed: Mapping[str, Any], mine: Mapping[str, Any], swept: Mapping[str, Axis]
) -> dict[str, Any]:
    """The fixed settings, without defaults that swept options replace."""
    known = _options(name)
    return {
        option: value
        for option, value in fixed.items()
        if option in mine or (_PRESET not in swept and known.get(option.replace("-", "_")) not in swept)
    }


def _options(method: str) -> dict[str, str]:
    card = registry.method(method)
    known = option_names(card.load().Options)
    return {**known, _PRESET: _PRESET} if card.info.get("presets") else known


def _typed(method: Method, option: str, value: str) -> Any:
    return value if option == _PRESET else method.options.model_dump(mode="json")[option]


def concurrency_of(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Numbers of sequences stepped together from the axis ``concurrency``; by default one."""
    for axis in axes:
        if axis.option == CONCURRENCY and not axis.label:
            try:
                found = tuple(int(value) for value in axis.values)
            except ValueError as error:
                raise UsageError(f"--grid {CONCURRENCY} takes integers, not {', '.join(axis.values)}") from error
            if min(found) < 1:
                raise UsageError(f"--grid {CONCURRENCY} takes 1 or more, not {min(found)}")
            return found
    return (1,)


def _axis(name: str, values: tuple[str, ...]) -> Axis:
    seen = set[str]()
    for value in values:
        plain = _plain(value)
        if plain in seen:
            raise UsageError(f"--grid {name} has the value {value} twice; remove one")
        seen.add(plain)
    label, _, option = name.rpartition(".")
    return Axis(name, label, option, values)


def _plain(value: str) -> str:
    """A normal form for finding duplicates: 4, 04 and 4.0 are equal."""
    try:
        return f"{Decimal(value).normalize()}"
    except ArithmeticError:  # not a number, or an infinite one
        return value


def _values(name: str, text: str) -> tuple[str, ...]:
    if text.count(":") == 2 and "," not in text:
        return _range(name, text)
    values = tuple(value.strip() for value in text.split(","))
    if not all(values):
        raise UsageError(f"--grid {name}={text} has an empty value; write OPTION=V,V,…")
    return values


def _range(name: str, text: str) -> tuple[str, ...]:
    try:  # decimal arithmetic: 0.5:0.95:0.05 has ten values, and binary fractions would lose the last one
        low, high, step = (Decimal(part) for part in text.split(":"))
        if any(not part.is_finite() or abs(part.adjusted()) > _DIGITS for part in (low, high, step)):
            raise ValueError("out of range")
        count = 1 + int((high - low) / step) if step > 0 and high >= low else 0
    except (ArithmeticError, ValueError) as error:
        raise UsageError(f"--grid {name}={text}: LOW:HIGH:STEP takes three numbers") from error
    if not count:
        raise UsageError(f"--grid {name}={text} is empty; HIGH must not be below LOW, and STEP above 0")
    if count > MOST:
        raise UsageError(f"--grid {name}={text} has {count:,} values; choose a larger STEP")
    return tuple(f"{(low + at * step).normalize():f}" for at in range(count))


def _mapping(file: Path) -> dict[str, Any]:
    content = yaml.read(file, "fix it, or write --grid OPTION=V,V,…", texts=True)
    grid = content.get("grid") if isinstance(content, dict) else None
    if not isinstance(grid, dict) or set(content) != {"grid"}:
        raise UsageError(f"{file} must contain one mapping, grid, from options to lists of values")
    return grid


def _listed(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str):
        return _values(name, values)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise UsageError(f"grid {name} has no values, or an empty one; give it a list, as in {name}: [16, 32]")
    return tuple(values)
