"""Find and read the files of a published draft head, in a folder or hub repository, with optional ``::SUBFOLDER``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, one_line, open_file, read_json_object
from specbench.decoding import check_head_name
from specbench.models import check_memory, weights

_BLOCK = 1 << 22
_IDS = "d2t"  # the only integer tensor
_TODO = "use a complete copy of the head"


@dataclass(frozen=True)
class HeadFiles:
    """Files of a head.

    Attributes:
        name: folder or hub id.
        shown: ``name`` without folders of this machine, for records.
        revision: hub commit; None for a folder.
    """

    name: str
    shown: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    revision: str | None

    def stored(self) -> Mapping[str, weights.Stored]:
        """Return shape and type of every tensor by name, reading only the files' headers."""
        try:
            return weights.headers(self.files, _TODO)
        except UsageError as error:
            raise UsageError(f"cannot read head {self.name}: {error}") from error

    def tensors(
        self, device: Any, dtype: torch.dtype | None, names: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """Read tensors; ``dtype`` None keeps the stored types, ``names`` None reads all."""
        found: dict[str, Tensor] = {}
        stored = {name: held for name, held in self.stored().items() if names is None or name in names}
        wide = 4 if dtype is None else dtype.itemsize
        needs = sum(held.count * (wide if held.floats else 8) for held in stored.values())
        check_memory(needs, torch.device(device), f"head {self.name}")
        try:
            for file in self.files:
                open_file(file, _TODO).close()  # refuses a pipe, on which the library would hang
                with safe_open(file, framework="pt", device=str(device)) as opened:
                    found.update({name: opened.get_tensor(name) for name in opened.keys() if name in stored})  # noqa: SIM118
        except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
            raise
        except Exception as error:  # a damaged header may make the library raise any error
            raise UsageError(f"cannot read head {self.name}: {file}: {_first_line(error)}") from error
        cast = {
            name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            for name, tensor in found.items()
        }
        wrong = weights.first_not_finite(cast.items())
        if wrong is not None:
            raise UsageError(
                f"cannot use head {self.name}: {one_line(wrong, 120)} has a NaN or infinite value; {_TODO}"
            )
        return cast

    def sha256(self) -> str:
        """Return the hash of the files' concatenated content; for a single file it is the hash that the hub shows."""
        digest = hashlib.sha256()
        for file in self.files:
            with open_file(file, _TODO) as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()


def find(name: str, convert: str | None = None) -> HeadFiles:
    """Find a head by folder or hub id.

    Args:
        convert: command that converts a folder's pickled weights to .safetensors, if the method has one.
    """
    base, _, inner = name.partition("::")
    folder = Path(os.path.expanduser(base))
    revision = None
    if not os.path.isdir(folder):
        check_head_name(base)
        folder = _download(base, inner)
        revision = folder.name
    folder = folder / inner
    config, files = folder / "config.json", tuple(sorted(folder.glob("*.safetensors")))
    if not os.path.lexists(config) or not files:
        advice = _other(folder, convert)
        raise UsageError(f"cannot read head {name}: it lacks config.json or a .safetensors file{advice}")
    values = read_json_object(config, _TODO)
    return HeadFiles(name, name if revision else folder.name, values, files, revision)


def _other(folder: Path, convert: str | None) -> str:
    """Return advice for pickled weights; the hub's list of files is not fetched."""
    if convert is None:
        return f"; {_TODO}"
    if has_pickle(folder):
        return f" and has a pickle, which could run any code; convert it: {convert} {folder}"
    return (
        f"; if it only has a pickle such as pytorch_model.bin, download it completely and convert it: {convert} FOLDER"
    )


def has_pickle(folder: Path) -> bool:
    """Whether a folder has weights in a pickle."""
    return any(any(folder.glob(pattern)) for pattern in ("*.bin", "*.pt"))


def check_names(name: str, wanted: Mapping[str, Any], found: Mapping[str, Tensor]) -> None:
    """Refuse a file with missing or unknown parameters, or with other shapes or types than the head's."""
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing:
        raise UsageError(
            f"cannot load head {name}: it lacks {len(missing)} of {len(wanted)} parameters, such as {missing[0]}; "
            f"{_TODO}"
        )
    if extra:
        many = "1 unknown tensor" if len(extra) == 1 else f"{len(extra)} unknown tensors"
        raise UsageError(f"cannot load head {name}: it has {many}, such as {extra[0]}; {_TODO}")
    for parameter, shape in wanted.items():
        if found[parameter].shape != shape:
            own = [*found[parameter].shape]
            raise UsageError(
                f"cannot load head {name}: {parameter} has shape {own} in its file and {[*shape]} according to its "
                f"config.json; {_TODO}"
            )
        if found[parameter].is_floating_point() == (parameter == _IDS):
            raise UsageError(
                f"cannot load head {name}: {parameter} has the wrong type {found[parameter].dtype}; {_TODO}"
            )


def _download(repository: str, inner: str) -> Path:
    """Return the folder of a hub repository, from the local cache if possible."""
    prefix = f"{inner}/" if inner else ""
    wanted = [f"{prefix}config.json", f"{prefix}*.safetensors"]
    error: Exception | None = None
    # Cached first, so that a repeated run needs no network and reads the same files.
    for cached in (True, False):
        try:
            folder = Path(snapshot_download(repository, allow_patterns=wanted, local_files_only=cached))
        except (OSError, ValueError) as reason:  # base classes of the hub client's errors
            error = reason
        else:
            if not cached or any((folder / inner).glob("*.safetensors")):
                return folder
            if has_pickle(folder / inner):  # the user has downloaded the pickle to convert it
                return folder
    raise EnvironmentRefused(
        f"cannot get head {repository} from the hub: {_first_line(error)}; give a local folder, or check name and "
        "network"
    ) from error


def _first_line(error: Exception | None) -> str:
    return one_line(str(error), 160) or type(error).__name__
