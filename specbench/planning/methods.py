"""Turn the names and settings of ``--method`` and ``--set`` into methods with checked options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.backends import Row, engine_mode, is_row, make_row
from specbench.common import PluginFault, UsageError, parse_options, plugins, registry, unknown_name
from specbench.common import option_names as option_names
from specbench.decoding import STOP_MEASURES, Decoder, FillDecoder, Method, pair_methods, paired_method
from specbench.planning.simulation import parse as parse_simulated
from specbench.results import BASE, BASELINE, SimulatedAcceptance

#: Label of a row -> its options, not yet parsed.
Settings = dict[str, dict[str, Any]]


def plan_methods(names: Sequence[str], settings: Sequence[str]) -> tuple[Method, ...]:
    """Make methods with options; AR comes first and is added if it was not named.

    A method named several times runs as several rows, labelled ``jacobi``, ``jacobi#2``, …; ``--set`` takes the label.

    Args:
        settings: ``LABEL.OPTION=VALUE`` strings; the label may be left out if there is one method besides AR.
    """
    labels = assign_labels(names)
    return make_methods(labels, parse_settings(labels, settings))


def make_methods(labels: Mapping[str, str], settings: Settings) -> tuple[Method, ...]:
    """Make the methods for labels and unparsed options."""
    return tuple(
        make_method(label, name, settings.get(label, {}), flag=f"--set {label}") for label, name in labels.items()
    )


def plan_rows(labels: Mapping[str, str], settings: Settings, urls: Sequence[str]) -> tuple[Row, ...]:
    """Make the rows of other engines (ENGINE:MODE) in a plan.

    ``urls`` are the user's servers, as ``LABEL=URL`` or ``ENGINE=URL``.
    """
    theirs = {label: name for label, name in labels.items() if is_row(name)}
    where = _addresses(urls, theirs)
    return tuple(make_row(label, name, settings[label], where.get(label)) for label, name in theirs.items())


def _addresses(urls: Sequence[str], rows: Mapping[str, str]) -> dict[str, str]:
    """Map the label of each row with a server to its address; ``LABEL=URL`` wins over ``ENGINE=URL``."""
    found: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for url in urls:
        who, equals, address = url.partition("=")
        if not equals or not address.startswith(("http://", "https://")):
            raise UsageError(f"--backend-url {url}: write ENGINE=http://HOST:PORT, as in vllm=http://127.0.0.1:8000")
        mine = [label for label, name in rows.items() if who in (label, name, name.partition(":")[0])]
        if not mine:
            raise UsageError(f"--backend-url {url}: --method has no row of {who}; add one or remove the address")
        if who in addresses:
            raise UsageError(f"--backend-url names {who} twice; keep one address")
        addresses[who] = address
        found |= {label: address for label in mine if label == who or label not in addresses}
    return found


def base_row() -> Method:
    """The row ``ar@base``: AR of the base model."""
    return make_method(BASE, BASELINE, {})


def runnable(model: str = "") -> list[str]:
    """Return the registered methods that run without settings, such as a draft head to name.

    Methods that fill masked blocks are left out: they need a diffusion model.

    Args:
        model: target, for which heads may be shipped; "" for any.
    """

    def runs(card: registry.Card) -> bool:
        try:
            module = card.load()
            with plugins.plugin_call(card.who):
                module.Decoder.check(module.Options(), model)
                return not issubclass(module.Decoder, FillDecoder)
        except (UsageError, PluginFault):  # a plug-in's module may fail to import
            return False

    return [name for name, card in registry.methods().items() if runs(card)]


def plan_simulated(methods: Sequence[Method], specs: Sequence[str]) -> dict[str, SimulatedAcceptance]:
    """Parse ``--simulate-acceptance``, see :func:`specbench.planning.simulation.parse`.

    AR and methods that fill masked blocks are never simulated."""
    rows = {method.label: method.max_rows for method in methods}
    never = {method.label for method in methods if method.name == BASELINE or method.fills}
    return parse_simulated(specs, rows, never)


#: Option that names weights and not how to draft, so presets never set it.
_HEAD = "head"


def default_settings(
    labels: Mapping[str, str], settings: Settings, method: str, options: Mapping[str, Any]
) -> Settings:
    """Settings that replace the defaults of every row of a method with ``options``, which may contain a ``preset``.

    Options that the user has set, under any of their names, are left out. A row with ``preset=`` gets only the draft
    head, which presets never set.
    """
    card = registry.method(method)
    known = option_names(card.load().Options)
    defaults = _with_preset(card, dict(options), known)
    return {
        label: {
            known.get(option, option): str(value).lower() if isinstance(value, bool) else str(value)
            for option, value in _not_set(settings[label], defaults, known).items()
            if "preset" not in settings[label] or option == _HEAD
        }
        for label, name in labels.items()
        if name == method
    }


def written(settings: Settings) -> list[str]:
    """Format settings as ``--set`` takes them."""
    return [f"{label}.{option}={value}" for label, own in settings.items() for option, value in own.items()]


def merged(settings: Settings, more: Settings) -> Settings:
    """Merge two settings; ``more`` wins."""
    return {label: {**settings.get(label, {}), **more.get(label, {})} for label in {**settings, **more}}


def settings_of_all(labels: Mapping[str, str], option: str, value: str) -> list[str]:
    """Expand a flag such as ``--head`` to settings of all methods with this option; UsageError if there are none."""
    found = [f"{label}.{option}={value}" for label, name in labels.items() if _has(name, option)]
    if not found:
        takers = [name for name in registry.methods() if _has(name, option)]
        raise UsageError(
            f"--{option} needs --method {' or '.join(takers)}; {', '.join(labels.values())} has no such option"
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


def assign_labels(names: Sequence[str]) -> dict[str, str]:
    """Map the label of each row to its method, AR first. Repeated names become ``jacobi#2``, …"""
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
    """Parse ``--set``: label of each row -> its options as text."""
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
                    f"--set {setting}: name the method of the option, as in --set {(others or [BASELINE])[0]}.{setting}"
                )
            label = others[0]
        if label not in labels:
            raise unknown_name("method", label, labels, "in --set", choose="name one of --method")
        if option in raw[label]:
            raise UsageError(f"--set {setting}: option '{option}' of {label} is set twice; keep one")
        raw[label][option] = value
    return raw


