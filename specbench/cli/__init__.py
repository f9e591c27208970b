"""The command line: typer commands, one file each. Data goes to stdout, the rest to stderr; no prompts."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.cli.app import main as main
    from specbench.cli.console import entry as entry
else:
    __getattr__, __dir__ = door(__name__)
