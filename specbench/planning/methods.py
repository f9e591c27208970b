"""Methods of a plan: names and settings as written to rows with checked options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.backends import Row, engine_mode, is_row, make_row
from specbench.common import PluginFault, UsageError, parse_options, plugins, registry, unknown_name
from specbench.common import option_names as option_names
from specbench.decoding import Decoder, Method, pair_methods, paired_method
from specbench.planning.simulation import parse as parse_simulated
from specbench.results import BASE, BASELINE, SimulatedAcceptance

#: Label of a row -> its options as written.
Settings = dict[str, dict[str, Any]]


def plan_methods(names: Sequence[str], settings: Sequence[str]) -> tuple[Method, ...]:
    """Methods with options; AR is put first, and added when it was not named.

    A method named several times runs as several rows, labelled ``jacobi``, ``jacobi#2``, …; ``--set`` takes the label.

    Args:
        settings: ``LABEL.OPTION=VALUE`` strings; the label may be left out when only one method has options.
    """
    labels = labels_of(names)
    return make_methods(labels, parse_settings(labels, settings))


def make_methods(labels: Mapping[str, str], settings: Settings) -> tuple[Method, ...]:
    """The methods of some labels with their options as written; errors as of :func:`plan_methods`."""
    return tuple(make_method(label, name, settings.get(label, {})) for label, name in labels.items())


def plan_rows(labels: Mapping[str, str], settings: Settings, urls: Sequence[str]) -> tuple[Row, ...]:
    """The rows of other engines (ENGINE:MODE) in a plan; ``urls`` are servers of the user's, ``LABEL=URL`` or
    ``ENGINE=URL``.
    """
    theirs = {label: name for label, name in labels.items() if is_row(name)}
    where = _addresses(urls, theirs)
    return tuple(make_row(label, name, settings[label], where.get(label)) for label, name in theirs.items())


def _addresses(urls: Sequence[str], rows: Mapping[str, str]) -> dict[str, str]:
    """Label of each row that is reached by an address -> it; one of the row's own wins over its engine's."""
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    for url in urls:
        who, equals, address = url.partition("=")
        if not equals or not address.startswith(("http://", "https://")):
            raise UsageError(f"--backend-url {url}: write ENGINE=http://HOST:PORT, as in vllm=http://127.0.0.1:8000")
        mine = [label for label, name in rows.items() if who in (label, name, name.partition(":")[0])]
        if not mine:
            raise UsageError(f"--backend-url {url}: no row of {who} is in --method")
        if who in said:
            raise UsageError(f"--backend-url names {who} twice; keep one address")
        said[who] = address
        found |= {label: address for label in mine if label == who or label not in said}
    return found


def base_row() -> Method:
    """Plain decoding of the model that the run's model was made from."""
    return make_method(BASE, BASELINE, {})


def runnable() -> list[str]:
    """The registered methods that run as they come: none of them has to be told first what to draft with."""

    def runs(card: registry.Card) -> bool:
        try:
            module = card.load()
            with plugins.plugin_call(card.who):
                module.Decoder.check(module.Options(), "")
        except (UsageError, PluginFault):  # another package's may not even be importable
            return False
        return True

    return [name for name, card in registry.methods().items() if runs(card)]


def plan_simulated(methods: Sequence[Method], specs: Sequence[str]) -> dict[str, SimulatedAcceptance]:
    """Whose acceptance is simulated, see :func:`specbench.planning.simulation.parse`; of plain decoding it never is."""
    rows = {method.label: method.max_rows for method in methods}
    return parse_simulated(specs, rows, {method.label for method in methods if method.name == BASELINE})


#: Option that names weights, as --head does, and not how to draft: no preset has it.
_HEAD = "head"


def default_settings(
    labels: Mapping[str, str], settings: Settings, method: str, options: Mapping[str, Any]
) -> Settings:
    """The settings that give every row of a method other defaults than its own.

    What the user set, by whatever name, is left out of the result, and a label with ``preset=`` gets nothing but the
    draft head, which no preset names. ``options`` may hold a ``preset``.
    """
    card = registry.method(method)
    known = option_names(card.load().Options)
    defaults = _with_preset(card, dict(options), known)
    return {
        label: {
            known.get(option, option): str(value).lower() if isinstance(value, bool) else str(value)
            for option, value in _beside(settings[label], defaults, known).items()
            if "preset" not in settings[label] or option == _HEAD
        }
        for label, name in labels.items()
        if name == method
    }


def written(settings: Settings) -> list[str]:
    """Settings as ``--set`` takes them."""
    return [f"{label}.{option}={value}" for label, own in settings.items() for option, value in own.items()]