def make_method(label: str, name: str, raw: Mapping[str, Any], *, flag: str = "") -> Method:
    """Make a method from its unparsed options, written as ``flag.OPTION``. Tree sizes are not checked here."""
    card = registry.method(name)
    module = card.load()
    with plugins.plugin_call(card.who):
        options = parse_options(module.Options, _with_preset(card, raw, option_names(module.Options)), name, flag)
    missing: frozenset[str] = getattr(module.Decoder, "__abstractmethods__", frozenset())
    if not issubclass(module.Decoder, Decoder) or missing:
        wanted = f"define {', '.join(sorted(missing))}" if missing else "derive from specbench.decoding.Decoder"
        raise UsageError(f"cannot use {card.who}: its class Decoder has to {wanted}")
    noise = card.info.get("noise", "shared")
    if noise not in ("shared", "own"):
        raise UsageError(f"cannot use {card.who}: noise in its method.toml has to be shared or own, not {noise}")
    with plugins.plugin_call(card.who):
        own, acceptance = noise == "own" or bool(module.Decoder.own_noise(options)), module.Decoder.acceptance(options)
    # Nothing verifies the tokens of a method that fills masked blocks, whatever its card says.
    own_text = acceptance is not None or issubclass(module.Decoder, FillDecoder)
    lossless, measures = bool(card.info.get("lossless")) and not own_text, card.info.get("measures", {})
    if getattr(options, "stop", False):
        measures = {**measures, **STOP_MEASURES}
    method = Method(name, label, options, lossless, module.Decoder, measures, None, own, acceptance, card.origin)
    other = paired_method(options, name)
    return pair_methods(method, make_method(label, other.name, other.raw), other.role) if other else method


def _with_preset(card: registry.Card, raw: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Replace ``preset=NAME`` with the preset's options; options set explicitly win."""
    chosen = raw.get("preset")
    if chosen is None:
        return dict(raw)
    presets = card.info.get("presets", {})
    if not presets:
        raise UsageError(f"cannot use a preset: {card.name} has none; set its options one by one")
    if chosen not in presets:
        raise unknown_name("preset", chosen, presets, f"of {card.name}", see="specbench list presets shows all")
    own = {name: value for name, value in raw.items() if name != "preset"}
    return {**_not_set(own, presets[chosen], known), **own}


def _not_set(own: Mapping[str, Any], others: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of ``others`` that ``own`` does not set under any of their names."""
    taken = {known.get(name.replace("-", "_")) for name in own}
    return {name: value for name, value in others.items() if known.get(name) not in taken}
