"""``specbench doctor``: is this machine ready, and fit to measure on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import EnvironmentRefused, NotQuiet

if TYPE_CHECKING:
    from specbench.profiling import Check

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "yellow"}


def doctor(
    out: Path = typer.Option(options.RESULTS, "--out", help="Folder that runs would be written to."),
    watch: float | None = typer.Option(
        None,
        "--watch",
        min=5.0,  # fewer say nothing, and after an hour a machine is another one
        max=3600.0,
        help="Watch the machine for SECONDS, 5 or more; exits 1 when it is not quiet, 3 when that is unknown.",
        metavar="SECONDS",
    ),
    model: str | None = typer.Option(
        None,
        "--model",
        help="Show how this model's prompts begin and end as tokens; alias, hub id, folder, .gguf file.",
    ),
    as_json: bool = typer.Option(False, "--json", help="JSON to stdout."),
) -> None:
    """Check software, model, data, sandbox, load and disk; exits 3 when a run cannot work."""
    from specbench.profiling import OTHER_WORK, doctor_checks, model_checks

    checks = [*doctor_checks(out), *(model_checks(model) if model is not None else [])]
    watched = [] if watch is None else _watched(watch)
    checks += watched
    if as_json:
        output.emit_json([asdict(check) for check in checks])
    else:
        from rich.text import Text

        rows: list[list[str | Text]] = [
            [
                check.name,
                Text(check.status, _COLOURS[check.status]),
                Text(f"{check.detail}{f' → {check.advice}' if check.advice else ''}"),  # a token may look like markup
            ]
            for check in checks
        ]
        output.stdout().print(output.table(["check", "", "found"], rows))
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        raise EnvironmentRefused(f"not ready: {', '.join(check.name for check in failed)}; see the advice above")
    if loud := [check for check in watched if check.status == "warn"]:
        raise NotQuiet(f"not quiet: {', '.join(check.name for check in loud)}; see the advice above")
    if watched and not any(check.name in OTHER_WORK and check.status == "ok" for check in watched):
        raise EnvironmentRefused(
            "cannot tell whether this machine is quiet: it reports neither the time of other processes nor its load; "
            "use a machine that does"
        )


def _watched(seconds: float) -> list[Check]:
    from specbench.profiling import quiet_checks

    text = f"watching for {seconds:g} s"
    with output.stderr().status(text) as status:  # rich shows no status without a terminal
        return quiet_checks(seconds, lambda line: status.update(f"{text}, {line}"), on_gpu=_on_gpu())


def _on_gpu() -> bool:
    try:
        import torch
    except (ImportError, OSError):  # the checks have text so
        return False
    return torch.cuda.is_available()
