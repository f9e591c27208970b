"""Find a folder's safetensors files and read their headers, before any tensor is read.

Pickles (``pytorch_model.bin``, ``.pt``) can run code when they are read, so they are never opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from specbench.common import UsageError, damaged, one_line, open_file, read_json_object, unreadable

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

#: Suffixes of files that may be pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")

_TODO = "use a complete copy of the model, or choose another"
_FLOATS = ("F16", "BF16", "F32", "F64")


class NoWeights(UsageError):
    """A folder has no weights that are read here; code in the folder may read others."""


@dataclass(frozen=True)
class Stored:
    """A tensor's header: its shape, and its type as the format names it, such as "BF16"."""

    shape: tuple[int, ...]
    kind: str

    @property
    def count(self) -> int:
        found = 1
        for size in self.shape:
            found *= size
        return found

    @property
    def floats(self) -> bool:
        return self.kind in _FLOATS


def files_of(folder: Path, named: object = None) -> list[Path]:
    """Return the files that hold a model's weights.

    Args:
        named: name of the file or index in the model's configuration, if any.

    Raises:
        NoWeights: there are no weights, or only pickles.
        UsageError: the index is damaged, or names missing files or files in other folders.
    """
    single, index = _names(folder, named)
    if single and (folder / single).is_file():
        return [folder / single]
    if index and (folder / index).is_file():
        return _indexed(folder / index)
    raise NoWeights(f"cannot load {folder.name} as a causal LM: {_no_weights(folder)}")


def wanted(folder: Path, named: object = None) -> list[str]:
    """Return the names that a repository's weight files may have; the folder holds the index if there is one."""
    single, index = _names(folder, named)
    listed = _mapped(folder / index).values() if index and (folder / index).is_file() else ()
    return [*([single] if single else []), *sorted(set(listed))]


def _names(folder: Path, named: object) -> tuple[str, str]:
    """Return the names of the single file and of the index; one of them may be empty."""
    if named is None:
        return SINGLE, INDEX
    if isinstance(named, str) and _plain(named, ".safetensors"):
        return named, ""
    if isinstance(named, str) and _plain(named, ".safetensors.index.json"):
        return "", named
    raise damaged(folder / "config.json", f"its transformers_weights is {one_line(repr(named), 80)}", _TODO)


def _no_weights(folder: Path) -> str:
    pickles = sorted(each.name for each in folder.iterdir() if each.suffix in PICKLES)
    if not pickles:
        return f"it has no weights ({SINGLE}; pickles are not read); {_TODO}"
    return (
        f"its weights are a pickle ({one_line(pickles[0], 80)}), which can run any code when it is read; give a copy "
        f"with {SINGLE}, such as the one that the hub's converter proposes (--revision refs/pr/NUMBER)"
    )


def _mapped(index: Path) -> dict[str, str]:
    """Return the file name of each tensor."""
    held = read_json_object(index, _TODO).get("weight_map")
    if not isinstance(held, dict) or not held:
        raise damaged(index, "no weight_map that names a file for each tensor", _TODO)
    for file in held.values():
        if not isinstance(file, str) or not _plain(file, ".safetensors"):
            raise damaged(index, f"{one_line(repr(file), 80)} is not a .safetensors file in its folder", _TODO)
    return held


def _indexed(index: Path) -> list[Path]:
    held = _mapped(index)
    found = [index.parent / file for file in sorted(set(held.values()))]
    for shard in found:
        if not os.path.isfile(shard):
            raise unreadable(index, f"it names {one_line(shard.name, 80)}, which is not there", _TODO)
    stored = headers(found)
    for name, file in held.items():
        if name not in stored:
            raise damaged(index, f"it names tensor {one_line(name, 80)}, which {one_line(file, 80)} lacks", _TODO)
    return found


def _plain(name: str, ending: str) -> bool:
    """Return whether a name has this ending and no folder in it."""
    return name.endswith(ending) and not set(name) & {"/", "\\", "\0"}


def headers(files: Iterable[Path], todo: str = _TODO) -> dict[str, Stored]:
    """Return shape and type of every tensor by name, reading only the files' headers."""
    found: dict[str, Stored] = {}
    for file in files:
        open_file(file, todo).close()  # refuses a pipe, on which the library would hang
        try:  # framework "np": torch's mapping would need memory for the whole file
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118  it is not a mapping
                    part = opened.get_slice(name)
                    found[name] = Stored(tuple(part.get_shape()), part.get_dtype())
        except Exception as error:  # damaged bytes may make the library raise any error
            raise damaged(file, one_line(str(error), 160) or type(error).__name__, todo) from None
    return found


def check_shapes(stored: Mapping[str, Stored], wanted: Mapping[str, Sequence[int]], shown: str) -> None:
    """Refuse tensors whose shape differs from the configuration's; names on only one side are ignored."""
    for name, held in stored.items():
        shape = wanted.get(name)
        if shape is not None and held.shape != tuple(shape):
            raise UsageError(
                f"cannot load {shown}: {one_line(name, 120)} has shape {[*held.shape]} in its weights and {[*shape]} "
                "according to its config.json; use config.json and weights of the same model"
            )


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first floating-point tensor with a NaN or infinite value, or None."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and tensor.device.type != "meta":
            values: Any = tensor.detach()
            if values.element_size() == 1:  # aminmax does not support 8-bit floats
                values = values.float()
            if not bool(torch.stack(torch.aminmax(values)).isfinite().all()):
                return name
    return None
