"""``python -m specbench.methods.medusa.convert FOLDER``: convert heads from ``medusa_lm_head.pt`` to safetensors."""

from __future__ import annotations

import sys
from pathlib import Path

from specbench.heads import convert_head, convert_main

_FROM = ("medusa_lm_head.pt", "pytorch_model.bin")


def convert(folder: Path) -> Path:
    """Write ``model.safetensors`` next to a folder's ``medusa_lm_head.pt``, which is kept."""
    return convert_head(folder, _FROM)


if __name__ == "__main__":
    sys.exit(convert_main("medusa", _FROM))
