"""``python -m specbench.heads.convert FOLDER``: convert a head from ``pytorch_model.bin`` to safetensors.

``pytorch_model.bin`` is a pickle, which can run arbitrary code when it is loaded in the usual way. Here torch reads
only tensors from it, and the resulting file cannot contain code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict

from specbench.common import SpecbenchError, UsageError, one_line

_FROM = "pytorch_model.bin"


def convert(folder: Path) -> Path:
    """Write ``model.safetensors`` next to a folder's ``pytorch_model.bin``, which is kept."""
    file = folder / _FROM
    if not file.is_file():
        raise UsageError(f"{folder} has no {_FROM}; name the folder of the head, downloaded whole")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises exceptions of many kinds for a file that is not a plain checkpoint
        raise UsageError(
            f"{file} is refused: it holds more than tensors, or is damaged: {one_line(str(error), 120)}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{file} is refused: it is not a mapping from names to tensors")
    save_torch_state_dict({name: value.contiguous() for name, value in found.items()}, folder)
    return folder


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m specbench.heads.convert", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="folder of a head, with config.json and pytorch_model.bin")
    try:
        sys.stdout.write(f"converted; draft with --head {convert(parser.parse_args().folder)}\n")
    except SpecbenchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
