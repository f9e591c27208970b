"""``python -m specbench``."""

from specbench.cli.main import entry

entry()
