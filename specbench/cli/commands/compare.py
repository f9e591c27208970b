"""``specbench compare``: runs against each other, request by request, from their files alone."""

from __future__ import annotations

import typer

from specbench.cli import options, output
from specbench.common import Regression, UsageError


def compare(
    runs: list[str] = options.folders(
        "Folders that specbench run wrote, or FOLDER:METHOD; the first is the reference.", "RUN"
    ),
    fail_under: float | None = typer.Option(
        None,
        "--fail-under",
        min=0.0,
        help="Exit 5 when a row is proven slower than this share of the first run's: its whole interval lies below.",
        metavar="SHARE",
    ),
    over_ar: bool = typer.Option(
        False, "--over-ar", help="--fail-under judges speedups over each run's own AR, so that machines cancel."
    ),
    prompts: bool = typer.Option(False, "--prompts", help="Each prompt by itself, the slowest first."),
    as_json: bool = options.JSON,
) -> None:
    """Hold runs against each other: methods, checkpoints, commits, machines.

    Refuses runs of other prompts, task versions, budgets or samplings. Works without torch.
    """
    if over_ar and fail_under is None:
        raise UsageError("--over-ar says what --fail-under judges; add --fail-under SHARE")
    from specbench.analysis import compare as compared
    from specbench.analysis import read_sides, regressions

    found = compared(read_sides(runs))
    slower = [] if fail_under is None else regressions(found, fail_under, over_ar)
    if as_json:
        output.emit_json({**found, "fail_under": fail_under, "regressions": [row["methods"] for row in slower]})
    else:
        from specbench.report import comparison_report, render_terminal

        output.stdout().print(render_terminal(comparison_report(found, prompts)))
    if slower:
        from specbench.report import comparison_row

        row = slower[0]
        interval = row["over_ar" if over_ar else "speedup"]
        raise Regression(
            f"{comparison_row(row)} has {interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}] of A's "
            f"speed{' over AR' if over_ar else ''}, all of it below {fail_under:g}"
        )
