"""Write a pickled draft head as safetensors: the command line of every method whose heads are published so.

A pickle can run arbitrary code when it is loaded in the usual way. Here torch reads only tensors from it, and the
resulting file cannot contain code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict

from specbench.common import SpecbenchError, UsageError, one_line


def convert_head(folder: Path, names: Sequence[str]) -> Path:
    """Write ``model.safetensors`` next to the first of the pickles ``names`` that a folder has, which is kept."""
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(f"{folder} has no {' or '.join(names)}; name the folder of the head, downloaded whole")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises exceptions of many kinds for a file that is not a plain checkpoint
        raise UsageError(
            f"{file} is refused: it holds more than tensors, or is damaged: {one_line(str(error), 120)}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{file} is refused: it is not a mapping from names to tensors")
    # Copies, because only one of several names of a shared tensor would be written.
    save_torch_state_dict(
        {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}, folder
    )
    return folder


def convert_main(method: str, names: Sequence[str]) -> int:
    """Run the command line ``python -m specbench.methods.METHOD.convert``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m specbench.methods.{method}.convert",
        description=f"Convert a head of {method} from a pickle to safetensors",
    )
    parser.add_argument("folder", type=Path, help=f"folder of a head, with config.json and {' or '.join(names)}")
    try:
        sys.stdout.write(f"converted; draft with --head {convert_head(parser.parse_args().folder, names)}\n")
    except SpecbenchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0
