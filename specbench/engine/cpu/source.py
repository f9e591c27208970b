"""C++ source of this folder and its compiler flags."""

from __future__ import annotations

from pathlib import Path

from specbench.common import Native

CPU_SOURCE = Native(Path(__file__).with_name("layer.cpp"), ("-fopenmp", "-ffp-contract=fast"))
