"""``specbench compare``: compare runs request by request, from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from specbench.cli import options, output
from specbench.common import Regression, Undecided, UsageError


def compare(
    runs: list[str] = options.folders(
        "Folders that specbench run or import wrote, or FOLDER:METHOD; the first is the reference.", "RUN"
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
    fail_under_acceptance: float | None = typer.Option(
        None,
        "--fail-under-acceptance",
        min=0.0,
        max=1.0,
        help="Exit 5 when a greedy row's accepted length, acceptance at a position or tokens per forward is below this "
        "share of the first's: the same on every machine. Also for sweeps with --acceptance and their acceptance.json.",
        metavar="SHARE",
    ),
    prompts: bool = typer.Option(False, "--prompts", help="Each prompt by itself, the slowest first."),
    as_json: bool = options.JSON,
) -> None:
    """Compare runs: methods, checkpoints, commits, machines.

    Refuses runs with other prompts, task versions, budgets or sampling. Imported results are compared by what a client
    saw. Works without torch.
    """
    if over_ar and fail_under is None:
        raise UsageError("--over-ar says what --fail-under judges; add --fail-under SHARE")
    if fail_under_acceptance is not None:
        if fail_under is not None or prompts:
            raise UsageError("--fail-under-acceptance is a gate of its own; leave out --fail-under and --prompts")
        _judge_acceptance(runs, fail_under_acceptance, as_json)
        return
    from specbench.analysis import compare as compared
    from specbench.analysis import disturbed_runs, is_served, read_sides, regressions

    if imported := next((run for run in runs if is_served(run)), None):
        if fail_under is not None or prompts:
            raise UsageError(f"cannot judge {imported}: another tool measured it; leave out --fail-under and --prompts")
        _compare_imported(runs, as_json)
        return
    found = compared(read_sides(runs))
    undecided: Undecided | None = None
    slower: list[dict[str, Any]] = []
    if fail_under is not None:
        try:
            slower = regressions(found, fail_under, over_ar)
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
        if disturbed := disturbed_runs(found):
            warning = f"{disturbed}; ratios within a run are less affected, and less sure than on a quiet machine"
            output.stderr().print(f"warning: {warning}", soft_wrap=True, markup=False)
        if not slower and not as_json:
            what = "speedup over its own AR is" if over_ar else "speed is"
            output.stdout().print(f"gate passed: no row's {what} shown to be below {fail_under:g} of A's", markup=False)
    if slower:
        from specbench.report import comparison_row

        row = slower[0]
        interval = row["over_ar" if over_ar else "speedup"]
        raise Regression(
            f"{comparison_row(row)} has {interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}] of A's "
            f"speed{' over AR' if over_ar else ''}, all of it below {fail_under:g}"
        )


def _compare_imported(runs: list[str], as_json: bool) -> None:
    """Compare imported results with each other or with runs, by what a client saw."""
    from specbench.analysis import compare_served
    from specbench.report import render_terminal, served_comparison

    rows = compare_served(runs)
    if as_json:
        output.emit_json({"runs": runs, "rows": [row.written() for row in rows]})
    else:
        output.stdout().print(render_terminal(served_comparison(rows, runs)))


def _judge_acceptance(targets: list[str], least: float, as_json: bool) -> None:
    """Compare the acceptance of runs and sweeps with that of the first, and raise Regression where it fell."""
    from specbench.analysis import compare_acceptance, read_curves
    from specbench.report import gate_report, render_terminal

    baseline, *others = [read_curves(Path(target)) for target in targets]
    if not others:
        raise UsageError("cannot compare one run: name the baseline and at least one other run or sweep")
    compared = {
        chr(ord("B") + at): (target, compare_acceptance(baseline, other, least))
        for at, (target, other) in enumerate(zip(targets[1:], others, strict=True))
    }
    if as_json:
        output.emit_json({letter: {"folder": target, **found} for letter, (target, found) in compared.items()})
    else:
        for letter, (target, found) in compared.items():
            output.stdout().print(render_terminal(gate_report(letter, target, found)))
    if labels := sorted({label for curves in (baseline, *others) for label in curves.calibrated}):
        warning = f"{', '.join(labels)}: tree sizes were set by measured times; --deterministic fixes them"
        output.stderr().print(f"warning: {warning}", soft_wrap=True, markup=False)
    for letter, (_, found) in compared.items():
        for row in found["rows"]:
            if row["failed"]:
                before, after = row["accepted_length"]
                raise Regression(
                    f"{letter} {row['row']}: {', '.join(row['failed'])} below {least:g} of A's; accepted length "
                    f"{after:.3f}, not {before:.3f}"
                )
    if not as_json:
        output.stdout().print(f"gate passed: no row's acceptance is below {least:g} of A's", markup=False)
