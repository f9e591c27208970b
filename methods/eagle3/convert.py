"""``python -m specbench.methods.eagle3.convert FOLDER``: convert a head from ``pytorch_model.bin`` to safetensors."""

from __future__ import annotations

import sys
from pathlib import Path

from specbench.heads import convert_head, convert_main

_FROM = ("pytorch_model.bin",)


def convert(folder: Path) -> Path:
    """Write ``model.safetensors`` next to a folder's ``pytorch_model.bin``, which is kept."""
    return convert_head(folder, _FROM)


if __name__ == "__main__":
    sys.exit(convert_main("eagle3", _FROM))
