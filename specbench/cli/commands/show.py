"""``specbench show``: show a run, a sweep, a profile, or how the tokens of an answer were drafted, from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.cli.latest import short_name
from specbench.common import UsageError

if TYPE_CHECKING:
    from specbench.analysis import ReadRun
    from specbench.results import RequestRecord


def show(
    run: Path = options.folders("A folder that specbench run, sweep, profile or import wrote.", "RUN"),
    requests: bool = typer.Option(False, "--requests", help="A line per request instead of the table."),
    request: str | None = typer.Option(
        None,
        "--request",
        help="How each token of an answer was drafted: prompt id, or METHOD|PROMPT|REPEAT.",
        metavar="ID",
    ),
    method: str | None = typer.Option(None, "--method", help="With --request: only this method."),
    trajectory: bool = typer.Option(
        False,
        "--trajectory",
        help="With --request, for a run with --trace: the input of each forward at each position.",
    ),
    number: int | None = typer.Option(
        None, "--round", help="With --request, for a run with --trace: the tree that forward K verified.", metavar="K"
    ),
    race: str | None = typer.Option(
        None,
        "--race",
        help="Replay methods side by side, on --request ID or a typical prompt.",
        metavar="A,B",
    ),
    speed: float = typer.Option(1.0, "--speed", help="With --race: speed factor."),
    rows: str | None = options.table_option("--rows", "Of several configurations: axes down, as model,method."),
    columns: str | None = options.table_option("--columns", "Axes across, as task."),
    value: str | None = options.table_option("--value", "Figures in the cells, as speedup,tpf,accuracy."),
    out: Path | None = typer.Option(
        None,
        "--out",
        help="Write a file: .html, .gif or .mp4 with --race, .svg with --trajectory or --round.",
        dir_okay=False,
    ),
    verbose: bool = typer.Option(False, "--verbose", help="Every table and note, instead of the short form."),
    as_json: bool = options.JSON,
) -> None:
    """Show a run, finished or not, a sweep or a profile, without torch."""
    from specbench.analysis import read_run
    from specbench.cli.commands.sweep import show_sweep, show_trainings
    from specbench.cli.show_request import show_request, view
    from specbench.hardware import is_profile
    from specbench.results import is_campaign, is_import, is_sweep
    from specbench.sweeps import is_trainings

    seen = view(request, method, race, trajectory, number, out)
    if requests and (race is not None or request is not None):
        raise UsageError("--requests lists all of them; leave it out, or --race and --request")
    if as_json and out is not None:
        raise UsageError("--json prints and --out writes a file; leave one of them out")
    if race is None and speed != 1.0:
        raise UsageError("--speed needs --race A,B; add it, or leave --speed out")
    if (race is not None or request is not None) and is_sweep(run):
        raise UsageError(f"{run} is a sweep; name one of its runs, as in {run / 'c1'}")
    asked = {"--rows": rows, "--columns": columns, "--value": value}
    if is_campaign(run) or any(asked.values()):
        given = {"--requests": requests, "--race": race is not None, "--request": request is not None}
        if wrong := next((flag for flag, used in given.items() if used), None):
            raise UsageError(f"cannot use {wrong} with a table of configurations; name one of the run folders in {run}")
        from specbench.cli.campaigns import show_campaign

        show_campaign(run, options.layout(rows, columns, value), as_json)
        return
    if race is not None:
        from specbench.cli.show_request import show_race

        show_race(read_run(run), race, request, speed, out, as_json)
        return
    if request is not None:
        show_request(read_run(run), request, method, seen, as_json)
        return
    if is_sweep(run):  # first, because a sweep may contain the profile of its predictions
        from specbench.sweeps import read_sweep

        show_sweep(read_sweep(run), as_json, verbose=verbose)
        return
    if is_trainings(run):
        show_trainings(run, as_json)
        return
    if is_profile(run):
        _show_profile(run, requests, as_json)
        return
    if is_import(run):
        _show_import(run, requests, as_json)
        return
    read = read_run(run, traces=requests)
    if as_json:
        lines = [record.model_dump(mode="json") for record in read.records] if requests else None
        judged = {"judged": read.judged} if read.judged else {}
        projected = {"projections": read.projections} if read.projections else {}
        data = {"run": read.run, "summary": read.summary.written(), **judged, **projected}
        output.emit_json({**data, **({"requests": lines} if requests else {})})
        return
    console = output.stdout()
    if requests:
        heads = ["prompt", "method", "tokens", "TPF", "tok/s", "speedup", "ends by", "answer"]
        console.print(output.table(heads, _rows(read)))
        return
    from specbench.report import projection_table, render_terminal, run_brief, run_report

    blocks, below = run_brief(read.run, read.summary, str(run), read.judged, called=short_name(run), new=False)
    if verbose:
        blocks, below = run_report(read.run, read.summary, read.judged), []
    console.print(render_terminal([*blocks, *map(projection_table, read.projections)]))
    if below:
        from specbench.cli.commands.run import show_lines

        console.print()
        show_lines(below)


def _show_profile(path: Path, requests: bool, as_json: bool) -> None:
    from specbench.hardware import read_profile
    from specbench.report import profile_report, render_terminal

    if requests:
        raise UsageError(f"{path} is a profile, which has no requests; leave --requests out")
    profile = read_profile(path)
    if as_json:
        output.emit_json(profile.model_dump(mode="json"))
    else:
        output.stdout().print(render_terminal(profile_report(profile)))


def _show_import(path: Path, requests: bool, as_json: bool) -> None:
    from specbench.analysis import served_rows
    from specbench.report import import_report, render_terminal
    from specbench.results import read_import

    found = read_import(path)
    lines = [each.model_dump(mode="json") for some in found.requests.values() for each in some] if requests else []
    if as_json:
        rows = [row.model_dump(mode="json") for row in found.rows]
        figures = [row.written() for row in served_rows(found)]
        output.emit_json({"imported": rows, "rows": figures, **({"requests": lines} if requests else {})})
    elif requests:
        columns = ["row", "prompt", "state", "prompt_tokens", "output_tokens", "ttft_s", "decode_s", "latency_s"]
        shown = [["–" if each[name] is None else _short(each[name]) for name in columns] for each in lines]
        output.stdout().print(output.table(columns, shown))
    else:
        output.stdout().print(render_terminal(import_report(found)))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:12]


def _rows(read: ReadRun) -> list[list[str]]:
    """A row per request; its speedup is over AR's request for the same prompt, repeat and turn."""
    from specbench.analysis import quotient
    from specbench.results import BASELINE, request_key

    speeds = {record.request_id: record.decode_tok_s(read.config.concurrency > 1) for record in read.records}
    rows = []
    for record in read.records:
        mine, baseline = speeds[record.request_id], request_key(BASELINE, record.prompt_id, record.repeat, record.turn)
        speedup = quotient(mine, speeds.get(baseline))
        rows.append(_row(record, mine, speedup, read.verdicts, record.method in read.config.simulated))
    return rows


def _row(
    record: RequestRecord, speed: float | None, speedup: float | None, verdicts: dict[str, bool], simulated: bool
) -> list[str]:
    from specbench.common import one_line

    verdict = "simulated" if simulated else {True: "right", False: "wrong", None: "–"}[verdicts.get(record.request_id)]
    if record.gpu and record.gpu.throttled:
        verdict += f", throttled: {', '.join(record.gpu.throttled)}"
    name = record.prompt_id if record.repeat == 0 else f"{record.prompt_id}#{record.repeat}"
    figures = ((record.tokens_per_forward, 2), (speed, 1), (speedup, 2))
    shown = ["–" if value is None else f"{value:.{digits}f}" for value, digits in figures]
    return [one_line(name), record.method, str(record.output_tokens), *shown, record.finish_reason, verdict]
