"""The ``specbench`` command. Nothing heavy is imported here: ``--help`` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from specbench import __version__
from specbench.cli import check_lossless, doctor, listing, run, show
from specbench.errors import SpecbenchError

INTERRUPTED = 130

app = typer.Typer(
    name="specbench",
    help="Which parallel decoder is fastest for a model, a task and a GPU, by how much, and is its text still right.",
    epilog="First run: specbench run --method ar,jacobi --task humaneval --limit 8",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("check-lossless")(check_lossless.check_lossless)
app.command("show")(show.show)
app.command("list")(listing.list_)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Returns:
        0 ok; 2 usage; 3 environment refused; 4 lossless check failed; 5 regression; 130 interrupted, results kept.
    """
    try:
        code = typer.main.get_command(app)(args=None if argv is None else list(argv), standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except SpecbenchError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; finished requests are kept, repeat the command to go on", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `specbench list methods | head`
        sys.stderr.close()
        return 0
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
