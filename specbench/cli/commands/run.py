"""``specbench run``: run methods on tasks, timed and graded."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.cli import options, output
from specbench.planning import Plan


@options.takes(
    Plan,
    shown=(
        "method", "task", "data_file", "model", "head", "limit", "max_new_tokens", "temperature", "seed", "settings",
        "preset", "gpu", "concurrency", "rate", "slo", "repeats", "project", "out", "verbose",
    ),
)  # fmt: skip
def run(plan: Plan, as_json: bool = options.JSON, dry: bool = options.DRY_RUN) -> None:
    """Run methods on tasks: same weights, cache, clock and stop rule; AR always runs with them.

    Repeating an interrupted command continues it; repeating a finished one shows its run.
    specbench list METHOD has the options of a method.
    """
    if dry:
        from specbench.planning import dry_run, projected_gpu, resolve

        if plan.project:
            projected_gpu(plan.project, plan.profile)
        resolved = resolve(plan, by_machine=True)
        show_dry_run(dry_run(resolved, resolved.methods, [plan.concurrency], plan.profile), as_json)
        return
    from specbench.cli.latest import remember, short_name
    from specbench.common import EngineFault, PluginFault, SpecbenchError
    from specbench.report import finding, projection_table, render_terminal, run_brief, run_report
    from specbench.runner import run_plan

    finished, failed = [], []
    fault: type[SpecbenchError] = EngineFault
    for done in run_plan(plan):
        folder, summary = done.folder, done.folder.summary()
        remember(folder.path)
        assert summary is not None
        for row in summary.rows:
            if row.failed:
                failed.append(f"{row.method}: {row.failed}")
                fault = PluginFault if row.fault else fault
        extra = {"projection": done.projection} if done.projection else {}
        finished.append({"folder": str(folder.path), "task": done.task, **summary.written(), **extra})
        if not as_json:
            console = output.stdout()
            console.print()
            blocks, lines = run_brief(folder.run, summary, str(folder.path), called=short_name(folder.path), new=True)
            if plan.verbose:
                blocks, lines = run_report(folder.run, summary), [finding(summary), "", lines[-1]]
            console.print(render_terminal(blocks))
            if done.projection:
                console.print()
                console.print(render_terminal([projection_table(done.projection)]))
            console.print()
            show_lines(lines)
    if as_json:
        output.emit_json(finished)
    if failed:
        raise fault("; ".join(failed))


def show_lines(lines: Sequence[str]) -> None:
    """Print the lines below a run's table: commands and paths in one piece, other lines with a hanging indent."""
    console = output.stdout()
    for line in lines:
        whole = line.startswith(("Next: ", "run: "))
        indent = " " * 7 if line.startswith(("Found: ", "Sure: ", "Good: ", "Note: ")) else ""
        text = line if whole else textwrap.fill(line, console.width, subsequent_indent=indent, break_on_hyphens=False)
        console.print(text, markup=False, soft_wrap=True)


def show_dry_run(content: Mapping[str, Any], as_json: bool) -> None:
    """Print the prediction of :func:`specbench.planning.dry_runs.dry_run`."""
    if as_json:
        output.emit_json(content)
        return
    from specbench.report import dry_run_report, render_terminal

    output.stdout().print(render_terminal(dry_run_report(content)))
