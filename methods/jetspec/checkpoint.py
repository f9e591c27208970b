"""Where a published head is, and what its files hold: a folder, or a hub id, either with ``::SUBFOLDER``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specbench.common import EnvironmentRefused, UsageError

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Checkpoint:
    """A head's files.

    Attributes:
        name: how the user called it.
        shown: the same without the folders of this machine, for records.
        config: content of its ``config.json``.
        files: its ``.safetensors``, by name.
        revision: hub commit; None for a folder.
    """

    name: str
    shown: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    revision: str | None

    def tensors(self, device: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Every tensor by name.

        Raises:
            UsageError: a file that cannot be read.
        """
        found: dict[str, Tensor] = {}
        try:
            for file in self.files:
                found.update(load_file(file, device=str(device)))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"head {self.name} cannot be read: {_first_line(error)}") from error
        return {
            name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            for name, tensor in found.items()
        }

    def sha256(self) -> str:
        """Of its files' content, one after the other; of a single file it is the sum that the hub shows."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()


def find(name: str) -> Checkpoint:
    """A head by folder or hub id.

    Raises:
        UsageError: no such folder, or no head in it.
        EnvironmentRefused: it cannot be had from the hub.
    """
    base, _, inner = name.partition("::")
    folder = Path(base).expanduser()
    revision = None
    if not folder.is_dir():
        if base.count("/") != 1 or base.startswith((".", "/", "~")):
            raise UsageError(f"head folder {base} does not exist; give a folder or a hub id such as OWNER/NAME")
        folder = _download(base, inner)
        revision = folder.name
    folder = folder / inner
    config, files = folder / "config.json", tuple(sorted(folder.glob("*.safetensors")))
    if not config.is_file() or not files:
        raise UsageError(f"head {name} has no config.json with a .safetensors file beside it")
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"head {name} has no readable config.json: {error}") from error
    return Checkpoint(name, name if revision else folder.name, values, files, revision)


def check_names(name: str, wanted: Mapping[str, Any], found: Mapping[str, Tensor]) -> None:
    """Whether a file holds a head's parameters and nothing else.

    Args:
        name: how the user called it.
        wanted: shape of each parameter.
        found: what the file holds.

    Raises:
        UsageError: one is missing, left over, or of another shape; names the first.
    """
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing:
        raise UsageError(f"head {name} lacks {len(missing)} of {len(wanted)} parameters, such as {missing[0]}")
    if extra:
        raise UsageError(f"head {name} holds {len(extra)} tensors that a head has not, such as {extra[0]}")
    for parameter, shape in wanted.items():
        if found[parameter].shape != shape:
            own = [*found[parameter].shape]
            raise UsageError(f"head {name}: {parameter} is {own}, its config.json makes it {[*shape]}")


def _download(repository: str, inner: str) -> Path:
    """The folder of a hub repository, from the local cache where it is in there."""
    prefix = f"{inner}/" if inner else ""
    wanted = [f"{prefix}config.json", f"{prefix}*.safetensors"]
    error: Exception | None = None
    # Cached first: a run needs no network then, and repeats on the same files.
    for cached in (True, False):
        try:
            folder = Path(snapshot_download(repository, allow_patterns=wanted, local_files_only=cached))
        except (OSError, ValueError) as reason:  # the hub client's own errors are of these
            error = reason
        else:
            if not cached or any((folder / inner).glob("*.safetensors")):
                return folder
    raise EnvironmentRefused(
        f"head {repository} cannot be had from the hub ({_first_line(error)}); give a local folder, or check name and "
        "network"
    ) from error


def _first_line(error: Exception | None) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else type(error).__name__
