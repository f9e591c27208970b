"""``specbench reproduce``: make a published table or figure again, and hold it against the printed one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import typer

from specbench.cli import options, output
from specbench.common import EnvironmentRefused, Flags, UsageError, flag
from specbench.planning import RESULTS


class ReproducePlan(Flags):
    """Which table to make, at which scale."""

    source: str | None = flag(None, "SOURCE", help="jf, cllm, lookahead, msn or jetspec; none: list all.")
    table: str | None = flag(None, "TABLE", help="Table or figure, as table-3.")
    scale: Literal["full", "small"] = flag(
        "full", "--scale", help="full: the published models and prompts; small: few prompts on smollm2-135m."
    )
    limit: int | None = flag(None, "--limit", help="Prompts of each task.", shown="the table's", ge=1)
    gpu: str | None = flag(None, "--gpu", help="Refuse any other GPU; with --dry-run the GPU to predict for.")
    device: str | None = flag(None, "--device", help="cpu, cuda or cuda:N.", shown="auto")
    data_dir: Path | None = flag(None, "--data-dir", help="Folder with task data files.", exists="folder")
    out: Path = flag(RESULTS, "--out", help="Folder that receives the table's folder.")
    quiet: bool = flag(False, "--quiet", help="No progress and no notes.")


@options.takes(
    ReproducePlan,
    shown=("source", "table", "scale", "limit", "gpu", "device", "data_dir", "out", "quiet"),
)
def reproduce(
    plan: ReproducePlan,
    dry: bool = typer.Option(False, "--dry-run", help="Memory, hours and what has to be downloaded; run nothing."),
    as_json: bool = options.JSON,
) -> None:
    """Make a published table or figure again; without a name, list them.

    Prints our table, then each printed figure with ours and whether they agree.
    Repeating an interrupted command continues it.
    """
    from specbench.report import find_reproduction, render_terminal, reproductions, reproductions_report

    if plan.source is None or plan.table is None:
        if plan.source is not None:
            raise UsageError("reproduce takes SOURCE and TABLE; name both, or none for the list")
        if as_json:
            output.emit_json([{"source": s, "table": t, **m.model_dump()} for (s, t), m in reproductions().items()])
            return
        output.stdout().print(render_terminal(reproductions_report()))
        return
    made, file = find_reproduction(plan.source, plan.table)
    if made.needs and not made.options(plan.scale):
        raise EnvironmentRefused(f"cannot reproduce {plan.source} {plan.table} by itself: {made.needs}")
    if plan.scale == "full" and not dry and plan.device != "cpu":
        _assert_card(plan)
    if made.run:
        _picture(plan, made, file, dry, as_json)
    else:
        _table(plan, made, file, dry, as_json)


def _given(plan: ReproducePlan) -> dict[str, Any]:
    """Options of the user that the run or campaign has too."""
    shared = {"limit", "gpu", "device", "data_dir", "out", "quiet"}
    return {name: getattr(plan, name) for name in plan.model_fields_set & shared}


def _assert_card(plan: ReproducePlan) -> None:
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentRefused(
            f"cannot run {plan.source} {plan.table} at full scale: no CUDA device is here; add --scale small, "
            "--dry-run or --device cpu"
        )


def _table(plan: ReproducePlan, made: Any, file: Path, dry: bool, as_json: bool) -> None:
    """Run a campaign, and print our table and the comparison."""
    from specbench.cli.campaigns import finish, refuse_unfinished
    from specbench.common import parse_flags
    from specbench.results import campaign_runs
    from specbench.sweeps import CampaignPlan, campaign_blocks, campaign_plans, parse_campaign, run_campaign

    written = parse_campaign(made.options(plan.scale), file)
    plans = campaign_plans(parse_flags(CampaignPlan, _given(plan)), written)
    if dry:
        _forecast([block.plan for block in campaign_blocks(plans)], as_json)
        return
    path = run_campaign(plans, f"{plan.source}-{plan.table}-{plan.scale}")
    finish(path)
    if not any(True for _ in campaign_runs(path)):
        refuse_unfinished(path)
    _show(made, path, [place for _, place in campaign_runs(path)], as_json)
    refuse_unfinished(path)


def _show(made: Any, path: Path, runs: list[Path], as_json: bool) -> None:
    """Print our table, and the printed figures next to ours."""
    from specbench.analysis import load_methods
    from specbench.cli.campaigns import say_missing
    from specbench.report import (
        check_data,
        compare_published,
        crosstab,
        published_claims,
        render_terminal,
        reproduction_report,
    )
    from specbench.results import is_campaign

    found = compare_published(made, runs)
    if as_json:
        known = published_claims()
        output.emit_json({"folder": str(path), "figures": [check_data(known, each) for each in found]})
        return
    console = output.stdout()
    console.print()
    frame, layout = load_methods(path), made.layout
    # Ratings are there only where a judge has been asked.
    layout = replace(layout, values=[name for name in layout.values if name != "rating" or name in frame.columns])
    console.print(render_terminal([crosstab(frame, layout, made.title)]))
    console.print()
    console.print(render_terminal(reproduction_report(made, found)))
    if is_campaign(path):
        say_missing(path)
    console.print(f"\nfolder: {path}", soft_wrap=True, markup=False)


def _picture(plan: ReproducePlan, made: Any, file: Path, dry: bool, as_json: bool) -> None:
    """Make a traced run, and draw the view of it or print its table."""
    from specbench.analysis import read_run
    from specbench.cli.show_request import show_race, show_request, view
    from specbench.common import parse_flags
    from specbench.planning import Plan
    from specbench.report import check_picture
    from specbench.runner import run_plan
    from specbench.sweeps import parse_written

    kind = check_picture(made, file) if made.picture else ""
    values = parse_written(made.options(plan.scale), file, Plan)
    asked = parse_flags(Plan, {"base": "none", **values, "trace": True, **_given(plan)})
    if dry:
        _forecast([asked], as_json)
        return
    (done,) = run_plan(asked)
    if not made.picture:
        _show(made, done.folder.path, [done.folder.path], as_json)
        return
    read, path = read_run(done.folder.path), done.folder.path
    labels = made.picture[kind] if kind == "race" else made.picture["method"]
    suffix = "html" if kind == "race" else "svg"
    out = path / f"{plan.source}-{plan.table}.{suffix}"
    if kind == "race":
        show_race(read, labels, None, 1.0, out, False)
    else:
        record = next(record for record in read.records if record.method == labels)
        number = min(int(made.picture["round"]), len(record.accepted_lengths)) if kind == "round" else None
        seen = view(record.request_id, None, None, kind == "trajectory", number, out)
        show_request(read, record.request_id, None, seen, False)
    if made.lacks:
        output.stdout().print(made.lacks, style="dim", soft_wrap=True, markup=False)
    output.stdout().print(f"run: {path}", soft_wrap=True, markup=False)


def _forecast(plans: list[Any], as_json: bool) -> None:
    """Print memory, hours and downloads of sweeps or runs."""
    from specbench.report import forecast_table, render_terminal
    from specbench.sweeps import forecast

    found = [forecast(plan) for plan in plans]
    if as_json:
        output.emit_json(found)
    else:
        output.stdout().print(render_terminal(forecast_table(found)))
