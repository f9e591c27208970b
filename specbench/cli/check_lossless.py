"""``specbench check-lossless``: does every method that says so emit exactly what AR emits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.common.errors import LosslessFailed

# (task, temperature) -> method -> prompt -> an answer's token ids for each seed
Sampled: TypeAlias = dict[tuple[str, float], dict[str, dict[str, list[Sequence[int]]]]]


def check_lossless(
    method: str | None = options.METHOD,
    task: str | None = options.TASK,
    model: str = options.MODEL,
    temperatures: str = typer.Option("0,0.7,1", "--temperatures", help="Comma-separated; 0 is greedy."),
    seeds: str = typer.Option("0,1,2", "--seeds", help="Comma-separated, or FIRST:LAST; greedy needs one only."),
    limit: int = typer.Option(4, "--limit", min=1, help="N prompts of each task, drawn by lot."),
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    max_new_tokens: int | None = typer.Option(64, "--max-new-tokens", min=1, help="Per answer."),
    top_k: int = options.TOP_K,
    top_p: float = options.TOP_P,
    settings: list[str] = options.SET,
    head: str | None = options.HEAD,
    task_settings: list[str] = options.TASK_SET,
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
    as_json: bool = options.JSON,
) -> None:
    """Compare every method with AR, token for token; exits 4 when one that says it is lossless is not."""
    wanted = [(t, s) for t in _temperatures(temperatures) for s in (_seeds(seeds) if t else [0])]
    plans = [
        options.make_plan(
            method=method,
            task=task,
            model=model,
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
            repeats=1,
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
            out=Path(),
        )
        for temperature, seed in wanted
    ]
    notes = output.stderr()
    loaded = options.load_model(plans[0], notes)
    from specbench.runner import check_lossless as check

    strict = loaded.spec.dtype == "float32" and loaded.spec.device == "cpu"
    rows: list[dict[str, Any]] = []
    asked: dict[str, Sequence[str]] = {}
    sampled: Sampled = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for plan in plans:
        for task_plan in plan.tasks:
            where = f"{task_plan.card.name} T={plan.sampling.temperature:g} seed {plan.sampling.seed}"
            notes.print(f"{where} …")
            checked = check(plan, task_plan, loaded)
            asked[task_plan.card.name] = checked.prompts
            for label, counts in checked.tallies.items():
                rows.append({"task": task_plan.card.name, **plan.sampling.model_dump(), "method": label, **counts})
            for label, answers in checked.sampled.items():
                for prompt, ids in answers.items():
                    sampled[task_plan.card.name, plan.sampling.temperature][label][prompt].append(ids)
    claims = {m.label for m in plans[0].methods if m.lossless}
    allowed = {"exact"} if strict else {"exact", "numeric-tie"}
    broken = [row for row in rows if row["method"] in claims and row["verdict"] not in allowed]
    distributions = _distributions(sampled)
    other = [each for each in distributions if each["method"] in claims and each["verdict"] == "different"]
    found = {
        "ok": not broken and not other,
        "strict": strict,
        "rows": rows,
        "rates": _rates(rows, asked),
        "distributions": distributions,
    }
    if as_json:
        output.emit_json(found)
    else:
        from specbench.report.terminal.lossless import lossless_report

        output.stdout().print(lossless_report(found))
    if broken:
        raise LosslessFailed(_left(broken[0], allowed))
    if other:
        raise LosslessFailed(
            f"{other[0]['method']} says it is lossless, but at T={other[0]['temperature']:g} its texts on "
            f"{other[0]['task']} are distributed otherwise than AR's (p = {other[0]['p_value']:.2g})"
        )


def _rates(rows: Sequence[Mapping[str, Any]], asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Grades of prompts by method; a prompt counts by the worst of its answers at all temperatures and seeds."""
    from specbench.results.grades import prompt_of, rates

    found = {}
    for label in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == label]
        diverged = [(f"{r['task']}/{prompt_of(d['prompt'])[0]}", d["grade"]) for r in mine for d in r["divergences"]]
        prompts = [f"{task}/{prompt}" for task in {row["task"]: None for row in mine} for prompt in asked[task]]
        found[label] = rates(prompts, diverged)
    return found


def _distributions(sampled: Sampled) -> list[dict[str, Any]]:
    """The two-sample test of each method that draws noise of its own, the answers of all seeds together."""
    from specbench.results import BASELINE
    from specbench.results.stats import two_sample

    found = []
    for (task, temperature), answers in sampled.items():
        for label in [label for label in answers if label != BASELINE]:
            tested = two_sample(answers[label], answers[BASELINE], seed=0)
            where = {"task": task, "temperature": temperature, "method": label}
            found.append({**where, **asdict(tested), "verdict": tested.verdict})
    return found


def _left(row: Mapping[str, Any], allowed: Collection[str]) -> str:
    """Where a method that should not have left AR first did, otherwise than it may."""
    from specbench.results.grades import prompt_of

    first = next(each for each in row["divergences"] if each["grade"] not in allowed)
    name, turn = prompt_of(first["prompt"])
    gap = "infinite" if first["gap"] is None else f"{first['gap']:.3g}"
    return (
        f"{row['method']} says it is lossless but left AR at token {first['at']} of {name}{turn and f', turn {turn}'} "
        f"(T={row['temperature']:g}, seed {row['seed']}, AR's top-2 gap there {gap})"
    )


def _temperatures(text: str) -> list[float]:
    try:
        return [float(part) for part in options.split(text)] or [0.0]
    except ValueError as error:
        raise UsageError(f"'{text}' is no list of numbers; write them as 0,0.7,1") from error


def _seeds(text: str) -> list[int]:
    """The seeds, each once: the same noise drawn again is no further sample."""
    found: dict[int, None] = {}
    try:
        for part in options.split(text):
            first, _, last = part.partition(":")
            found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    except ValueError as error:
        raise UsageError(f"'{text}' is no list of seeds; write them as 0,1,2 or 0:49") from error
    if not found:
        raise UsageError(f"'{text}' names no seed; write them as 0,1,2 or 0:49")
    return list(found)
