"""``specbench show``: a run, a sweep or a profile again, from its files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from specbench.cli import common, output
from specbench.errors import UsageError


def show(
    run: Path = typer.Argument(help="A folder that specbench run, sweep or profile wrote.", metavar="RUN"),
    requests: bool = typer.Option(False, "--requests", help="A line per request instead of the table."),
    request: str | None = typer.Option(
        None, "--request", help="How each token of an answer came: prompt id, or METHOD|PROMPT|REPEAT.", metavar="ID"
    ),
    method: str | None = typer.Option(None, "--method", help="With --request: of this method only."),
    as_json: bool = common.JSON,
) -> None:
    """Show a run, finished or not, a sweep or a profile, without torch."""
    from specbench.cli.show_request import show_request
    from specbench.cli.sweep import show_sweep
    from specbench.profiles import is_profile
    from specbench.reading import read_run
    from specbench.sweep.table import is_sweep, read_sweep

    if method is not None and request is None:
        raise UsageError("--method goes with --request ID; add it, or leave --method out")
    if request is not None:
        if is_sweep(run):
            raise UsageError(f"{run} is a sweep; name one of its runs, as in {run / 'c1'}")
        show_request(read_run(run), request, method, as_json)
        return
    if is_sweep(run):  # first: a sweep may hold the profile that it was predicted with
        show_sweep(read_sweep(run), as_json)
        return
    if is_profile(run):
        _show_profile(run, requests, as_json)
        return
    read = read_run(run, traces=requests)
    if as_json:
        lines = [record.model_dump(mode="json") for record in read.records] if requests else None
        judged = {"judged": read.judged} if read.judged else {}
        projected = {"projections": read.projections} if read.projections else {}
        told = {"run": read.run, "summary": read.summary, **judged, **projected}
        output.emit_json({**told, **({"requests": lines} if requests else {})})
        return
    console = output.stdout()
    if requests:
        columns = ["prompt", "method", "tokens", "forwards", "TPF", "decode s", "ends by", "answer"]
        rows = [_row(record, read.verdicts, record.method in read.config.simulated) for record in read.records]
        console.print(output.table(columns, rows))
        return
    from specbench.reporting.projection import projection_table
    from specbench.reporting.table import headline

    console.print(headline(read.run, read.summary, read.judged))
    for projection in read.projections:
        console.print()
        console.print(projection_table(projection))


def _show_profile(path: Path, requests: bool, as_json: bool) -> None:
    from specbench.profiles import read_profile
    from specbench.reporting.profile import profile_report

    if requests:
        raise UsageError(f"{path} is a profile, which has no requests; leave --requests out")
    profile = read_profile(path)
    if as_json:
        output.emit_json(profile.model_dump(mode="json"))
    else:
        output.stdout().print(profile_report(profile))


def _row(record: Any, verdicts: dict[str, bool], simulated: bool) -> list[str]:
    tpf = f"{(record.n_out - 1) / record.forwards:.2f}" if record.forwards else "–"
    verdict = "simulated" if simulated else {True: "right", False: "wrong", None: "–"}[verdicts.get(record.key)]
    if record.gpu and record.gpu.throttled:
        verdict += f", throttled: {', '.join(record.gpu.throttled)}"
    name = record.prompt_id if record.repeat == 0 else f"{record.prompt_id}#{record.repeat}"
    counts = [str(record.n_out), str(record.forwards), tpf, f"{record.decode_s:.2f}"]
    return [name, record.method, *counts, record.stop_reason, verdict]
