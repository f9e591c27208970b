"""Converting a head of ``pytorch_model.bin``: ``python -m specbench.methods.eagle3.convert FOLDER``.

Such a file is a pickle, which can run what it likes when it is read in the usual way. Here torch reads tensors and
nothing else, once, and what is used afterwards is a file that cannot run anything.
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
    """Write ``model.safetensors`` next to a folder's ``pytorch_model.bin``, which stays."""
    file = folder / _FROM
    if not file.is_file():
        raise UsageError(f"{folder} has no {_FROM}; name the folder of the head, downloaded whole")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the library makes of a file that is no plain checkpoint
        raise UsageError(
            f"{file} is refused: it holds more than tensors, or is damaged: {one_line(str(error), 120)}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{file} is refused: it holds something else than tensors by name")
    save_torch_state_dict({name: value.contiguous() for name, value in found.items()}, folder)
    return folder


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m specbench.methods.eagle3.convert", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="of a head, with config.json and pytorch_model.bin")
    try:
        sys.stdout.write(f"converted; draft with --head {convert(parser.parse_args().folder)}\n")
    except SpecbenchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
