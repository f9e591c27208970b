"""Command line: typer commands, a file each. Data to stdout, progress and errors to stderr; nothing ever asks."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.cli.app import main as main
    from specbench.cli.console import entry as entry
else:
    __getattr__, __dir__ = door(__name__)
