"""``specbench claims``: the published speedups, each table with its GPU and caveats over it; what a run repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from specbench.cli import options, output
from specbench.common import UsageError


def claims(
    method: str = typer.Option(None, "--method", help="only this method's rows"),
    task: str = typer.Option(None, "--task", help="only this task's rows"),
    check: Path = options.folder_option(
        "--check",
        "A finished run: which figures it agrees with, which not, and why others cannot be compared.",
        "RUN",
    ),
    whole: bool = typer.Option(False, "--all", help="With --check: every figure with its reasons."),
    as_json: bool = typer.Option(
        False, "--json", help="JSON to stdout: one object per row, with its id; with --check one per figure."
    ),
) -> None:
    """List published speedups with their GPU, baseline and caveats.

    With --check a run is held against them; --method and --task choose rows in both.
    """
    if whole and check is None:
        raise UsageError("--all goes with --check RUN; add it, or leave --all out")
    from specbench.report import claim_data, claims_report, published_claims, render_terminal, select_claims

    known = published_claims()
    chosen = select_claims(known.claims, method, task)
    if check is None:
        found: Any = [claim_data(known, claim) for claim in chosen] if as_json else claims_report(known, chosen)
    else:
        from specbench.report import check_brief, check_claims, check_data, check_report

        known = known.model_copy(update={"claims": tuple(chosen)})
        checks = check_claims(known, check)
        if as_json:
            found = [check_data(known, each) for each in checks]
        else:
            found = check_report(checks, check.name) if whole else check_brief(known, checks, check.name)
    if as_json:
        output.emit_json(found)
    else:
        output.stdout().print(render_terminal(found))
