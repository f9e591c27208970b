"""``specbench new-method``: the first files of a method, which already run."""

from __future__ import annotations

from pathlib import Path

import typer

from specbench.cli import common, output


def new_method(
    name: str = typer.Argument(help="Its name: what --method will take.", metavar="NAME"),
    into: Path = typer.Option(
        None,
        "--into",
        help="Folder for a package of its own. Without it: methods/NAME in a clone, else a package here.",
    ),
    as_json: bool = common.JSON,
) -> None:
    """Write a working method with its test, to be made your own."""
    from specbench.scaffold import method

    planned = method.plan(name, into)
    written = planned.write()
    if as_json:
        output.emit_json({"method": name, "wrote": [str(path) for path in written], "next": list(planned.next)})
        return
    # Not through the console: it would break commands and paths that are to be copied.
    typer.echo("\n".join(["Wrote", *(f"  {path}" for path in written), "", "Next", *(f"  {c}" for c in planned.next)]))
