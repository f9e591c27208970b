"""Checkpoint checks: what transformers would hang on, or fill all memory with, is refused before it sees a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from specbench.common import EnvironmentRefused
from specbench.common.reading import damaged, json_object, parse_json, read_bytes, unreadable

CONFIG = "config.json"

_TODO = "take a whole copy of the model, or give another"
_LARGEST = 16 << 20  # bytes of a configuration
# Modules are made one by one, also without memory for their weights: a number like this is a slip or an attack.
_MOST_LAYERS = 10_000
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_experts", "num_local_experts")


def check(folder: Path) -> None:
    """Looks at a checkpoint's folder.

    Raises:
        UsageError: its configuration cannot be read or names absurd numbers, or something in it is no file.
    """
    check_files(folder)
    read_config(folder / CONFIG)


def check_files(folder: Path) -> None:
    """Refuses a folder with a pipe, a socket or a device in it, which a library would open and wait for."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise unreadable(path, "not an ordinary file", _TODO)


def read_config(file: Path) -> dict[str, Any]:
    """A model's configuration, ``Infinity`` included, which transformers writes.

    Raises:
        UsageError: it is no JSON object, or names more layers or experts than any model has.
    """
    found = json_object(parse_json(read_bytes(file, _TODO, _LARGEST), file, _TODO, nan=True), file, _TODO)
    for name, count in _numbers(found):
        if name in _COUNTS and count > _MOST_LAYERS:
            raise damaged(file, f"field '{name}': {float(min(count, 1e30)):.3g} is more than {_MOST_LAYERS:,}", _TODO)
    return found


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number by its name, those of inner configurations too."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield name, value


def check_memory(nbytes: int, device: torch.device, shown: str) -> None:
    """Refuses weights that a device has no room for; on a CPU the kernel would give it and end the process later.

    Raises:
        EnvironmentRefused: says how much that is.
    """
    if device.type == "cuda":
        room, _ = torch.cuda.mem_get_info(device)
    else:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > room:
        raise EnvironmentRefused(
            f"no memory for {shown}: its weights have {nbytes / 2**30:.3g} GiB, {device.type} has {room / 2**30:.3g}; "
            "choose a smaller model or dtype"
        )
