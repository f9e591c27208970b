"""The ``specbench`` command. Heavy imports are avoided here, so that ``--help`` answers at once."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence

import typer

from specbench import __version__
from specbench.cli.commands import (
    check_lossless,
    check_run,
    claims,
    compare,
    doctor,
    export_model,
    import_,
    new_method,
    profile,
    quality,
    report,
    reproduce,
    run,
    score,
    show,
    sweep,
    train,
)
from specbench.cli.commands import list as listing
from specbench.cli.signals import termination
from specbench.common import (
    INTERRUPTED,
    TERMINATED,
    EnvironmentRefused,
    SpecbenchError,
    UsageError,
    number_wanted,
    one_line,
    plugins,
)

app = typer.Typer(
    name="specbench",
    help="Which parallel decoder is fastest for a model, a task and a GPU, by how much, and is its text still right.",
    epilog="First run: specbench run --method ar,pld,jetspec --task humaneval --limit 8",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Measure": {
        "run": run.run,
        "sweep": sweep.sweep,
        "reproduce": reproduce.reproduce,
        "profile": profile.profile,
        "quality": quality.quality,
    },
    "Look": {
        "show": show.show,
        "import": import_.import_,
        "compare": compare.compare,
        "report": report.report,
        "claims": claims.claims,
        "list": listing.list_,
    },
    "Train": {
        "train": train.train,
        "export-model": export_model.export_model,
        "new-method": new_method.new_method,
    },
    "Check": {
        "doctor": doctor.doctor,
        "check-lossless": check_lossless.check_lossless,
        "check-run": check_run.check_run,
        "score": score.score,
    },
}
for panel, commands in _COMMANDS.items():
    for name, function in commands.items():
        app.command(name, rich_help_panel=panel)(function)

#: Former commands, and the commands that replace them.
_RENAMED = {
    "export": "report --to csv",
    "judge": "score --judge MODEL",
    "perplexity": "quality MODEL --text FILE",
    "trajectories": "train --collect",
    "tune": "sweep --tune",
}


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    gc.enable()  # see console
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0 ok; 1 not quiet; 2 usage; 3 environment refused; 4 lossless check failed; 5 regression; 6 a plug-in's fault; 7
    another engine's; 8 undecided, a compared run was disturbed; 130 interrupted, results kept; 143 likewise by SIGTERM.
    """
    with termination() as ended:
        code = _run(sys.argv[1:] if argv is None else list(argv))
    return TERMINATED if ended.came and code == INTERRUPTED else code


def _run(args: Sequence[str]) -> int:
    bare = not args
    if args and args[0] in _RENAMED:
        return _fail(f"{args[0]} is now: specbench {_RENAMED[args[0]]}", UsageError.exit_code)
    command = typer.main.get_command(app)
    try:
        # Not the command's own main(), which swallows Ctrl-C and prints errors as boxes.
        with command.make_context("specbench", ["--help"] if bare else [*args]) as context:
            command.invoke(context)
    except typer.Exit as done:
        return 2 if bare else done.exit_code
    except typer.TyperException as error:
        where = getattr(error, "ctx", None)
        if wrong := _wrong_number(error):
            return _fail(wrong, error.exit_code)
        help_at = f" See {where.command_path} --help." if where else ""
        text = error.format_message().strip()
        return _fail(f"{text}{'' if text[-1:] in '.?!' else '.'}{help_at}", error.exit_code)
    except SpecbenchError as error:
        return _fail(str(error), error.exit_code)
    except SystemExit as left:  # not ours: commands raise typer.Exit, and argparse is not used here
        fault = plugins.fault(left)
        return _fail(str(fault), fault.exit_code)
    except (KeyboardInterrupt, EOFError, typer.Abort):
        return _fail(f"interrupted{_KEPT.get(args[0], '') if args else ''}", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it, as in `specbench list methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit would fail again
    except OSError as error:
        refused = _refused(error)
        if refused is None:
            raise
        return _fail(str(refused), refused.exit_code)
    return 0


#: What a repetition of an interrupted command goes on from.
_KEPT = {
    "run": "; finished requests are kept, repeat the command to go on",
    "reproduce": "; finished requests are kept, repeat the command to go on",
    "sweep": "; finished requests are kept, repeat the command to go on",
    "score": "; repeat the command to go on",
    "train": "; finished checkpoints are kept, repeat the command to go on",
}


def _wrong_number(error: typer.TyperException) -> str:
    """The error sentence for a wrong number; empty for other errors of the parser."""
    param, faults = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if param is None or faults is None:
        return ""
    fault = faults()[0]
    wanted = number_wanted(fault)
    return f"{param.opts[0]} {one_line(str(fault['input']), 40)}: {wanted}" if wanted else ""


#: Lack of a resource, wherever it occurs, also inside libraries.
_LACKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _refused(error: OSError) -> EnvironmentRefused | None:
    """The error sentence for a refusal by the system; None for our own bugs."""
    if isinstance(error.filename, (str, bytes)):
        # A path given by the user may be too long, or in an unreadable folder.
        name = os.fsdecode(error.filename)
        return EnvironmentRefused(f"cannot use {name}: {error.strerror or error}; choose another path or fix it")
    if str(error.strerror).startswith("No usable temporary directory"):  # tempfile's own sentence
        return EnvironmentRefused(f"{error.strerror}; free space in one, or set TMPDIR to another")
    if error.errno in _LACKS:
        return EnvironmentRefused(f"{error.strerror}; free what this machine lacks and repeat the command")
    return None


def _fail(message: str, code: int) -> int:
    text = str(SpecbenchError(message))  # the parser quotes the user's input unchanged
    sys.stderr.write(f"error: {' '.join(text.split())}\n")  # typer.echo writes UTF-8 where only ASCII is shown
    return code
