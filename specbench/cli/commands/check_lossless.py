"""``specbench check-lossless``: check that every lossless method emits exactly AR's tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.cli import options, output
from specbench.common import LosslessFailed, UsageError, flag
from specbench.planning import Concurrent, split_names

if TYPE_CHECKING:
    from specbench.planning import Resolved

# (task, temperature) -> method -> prompt -> an answer's token ids for each seed
Sampled: TypeAlias = dict[tuple[str, float], dict[str, dict[str, list[Sequence[int]]]]]


class CheckPlan(Concurrent):
    """Options of ``check-lossless``: few short answers, at several temperatures and seeds."""

    limit: int = flag(4, "--limit", help="N prompts of each task, sampled at random.", ge=1)
    max_new_tokens: int | None = flag(64, "--max-new-tokens", help="Per answer.", ge=1)
    temperatures: str = flag("0,0.7,1", "--temperatures", help="Comma-separated; 0 is greedy.")
    seeds: str = flag("0,1,2", "--seeds", help="Comma-separated, or FIRST:LAST; greedy needs one only.")


_SEEDS = 10_000  # at most; more are a typing mistake, and need memory


@options.takes(
    CheckPlan,
    shown=("method", "task", "model", "temperatures", "seeds", "limit", "max_new_tokens", "settings", "concurrency"),
    without=("temperature", "seed", "simulate", "no_score", "out"),
)
def check_lossless(plan: CheckPlan, as_json: bool = options.JSON) -> None:
    """Compare every method with AR, token for token; exits 4 when a method declared lossless is not."""
    from specbench.planning import check_ready, resolve
    from specbench.profiling import check_device
    from specbench.runner import notes_of, printing_to

    check_device(plan)
    runs = [
        resolve(plan.plan(base="none", temperature=temperature, seed=seed))
        for temperature in _temperatures(plan.temperatures)
        for seed in (_seeds(plan.seeds) if temperature else [0])
    ]
    check_ready(runs[0])
    say = printing_to(notes_of(plan))
    for line in runs[0].notes:
        say(line)
    from specbench.runner import CheckedEngines, load_models
    from specbench.runner import check_lossless as check

    loaded, _ = load_models(runs[0], say)
    strict = loaded.spec.dtype == "float32" and loaded.spec.device == "cpu"
    rows: list[dict[str, Any]] = []
    asked: dict[str, Sequence[str]] = {}
    drawn: dict[str, str] = {}
    sampled: Sampled = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    with CheckedEngines() as engines:
        for run in runs:
            for task in run.tasks:
                name, sampling = task.card.name, run.sampling
                say(f"{name} T={sampling.temperature:g} seed {sampling.seed} …")
                checked = check(run, task, loaded, engines)
                asked[name], drawn[name] = checked.prompts, checked.drawn
                for label, counts in checked.tallies.items():
                    rows.append({"task": name, **sampling.model_dump(), "method": label, **counts})
                for label, answers in checked.sampled.items():
                    for prompt, ids in answers.items():
                        sampled[name, sampling.temperature][label][prompt].append(ids)
    claims = {m.label for m in runs[0].everyone if m.lossless}
    # Another engine sums in another order, so ties are allowed for it on a CPU, too.
    theirs = {row.label for row in runs[0].rows}
    allowed = {m: {"exact"} if strict and m not in theirs else {"exact", "numeric-tie"} for m in claims}
    broken = [row for row in rows if row["method"] in claims and row["verdict"] not in allowed[row["method"]]]
    distributions = _distributions(sampled, _references(runs[0]))
    other = [each for each in distributions if each["method"] in claims and each["verdict"] == "different"]
    found = {
        "ok": not broken and not other,
        "strict": strict,
        "drawn": drawn,
        "rows": rows,
        "rates": _rates(rows, asked),
        "distributions": distributions,
    }
    if as_json:
        output.emit_json(found)
    else:
        from specbench.report import lossless_report, render_terminal

        output.stdout().print(render_terminal(lossless_report(found)))
    if broken:
        raise LosslessFailed(_left(broken[0], allowed[broken[0]["method"]]))
    if other:
        first = other[0]
        raise LosslessFailed(
            f"{first['method']} says it is lossless, but at T={first['temperature']:g} its texts on {first['task']} "
            f"are distributed otherwise than those of {first['against']} (p = {first['p_value']:.2g})"
        )


def _rates(rows: Sequence[Mapping[str, Any]], asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Grades of prompts by method; the worst answer over all temperatures and seeds decides a prompt's grade."""
    from specbench.analysis import grade_rates, prompt_of

    found = {}
    for label in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == label]
        diverged = [(f"{r['task']}/{prompt_of(d['prompt'])[0]}", d["grade"]) for r in mine for d in r["divergences"]]
        prompts = [f"{task}/{prompt}" for task in {row["task"]: None for row in mine} for prompt in asked[task]]
        found[label] = grade_rates(prompts, diverged)
    return found


def _references(resolved: Resolved) -> dict[str, list[str]]:
    """The row that a method is compared with: AR, or another engine's own plain decoding for its speculation."""
    from specbench.analysis import plain_of
    from specbench.results import BASELINE

    specs = resolved.specs()
    own = {spec.label: plain_of(spec, specs) for spec in specs}
    return {label: [BASELINE, *([plain] if plain else [])] for label, plain in own.items()}


def _distributions(sampled: Sampled, references: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The two-sample test of each method with its own noise, over the answers of all seeds."""
    from specbench.analysis import two_sample
    from specbench.results import BASELINE

    found = []
    for (task, temperature), answers in sampled.items():
        for label in [label for label in answers if label != BASELINE]:
            for against in references[label]:
                tested = two_sample(answers[label], answers[against], seed=0)
                where = {"task": task, "temperature": temperature, "method": label, "against": against}
                found.append({**where, **asdict(tested), "verdict": tested.verdict})
    return found


def _left(row: Mapping[str, Any], allowed: Collection[str]) -> str:
    """The first divergence of a lossless method from AR that is not a tie."""
    from specbench.analysis import prompt_of

    first = next(each for each in row["divergences"] if each["grade"] not in allowed)
    name, turn = prompt_of(first["prompt"])
    gap = "infinite" if first["gap"] is None else f"{first['gap']:.3g}"
    return (
        f"{row['method']} is declared lossless but left AR at token {first['at']} of {name}{turn and f', turn {turn}'} "
        f"(T={row['temperature']:g}, seed {row['seed']}, AR's top-2 gap there {gap})"
    )


def _temperatures(text: str) -> list[float]:
    try:
        return [float(part) for part in split_names(text)] or [0.0]
    except ValueError as error:
        raise UsageError(f"--temperatures {text}: give numbers, comma-separated, as 0,0.7,1") from error


def _seeds(text: str) -> list[int]:
    """The seeds, each once, because repeating a seed adds no sample."""
    found: dict[int, None] = {}
    try:
        for part in split_names(text):
            first, _, last = part.partition(":")
            seeds = range(int(first), int(last or first) + 1)
            found |= dict.fromkeys(seeds[: _SEEDS + 1])
            if len(found) > _SEEDS:
                raise UsageError(f"--seeds {text}: {_SEEDS:,} at most; each is a run of its own")
    except ValueError as error:
        raise UsageError(f"--seeds {text}: give integers as 0,1,2 or a range as 0:49") from error
    if not found:
        raise UsageError(f"--seeds {text}: this has no seed; give integers as 0,1,2 or a range as 0:49")
    return list(found)
