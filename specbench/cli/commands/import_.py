"""``specbench import``: results of other tools' benchmarks as a folder that show, report and compare take."""

from __future__ import annotations

from pathlib import Path

import typer

from specbench.cli import options, output
from specbench.cli.latest import remember
from specbench.common import UsageError


def import_(
    files: list[str] = typer.Argument(
        ...,
        metavar="[NAME=]FILE...",
        help="Result files of vllm bench serve (--save-result), guidellm (JSON) or aiperf "
        "(profile_export_aiperf.json), a row each; the first is the baseline.",
        show_default=False,
    ),
    out: Path = typer.Option(options.RESULTS, "--out", help="Parent of the new folder."),
    as_json: bool = options.JSON,
) -> None:
    """Import results that vllm bench serve, guidellm or aiperf measured, to put them next to runs. No torch."""
    from specbench import __version__
    from specbench.common import check_writable
    from specbench.results import read_results, write_import

    rows = []
    for given in files:
        before, named, after = given.partition("=")
        name, path = (before, Path(after)) if named and not Path(given).exists() else ("", Path(given))
        rows += read_results(path, name or path.stem)
    labels = [row.label for row, _ in rows]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UsageError(f"cannot import two rows named '{twice}': name them, as in NAME=FILE")
    if odd := next((label for label in labels if not label.isprintable() or ":" in label), None):
        raise UsageError(f"cannot name a row {odd!r}: a name is printable and has no colon; name it, as in NAME=FILE")
    check_writable(out)
    folder = write_import(out, __version__, rows)
    remember(folder)
    if as_json:
        output.emit_json({"folder": str(folder), "rows": [row.model_dump(mode="json") for row, _ in rows]})
        return
    from specbench.report import import_report, render_terminal
    from specbench.results import read_import

    output.stdout().print(render_terminal(import_report(read_import(folder))))
    output.stdout().print(str(folder), soft_wrap=True, markup=False)
