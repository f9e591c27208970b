"""``specbench doctor``: is this machine ready, and fit to measure on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from specbench.cli import options, output
from specbench.common import EnvironmentRefused

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def doctor(
    out: Path = typer.Option(options.RESULTS, "--out", help="Folder that runs would be written to."),
    as_json: bool = typer.Option(False, "--json", help="JSON to stdout."),
) -> None:
    """Check software, model, data, sandbox, load and disk; exits 3 when a run cannot work."""
    from specbench.profiling import doctor_checks

    checks = doctor_checks(out)
    if as_json:
        output.emit_json([asdict(check) for check in checks])
    else:
        rows = [
            [check.name, _MARKS[check.status], f"{check.detail}{f' → {check.advice}' if check.advice else ''}"]
            for check in checks
        ]
        output.stdout().print(output.table(["check", "", "found"], rows))
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        raise EnvironmentRefused(f"not ready: {', '.join(check.name for check in failed)}; see the advice above")
