"""``specbench check-lossless``: does every method that says so emit exactly what AR emits."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from specbench.cli import common, output
from specbench.errors import LosslessFailed, UsageError


def check_lossless(
    method: str | None = common.METHOD,
    task: str | None = common.TASK,
    model: str = common.MODEL,
    temperatures: str = typer.Option("0,0.7,1", "--temperatures", help="Comma-separated; 0 is greedy."),
    seeds: str = typer.Option("0,1,2", "--seeds", help="Comma-separated; greedy needs one only."),
    limit: int | None = typer.Option(4, "--limit", min=1, help="First N prompts."),
    max_new_tokens: int | None = typer.Option(64, "--max-new-tokens", min=1, help="Per answer."),
    top_k: int = common.TOP_K,
    top_p: float = common.TOP_P,
    settings: list[str] = common.SET,
    head: str | None = common.HEAD,
    task_settings: list[str] = common.TASK_SET,
    concurrency: int = typer.Option(1, "--concurrency", min=1, help="Sequences stepped together."),
    dtype: str = common.DTYPE,
    device: str = common.DEVICE,
    attention: str = common.ATTENTION,
    graphs: str = common.GRAPHS,
    compile: bool = common.COMPILE,
    revision: str | None = common.REVISION,
    data_dir: Path | None = common.DATA_DIR,
    data_file: Path | None = common.DATA_FILE,
    as_json: bool = common.JSON,
) -> None:
    """Compare every method with AR, token for token; exits 4 when one that says it is lossless is not."""
    wanted = [(t, s) for t in _numbers(temperatures, float) for s in (_numbers(seeds, int) if t else [0])]
    plans = [
        common.make_plan(
            method=method,
            task=task,
            model=model,
            settings=settings,
            head=head,
            task_settings=task_settings,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=int(seed),
            limit=limit,
            max_new_tokens=max_new_tokens,
            repeats=1,
            concurrency=concurrency,
            dtype=dtype,
            device=device,
            attention=attention,
            graphs=graphs,
            compile=compile,
            revision=revision,
            data_dir=data_dir,
            data_file=data_file,
            out=Path(),
        )
        for temperature, seed in wanted
    ]
    notes = output.stderr()
    loaded = common.load_model(plans[0], notes)
    from specbench.run import check

    strict = loaded.spec.dtype == "float32" and loaded.spec.device == "cpu"
    found = []
    for plan in plans:
        for task_plan in plan.tasks:
            where = f"{task_plan.card.name} T={plan.sampling.temperature:g} seed {plan.sampling.seed}"
            notes.print(f"{where} …")
            for label, counts in check(plan, task_plan, loaded).items():
                found.append({"task": task_plan.card.name, **plan.sampling.model_dump(), "method": label, **counts})
    claims = {m.label for m in plans[0].methods if m.lossless}
    allowed = {"exact"} if strict else {"exact", "numeric-tie"}
    broken = [row for row in found if row["method"] in claims and row["verdict"] not in allowed]
    if as_json:
        output.emit_json({"ok": not broken, "strict": strict, "rows": found})
    else:
        columns = ["task", "T", "seed", "method", "exact", "tie", "lossy", "verdict"]
        cells = [
            [
                *(r["task"], f"{r['temperature']:g}", str(r["seed"]), r["method"]),
                *(str(r["exact"]), str(r["numeric_tie"]), str(r["lossy"]), r["verdict"]),
            ]
            for r in found
        ]
        output.stdout().print(output.table(columns, cells))
    if broken:
        worst = broken[0]
        first = worst["divergences"][0]
        prompt = _prompt(first["prompt"])
        gap = "infinite" if first["gap"] is None else f"{first['gap']:.3g}"
        raise LosslessFailed(
            f"{worst['method']} says it is lossless but left AR at token {first['at']} of {prompt} "
            f"(T={worst['temperature']:g}, seed {worst['seed']}, AR's top-2 gap there {gap})"
        )


def _prompt(item: str) -> str:
    """What an item of a tally ("id|repeat", "id|repeat|turn") is to the user: of repeats there is one here."""
    name, turn = re.fullmatch(r"(.*?)\|0(?:\|(\d+))?", item, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{name}, turn {turn}" if turn else str(name)


def _numbers(text: str, kind: type[float] | type[int]) -> list[float]:
    try:
        return [kind(part) for part in common.split(text)] or [kind(0)]
    except ValueError as error:
        raise UsageError(f"'{text}' is no list of numbers; write them as 0,0.7,1") from error
