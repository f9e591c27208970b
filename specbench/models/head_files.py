"""Where a published draft head is, and what it holds: a folder or a hub id, either with ``::SUBFOLDER``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, one_line, open_file, read_json_object
from specbench.models import weights
from specbench.models.memory import check_memory

_BLOCK = 1 << 22
_IDS = "d2t"  # the one of whole numbers
_TODO = "take a whole copy of the head"


@dataclass(frozen=True)
class HeadFiles:
    """Files of a head.

    Attributes:
        shown: the same without the folders of this machine, for records.
        revision: hub commit; None for a folder.
    """

    name: str
    shown: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    revision: str | None

    def tensors(self, device: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Every tensor by name."""
        found: dict[str, Tensor] = {}
        try:
            stored = weights.headers(self.files, _TODO)
        except UsageError as error:
            raise UsageError(f"head {self.name} cannot be read: {error}") from error
        wide = 4 if dtype is None else dtype.itemsize
        needs = sum(held.count * (wide if held.floats else 8) for held in stored.values())
        check_memory(needs, torch.device(device), f"head {self.name}")
        try:
            for file in self.files:
                open_file(file, _TODO).close()  # the library would wait for a pipe
                found.update(load_file(file, device=str(device)))
        except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
            raise
        except Exception as error:  # whatever the library makes of a file's header
            raise UsageError(f"head {self.name} cannot be read: {file}: {_first_line(error)}") from error
        cast = {
            name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            for name, tensor in found.items()
        }
        wrong = weights.first_not_finite(cast.items())
        if wrong is not None:
            raise UsageError(
                f"head {self.name}: {one_line(wrong, 120)} holds a number that is NaN or infinite; {_TODO}"
            )
        return cast

    def sha256(self) -> str:
        """Of its files' content, one after the other; of a single file it is the sum that the hub shows."""
        digest = hashlib.sha256()
        for file in self.files:
            with open_file(file, _TODO) as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()


def find(name: str, convert: str | None = None) -> HeadFiles:
    """A head by folder or hub id.

    Args:
        convert: command that makes .safetensors of a folder's pickled weights, where the method has one.
    """
    base, _, inner = name.partition("::")
    folder = Path(os.path.expanduser(base))
    revision = None
    if not os.path.isdir(folder):
        if base.count("/") != 1 or base.startswith((".", "/", "~")):
            raise UsageError(f"head folder {base} does not exist; give a folder or a hub id such as OWNER/NAME")
        folder = _download(base, inner)
        revision = folder.name
    folder = folder / inner
    config, files = folder / "config.json", tuple(sorted(folder.glob("*.safetensors")))
    if not os.path.lexists(config) or not files:
        raise UsageError(f"head {name} has no config.json with a .safetensors file beside it{_other(folder, convert)}")
    values = read_json_object(config, _TODO)
    return HeadFiles(name, name if revision else folder.name, values, files, revision)


def _other(folder: Path, convert: str | None) -> str:
    """What to do where the weights are pickled; a hub's listing of them is not fetched."""
    if convert is None:
        return ""
    if any(folder.glob("*.bin")):
        return f", but a pickle, which could run anything; convert it: {convert} {folder}"
    return f"; one of pytorch_model.bin alone is downloaded whole and converted first: {convert} FOLDER"


def check_names(name: str, wanted: Mapping[str, Any], found: Mapping[str, Tensor]) -> None:
    """Whether a file holds a head's parameters and nothing else."""
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing:
        raise UsageError(f"head {name} lacks {len(missing)} of {len(wanted)} parameters, such as {missing[0]}")
    if extra:
        many = "1 tensor" if len(extra) == 1 else f"{len(extra)} tensors"
        raise UsageError(f"head {name} holds {many} that a head has not, such as {extra[0]}")
    for parameter, shape in wanted.items():
        if found[parameter].shape != shape:
            own = [*found[parameter].shape]
            raise UsageError(f"head {name}: {parameter} is {own}, its config.json makes it {[*shape]}")
        if found[parameter].is_floating_point() == (parameter == _IDS):
            raise UsageError(f"head {name}: {parameter} is of {found[parameter].dtype}, which it cannot be")


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
            if any((folder / inner).glob("*.bin")):  # as somebody has downloaded it: whole, so that it can be converted
                return folder
    raise EnvironmentRefused(
        f"head {repository} cannot be had from the hub ({_first_line(error)}); give a local folder, or check name and "
        "network"
    ) from error


def _first_line(error: Exception | None) -> str:
    return one_line(str(error), 160) or type(error).__name__
