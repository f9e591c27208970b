"""``specbench sweep`` with several models, tasks or temperatures: run a campaign, and show its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.cli import output
from specbench.common import EnvironmentRefused
from specbench.sweeps import CampaignPlan


def campaign(plan: CampaignPlan, as_json: bool, dry: bool) -> None:
    """Run a campaign and print its table; with ``dry`` predict each of its sweeps."""
    from specbench.report import Layout
    from specbench.sweeps import campaign_blocks, campaign_plans, run_campaign

    plans = campaign_plans(plan)
    if dry:
        from specbench.cli.commands.run import show_dry_run
        from specbench.sweeps import predict

        found = [(block.label, predict(block.plan)) for block in campaign_blocks(plans)]
        if as_json:
            output.emit_json([content for _, content in found])
            return
        for label, content in found:
            output.stdout().print(label, style="bold", markup=False)
            show_dry_run(content, False)
            output.stdout().print()
        return
    path = run_campaign(plans)
    finish(path)
    show_campaign(path, Layout(), as_json)
    refuse_unfinished(path)


def finish(path: Path) -> None:
    """Remember a campaign, and write the table and the pictures of each of its sweeps."""
    from specbench.cli.commands.sweep import write_cells
    from specbench.cli.latest import remember
    from specbench.report import drawn_cells, sweep_title, write_sweep_charts
    from specbench.results import read_campaign
    from specbench.sweeps import read_sweep

    remember(path)
    for block in read_campaign(path).blocks:
        if block.sweep:
            read = read_sweep(path / block.sweep)
            write_cells(read)
            if any(cell["values"] for cell in read.head["cells"].values()):
                title = sweep_title(next(iter(read.runs.values())).run)
                write_sweep_charts(drawn_cells(read.cells), read.path, title.caption)


def show_campaign(path: Path, layout: Any, as_json: bool) -> None:
    """Print the table of a campaign, a sweep or a run with two axes."""
    import pandas as pd

    from specbench.analysis import load_methods
    from specbench.report import crosstab, render_terminal
    from specbench.results import is_campaign, read_campaign

    blocks = read_campaign(path).blocks if is_campaign(path) else []
    frame = pd.DataFrame() if blocks and not any(block.sweep for block in blocks) else load_methods(path)
    if as_json:
        rows = json.loads(frame.to_json(orient="records"))
        output.emit_json({"folder": str(path), "blocks": [each.model_dump() for each in blocks], "rows": rows})
        return
    console = output.stdout()
    console.print()
    if len(frame):
        console.print(render_terminal([crosstab(frame, layout)]))
    if blocks:
        say_missing(path)
    console.print(f"\n{'campaign' if blocks else 'folder'}: {path}", soft_wrap=True, markup=False)


def say_missing(path: Path) -> None:
    """Print the blocks that the table lacks, with the reason."""
    from specbench.results import read_campaign

    for each in read_campaign(path).blocks:
        if not each.sweep:
            line = f"missing: {each.model} on {each.task}: {each.failed or 'not started'}"
            output.stdout().print(line, style="dim", markup=False, soft_wrap=True)


def refuse_unfinished(path: Path) -> None:
    """Raise the reason of the first block that failed, when all is shown."""
    from specbench.results import read_campaign

    failed = [each for each in read_campaign(path).blocks if each.failed]
    if failed:
        raise EnvironmentRefused(f"cannot finish {failed[0].model} on {failed[0].task}: {failed[0].failed}")
