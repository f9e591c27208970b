"""``specbench compare``: compare runs request by request, from their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from specbench.cli import options, output
from specbench.common import Regression, Undecided, UsageError


def compare(
    runs: list[str] = options.folders(
        "Folders that specbench run wrote, or FOLDER:METHOD; the first is the reference.", "RUN"
    ),
    fail_under: float | None = typer.Option(
        None,
        "--fail-under",
        min=0.0,
        help="Exit 5 when a row is proven slower than this share of the first run's speed: its whole interval lies "
        "below. Exit 8 when a run was disturbed.",
        metavar="SHARE",
    ),
    over_ar: bool = typer.Option(
        False,
        "--over-ar",
        help="--fail-under judges speedups over each run's own AR, so that machines cancel; also of disturbed runs.",
    ),
    tpf: bool = typer.Option(
        False, "--tpf", help="--fail-under judges tokens per forward, exact in greedy runs on any machine."
    ),
    prompts: bool = typer.Option(False, "--prompts", help="Each prompt by itself, the slowest first."),
    as_json: bool = options.JSON,
) -> None:
    """Compare runs: methods, checkpoints, commits, machines.

    Refuses runs with other prompts, task versions, budgets or sampling. Works without torch.
    """
    if (over_ar or tpf) and fail_under is None:
        flag = "--tpf" if tpf else "--over-ar"
        raise UsageError(f"{flag} says what --fail-under judges; add --fail-under SHARE")
    if over_ar and tpf:
        raise UsageError("--over-ar and --tpf are two things to judge; leave one out")
    from specbench.analysis import compare as compared
    from specbench.analysis import disturbed_runs, fewer_tokens, read_sides, regressions

    found = compared(read_sides(runs))
    undecided: Undecided | None = None
    slower: list[dict[str, Any]] = []
    if fail_under is not None:
        try:
            slower = fewer_tokens(found, fail_under) if tpf else regressions(found, fail_under, over_ar)
        except Undecided as error:  # after the table, which says more
            undecided = error
    if as_json:
        judged = None if undecided else [row["methods"] for row in slower]
        output.emit_json({**found, "fail_under": fail_under, "regressions": judged})
    else:
        from specbench.report import comparison_report, render_terminal

        output.stdout().print(render_terminal(comparison_report(found, prompts)))
    if undecided is not None:
        raise undecided
    if fail_under is not None:
        _warn(found, tpf, disturbed_runs(found))
        if not slower and not as_json:
            what = "tokens per forward are" if tpf else "speedup over its own AR is" if over_ar else "speed is"
            output.stdout().print(f"gate passed: no row's {what} shown to be below {fail_under:g} of A's", markup=False)
    if slower and tpf:
        from specbench.report import comparison_row

        row = slower[0]
        a, other = row["tokens_per_forward"]
        raise Regression(
            f"{comparison_row(row)} has {other / a:.3f} of A's tokens per forward ({other:.3f}, not {a:.3f}), "
            f"below {fail_under:g}"
        )
    if slower:
        from specbench.report import comparison_row

        row = slower[0]
        interval = row["over_ar" if over_ar else "speedup"]
        raise Regression(
            f"{comparison_row(row)} has {interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}] of A's "
            f"speed{' over AR' if over_ar else ''}, all of it below {fail_under:g}"
        )


def _warn(found: Mapping[str, Any], tpf: bool, disturbed: str) -> None:
    """Say on stderr what makes a gate's answer less sure."""
    if tpf:
        measured = {label for run in found["runs"] for label in run["calibrated"]}
        labels = sorted(measured & {label for row in found["rows"] for label in row["methods"]})
        warning = f"{', '.join(labels)}: tree sizes were set by measured times; --deterministic fixes them"
    else:
        labels, warning = (
            [disturbed] if disturbed else [],
            f"{disturbed}; ratios within a run are less affected, and less sure than on a quiet machine",
        )
    if labels:
        output.stderr().print(f"warning: {warning}", soft_wrap=True, markup=False)
