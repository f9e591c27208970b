"""The safetensors files of a folder and what their headers say, before a tensor is read.

A pickle (``pytorch_model.bin``, ``.pt``) can run code when it is read, so none is opened.
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

#: Endings of files that are, or may be, pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")

_TODO = "take a whole copy of the model, or give another"
_FLOATS = ("F16", "BF16", "F32", "F64")


class NoWeights(UsageError):
    """A folder has none that are read; code of its own may have others."""


@dataclass(frozen=True)
class Stored:
    """A tensor by its header: its shape, and its type by the format's name, such as "BF16"."""

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
    """The files that hold a model's weights.

    Args:
        named: what its configuration calls the file or the index, where it does.

    Raises:
        NoWeights: there are none but perhaps pickles.
        UsageError: the index is damaged, names files elsewhere, or missing ones.
    """
    single, index = _names(folder, named)
    if single and (folder / single).is_file():
        return [folder / single]
    if index and (folder / index).is_file():
        return _indexed(folder / index)
    raise NoWeights(f"{folder.name} cannot be loaded as a causal LM: {_no_weights(folder)}")


def wanted(folder: Path, named: object = None) -> list[str]:
    """What a repository may call its files of weights, by its index, which lies in the folder if there is one."""
    single, index = _names(folder, named)
    listed = _mapped(folder / index).values() if index and (folder / index).is_file() else ()
    return [*([single] if single else []), *sorted(set(listed))]


def _names(folder: Path, named: object) -> tuple[str, str]:
    """Names of the single file and of the index, either of which may be empty."""
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
        return f"no weights are in it ({SINGLE}; pickled ones are not read); {_TODO}"
    return (
        f"its weights are pickled ({one_line(pickles[0], 80)}), and a pickle can run anything when it is read; give a "
        f"copy with {SINGLE}, such as the one that the hub's converter proposes (--revision refs/pr/NUMBER)"
    )


def _mapped(index: Path) -> dict[str, str]:
    """The file of each tensor."""
    held = read_json_object(index, _TODO).get("weight_map")
    if not isinstance(held, dict) or not held:
        raise damaged(index, "no weight_map that names a file for each tensor", _TODO)
    for file in held.values():
        if not isinstance(file, str) or not _plain(file, ".safetensors"):
            raise damaged(index, f"{one_line(repr(file), 80)} is no .safetensors file of its folder", _TODO)
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
            raise damaged(index, f"it names tensor {one_line(name, 80)}, which {one_line(file, 80)} has not", _TODO)
    return found


def _plain(name: str, ending: str) -> bool:
    """Whether a name is that of a file in the same folder; by its end, no pickle."""
    return name.endswith(ending) and not set(name) & {"/", "\\", "\0"}


def headers(files: Iterable[Path], todo: str = _TODO) -> dict[str, Stored]:
    """Shape and type of every tensor by name, by the files' headers alone."""
    found: dict[str, Stored] = {}
    for file in files:
        open_file(file, todo).close()  # the library would wait for a pipe
        try:  # torch's own mapping would need memory for all of it
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118  it is no mapping
                    part = opened.get_slice(name)
                    found[name] = Stored(tuple(part.get_shape()), part.get_dtype())
        except Exception as error:  # whatever the library makes of bytes
            raise damaged(file, one_line(str(error), 160) or type(error).__name__, todo) from None
    return found


def check_shapes(stored: Mapping[str, Stored], wanted: Mapping[str, Sequence[int]], shown: str) -> None:
    """Compares what files hold with what a configuration makes; names that only one of them has are left alone."""
    for name, held in stored.items():
        shape = wanted.get(name)
        if shape is not None and held.shape != tuple(shape):
            raise UsageError(
                f"{shown} cannot be loaded: its weights hold {one_line(name, 120)} as {[*held.shape]}, its config.json "
                f"makes it {[*shape]}; take config.json and weights of one model"
            )


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first floating tensor that holds a NaN or an infinite number; None where none does."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and tensor.device.type != "meta":
            values: Any = tensor.detach()
            if values.element_size() == 1:  # eight-bit floats know no such comparison
                values = values.float()
            if not bool(torch.stack(torch.aminmax(values)).isfinite().all()):
                return name
    return None
