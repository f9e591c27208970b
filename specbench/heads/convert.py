"""``python -m specbench.heads.convert FOLDER``: convert a published head from a pickle to safetensors.

A pickle can run arbitrary code when it is loaded in the usual way. Here torch reads only tensors from it, and the
resulting file cannot contain code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict

from specbench.common import SpecbenchError, UsageError, one_line

_FROM = ("pytorch_model.bin", "medusa_lm_head.pt")  # EAGLE's, Medusa's


def convert(folder: Path) -> Path:
    """Write ``model.safetensors`` next to a folder's pickle, which is kept."""
    file = next((folder / name for name in _FROM if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(f"cannot convert {folder}: it has no {' or '.join(_FROM)}; name the folder of a complete head")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises exceptions of many kinds for a file that is not a plain checkpoint
        raise UsageError(
            f"{file} is refused: it holds more than tensors, or is damaged: {one_line(str(error), 120)}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{file} is refused: it is not a mapping from names to tensors")
    # Copies, because only one of several names of a shared tensor would be written.
    tensors = {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}
    save_torch_state_dict(tensors, folder)
    return folder


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m specbench.heads.convert", description="Convert a published head from a pickle to safetensors"
    )
    parser.add_argument("folder", type=Path, help=f"folder of a head, with config.json and {' or '.join(_FROM)}")
    try:
        sys.stdout.write(f"converted; draft with --head {convert(parser.parse_args().folder)}\n")
    except SpecbenchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
