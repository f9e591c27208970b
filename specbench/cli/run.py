"""``specbench run``: methods on tasks, timed and scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output

if TYPE_CHECKING:
    from specbench.hardware import Profile


def run(
    method: str | None = options.METHOD,
    task: str | None = options.TASK,
    model: str = options.MODEL,
    base: str = options.BASE,
    gpu: str = typer.Option("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus."),
    limit: int | None = options.LIMIT,
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    max_new_tokens: int | None = options.BUDGET,
    temperature: float | None = typer.Option(
        None, "--temperature", min=0.0, help="0 is greedy.", show_default="0, or the preset's"
    ),
    top_k: int = options.TOP_K,
    top_p: float = options.TOP_P,
    seed: int = options.SEED,
    preset: str | None = options.PRESET,
    settings: list[str] = options.SET,
    head: str | None = options.HEAD,
    task_settings: list[str] = options.TASK_SET,
    repeats: int = typer.Option(1, "--repeats", min=1, help="Times each prompt is decoded by each method."),
    concurrency: int = typer.Option(1, "--concurrency", min=1, help="Sequences stepped together."),
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    attention: str = options.ATTENTION,
    graphs: str = options.GRAPHS,
    compile: bool = options.COMPILE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    data_dir: Path | None = options.DATA_DIR,
    data_file: Path | None = options.DATA_FILE,
    out: Path = typer.Option(options.RESULTS, "--out", help="Folder that receives the run's folder."),
    again: bool = typer.Option(False, "--again", help="Measure anew what a finished run in --out has already."),
    trace: bool = typer.Option(False, "--trace", help="Split each step's time into phases (slows steps down a bit)."),
    simulate: list[str] = typer.Option(
        [],
        "--simulate-acceptance",
        help="Tokens per forward, drawn at random: MEAN[:SPREAD] or METHOD=MEAN[:SPREAD]. The text means nothing.",
        metavar="SPEC",
    ),
    project: str | None = typer.Option(
        None, "--project", help="Add what this would be on another GPU; see list gpus.", metavar="GPU"
    ),
    profile: Path | None = typer.Option(
        None, "--profile", help="Step times for --project; else they are measured.", exists=True, file_okay=False
    ),
    as_json: bool = options.JSON,
) -> None:
    """Run methods on tasks: same weights, cache, clock and stop rule; AR always runs beside them.

    Repeating an interrupted command goes on where it stopped; repeating a finished one shows its run.
    """
    onto = options.other_gpu(project, profile)
    options.assert_gpu(gpu)
    plan = options.make_plan(
        method=method,
        task=task,
        model=model,
        base=base,
        settings=settings,
        head=head,
        task_settings=task_settings,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        limit=limit,
        prompt_seed=prompt_seed,
        first=first,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        concurrency=concurrency,
        dtype=dtype,
        device=device,
        attention=attention,
        graphs=graphs,
        compile=compile,
        revision=revision,
        trust_remote_code=trust_remote_code,
        data_dir=data_dir,
        data_file=data_file,
        out=out,
        again=again,
        trace=trace,
        simulate=simulate,
        preset=preset,
    )
    from specbench.cli.progress import RunProgress
    from specbench.report import headline
    from specbench.report.terminal.engine import projection_table

    notes = output.stderr()
    loaded = options.load_model(plan, notes)
    base_model = options.load_base(plan, loaded, notes)
    from specbench.runner import execute, prepare

    # All prompts of all tasks are read and checked before the first is run.
    prepared = [prepare(plan, task_plan, loaded) for task_plan in plan.tasks]
    finished = []
    steps: Profile | None = None
    for item in prepared:
        with RunProgress(notes) as progress:
            folder = execute(plan, loaded, item, progress, base_model)
        summary = folder.summary()
        assert summary is not None
        projected = None
        if onto is not None:
            from specbench.cli import project as projection

            # Behind the run: nothing that it measures is any warmer or colder for it.
            steps = steps or projection.profile_for(plan, loaded, profile, notes)
            projected = projection.add(folder.path, onto, steps)
        extra = {"projection": projected} if projected else {}
        finished.append({"folder": str(folder.path), "task": item.spec.name, **summary.written(), **extra})
        if not as_json:
            console = output.stdout()
            console.print()
            console.print(headline(folder.run, summary))
            if projected:
                console.print()
                console.print(projection_table(projected))
            console.print(f"\nrun: {folder.path}", soft_wrap=True)
    if as_json:
        output.emit_json(finished)
