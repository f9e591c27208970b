"""Where the data files lie that no package brings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specbench.evals.data import DATA_DIR

FOLDER = os.environ.get(DATA_DIR)  # at import: tests take the variable away


def data_folder(*names: str) -> Path:
    """The folder of data files; the test is skipped where it lacks one of ``names``."""
    if not FOLDER or not all(Path(FOLDER, name).is_file() for name in names):
        pytest.skip(f"{DATA_DIR} names no folder with {', '.join(names)}")
    return Path(FOLDER)
