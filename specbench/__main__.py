"""``python -m specbench``."""

from specbench.cli import entry

entry()