def merged(settings: Settings, more: Settings) -> Settings:
    """Settings with more of them."""
    return {label: {**settings.get(label, {}), **more.get(label, {})} for label in {**settings, **more}}


def settings_of_all(labels: Mapping[str, str], option: str, value: str) -> list[str]:
    """The settings that a flag of an option's name stands for, as ``--set`` would take them; UsageError if no method
    has it.
    """
    found = [f"{label}.{option}={value}" for label, name in labels.items() if _has(name, option)]
    if not found:
        takers = [name for name in registry.methods() if _has(name, option)]
        raise UsageError(
            f"--{option} goes with --method {' or '.join(takers)}; {', '.join(labels.values())} takes none"
        )
    return found


def _has(method: str, option: str) -> bool:
    if is_row(method):
        return False
    card = registry.method(method)
    try:
        return option in card.load().Options.model_fields
    except (UsageError, PluginFault):
        if card.origin == registry.OWN:
            raise
        return False


def labels_of(names: Sequence[str]) -> dict[str, str]:
    """Label of each row -> its method, AR first."""
    wanted = list(names)
    if BASELINE in wanted:
        wanted.remove(BASELINE)
    wanted.insert(0, BASELINE)
    counts: Counter[str] = Counter()
    labels: dict[str, str] = {}
    for name in wanted:
        _ = engine_mode(name) if is_row(name) else registry.method(name)
        counts[name] += 1
        labels[name if counts[name] == 1 else f"{name}#{counts[name]}"] = name
    return labels


def parse_settings(labels: Mapping[str, str], settings: Sequence[str]) -> Settings:
    """``--set``: label of each row -> its options as written."""
    raw: Settings = {label: {} for label in labels}
    for setting in settings:
        target, equals, value = setting.partition("=")
        label, dot, option = target.rpartition(".")
        if not equals or not option or not value:
            raise UsageError(f"--set {setting}: write METHOD.OPTION=VALUE, as in --set jacobi.n=16")
        if not dot:
            others = [known for known in labels if known != BASELINE]
            if len(others) != 1:
                raise UsageError(
                    f"--set {setting}: say whose option it is, as in --set {(others or [BASELINE])[0]}.{setting}"
                )
            label = others[0]
        if label not in labels:
            raise unknown_name("method in --set (it must be in --method)", label, labels)
        if option in raw[label]:
            raise UsageError(f"--set {setting}: option '{option}' of {label} is set twice; keep one")
        raw[label][option] = value
    return raw


def make_method(label: str, name: str, raw: Mapping[str, Any]) -> Method:
    """A method with options as written, of any size."""
    card = registry.method(name)
    module = card.load()
    with plugins.plugin_call(card.who):
        options = parse_options(module.Options, _with_preset(card, raw, option_names(module.Options)), name)
    missing: frozenset[str] = getattr(module.Decoder, "__abstractmethods__", frozenset())
    if not issubclass(module.Decoder, Decoder) or missing:
        wanted = f"define {', '.join(sorted(missing))}" if missing else "derive from specbench.decoding.Decoder"
        raise UsageError(f"{card.who}: its class Decoder has to {wanted}")
    lossless, measures = bool(card.info.get("lossless", False)), card.info.get("measures", {})
    noise = card.info.get("noise", "shared")
    if noise not in ("shared", "own"):
        raise UsageError(f"{card.who}: noise in its method.toml is shared or own, not {noise}")
    with plugins.plugin_call(card.who):
        own = noise == "own" or bool(module.Decoder.own_noise(options))
    method = Method(name, label, options, lossless, module.Decoder, measures, own_noise=own, origin=card.origin)
    other = paired_method(options, name)
    return pair_methods(method, make_method(label, other.name, other.raw), other.role) if other else method


def _with_preset(card: registry.Card, raw: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """``preset=NAME`` replaced by the options it stands for; what is set beside it wins."""
    chosen = raw.get("preset")
    if chosen is None:
        return dict(raw)
    presets = card.info.get("presets", {})
    if not presets:
        raise UsageError(f"{card.name} has no presets; set its options one by one")
    if chosen not in presets:
        raise unknown_name(f"preset of {card.name}", chosen, presets)
    own = {name: value for name, value in raw.items() if name != "preset"}
    return {**_beside(own, presets[chosen], known), **own}


def _beside(own: Mapping[str, Any], others: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """What of ``others`` is not in ``own`` under any of its names."""
    taken = {known.get(name.replace("-", "_")) for name in own}
    return {name: value for name, value in others.items() if known.get(name) not in taken}
