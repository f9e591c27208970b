"""Model card of trained weights: training data, cost, and decoding figures before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specbench.analysis import Quality
from specbench.common import read_json_object, write_json_atomic, write_text_atomic
from specbench.models import CARD
from specbench.training.data.given_answers import describe_answers
from specbench.training.loop.cost import Cost
from specbench.training.quality_card import TODO, check_card, on_card, section


def write_card(folder: Path, made: Mapping[str, Any]) -> None:
    """Write ``card.json`` and ``README.md`` into the folder of the weights.

    Args:
        made: plain values: ``method``, ``model``, ``texts``, ``answer_tokens``, ``steps``, ``options``, ``before`` and
            ``after`` (:meth:`specbench.training.evaluation.held_out.Held.figures`), and any further entries.
    """
    write_json_atomic(folder / CARD, dict(made))
    write_text_atomic(folder / "README.md", _readme(made))


def _readme(made: Mapping[str, Any]) -> str:
    method, model = made["method"], made["model"]
    adapter = "base_fingerprints" in made
    head = {
        "base_model": model,
        "library_name": "peft" if adapter else "transformers",
        "tags": ["specbench", method, *(["lora"] if adapter else [])],
    }
    what = "LoRA adapter" if adapter else "checkpoint"
    data = " and ".join(made.get("prompts", ())) or "its training prompts"
    given = describe_answers(made)
    source = f"the given answers in {given}" if given else f"the model's own answers to {data}"
    own = made.get("own_answers")
    on_policy = (
        f" It also learnt from {own['answers']} answers that it wrote during training ({own['tokens']} tokens)."
        if own
        else ""
    )
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        "",
        f"# {method} for {model}",
        "",
        f"A {what} of `{model}` for the parallel decoder `{method}`, trained by `specbench train {method}` on "
        f"{made['texts']} texts: {source}. Its {made['steps']} steps learnt from {made['answer_tokens']} answer tokens."
        + on_policy,
        "",
        "```",
        "specbench run --model THIS_FOLDER --task gsm8k",
        "```",
        "",
        *_table(made),
        "",
        *_cost(made),
        *_course(made),
        *section(made),
        "Training options:",
        "",
        "```yaml",
        yaml.safe_dump(dict(made["options"]), sort_keys=False).strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


#: Rows on the answers that the weights generate: title, figure, format. Older cards have none of these figures.
_OF_TEXTS = (
    ("tokens equal to the target's answer, free-running", "agreement", "{:.1%}"),
    ("log-likelihood per token under the target", "log_likelihood_per_token", "{:.2f}"),
    ("the same without repetitive answers", "sound_log_likelihood_per_token", "{:.3f}"),
    ("answers that end in repetitive text", "looping", "{}"),
    ("tokens in repetitive text", "loop_share", "{:.1%}"),
    ("distinct 4-grams", "distinct_4", "{:.2f}"),
)

#: Titles of rows that compare with given answers, for weights that were trained on given answers.
_OF_GIVEN = {
    "agrees": "tokens equal to the given answer's, after its own text",
    "agreement": "tokens equal to the given answer's, free-running",
}


def _cost(made: Mapping[str, Any]) -> list[str]:
    """Return the lines on the training's cost; older trainings did not measure it and get no lines."""
    if "cost" not in made:
        return []
    cost = Cost.model_validate(made["cost"])
    parts = [f"{cost.tokens_seen:,} tokens through the model, noisy copies included"]
    parts += [f"{cost.flops:.2g} floating-point operations"] if cost.flops is not None else []
    many = f"{cost.processes} times " if cost.processes > 1 else ""
    parts += [f"{cost.hours:.2f} hours on {many}{cost.device}"]
    parts += [f"at most {cost.peak_memory_bytes / 1e9:.1f} GB of memory"] if cost.peak_memory_bytes else []
    parts += [f"{cost.energy_j / 3.6e6:.2f} kWh"] if cost.energy_j is not None else []
    lines = [f"The training took {', '.join(parts)}."]
    if (collecting := made.get("collecting_hours")) is not None:
        what = "Making Jacobi states from its answers" if "trajectories" in made else "Decoding its answers"
        lines.append(f"{what} took {collecting:.2f} hours before.")
    if before := made.get("pretraining_tokens"):
        lines.append(f"Its tokens are {cost.tokens_seen / before:.2g} of the {before:.2g} of the pre-training.")
    return [" ".join(lines), ""]


#: Columns of the table of evaluations during training: title, figure, format. A column needs its figure in every one.
_COURSE = (
    ("tokens per forward", "tpf", "{:.2f}"),
    ("tokens in repetitive text", "loop_share", "{:.1%}"),
    ("log-likelihood per token under the target", "log_likelihood_per_token", "{:.3f}"),
    ("without repetitive answers", "sound_log_likelihood_per_token", "{:.3f}"),
    ("tokens equal to the target's answer, free-running", "agreement", "{:.1%}"),
)


def _course(made: Mapping[str, Any]) -> list[str]:
    """Return a table of the evaluations during training, by tokens seen; older trainings did not keep them."""
    curve = made.get("curve") or []
    if len(curve) < 2:
        return []
    columns = [column for column in _COURSE if all(column[1] in point for point in curve)]
    rows = [
        [f"{point['tokens_seen']:,}", str(point["step"]), *(shown.format(point[name]) for _, name, shown in columns)]
        for point in curve
    ]
    heads = ["tokens seen", "steps", *(title for title, _, _ in columns)]
    ended = (
        f" Training ended early: {made['ended']}. The weights are those of the evaluation before."
        if "ended" in made
        else ""
    )
    return [
        f"Evaluations during training, on {curve[0]['prompts']} of the held-out prompts.{ended}",
        "",
        f"| {' | '.join(heads)} |",
        "|" + " --- |" * len(heads),
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]


def _table(made: Mapping[str, Any]) -> list[str]:
    """Return a table of figures on held-out prompts before and after training."""
    before, after = made.get("before"), made.get("after")
    if not before or not after:
        return ["No prompts were held out, so there are no figures before and after training."]
    rows = [("tokens per forward", "tpf", "{:.3f}")]
    rows += [("correct answers", "pass_rate", "{:.1%}")] if "pass_rate" in after and "pass_rate" in before else []
    rows += [("tokens equal to the target's, after its own text", "agrees", "{:.1%}")]
    rows += [row for row in _OF_TEXTS if row[1] in before and row[1] in after]
    if "given" in made:
        rows = [(_OF_GIVEN.get(name, title), name, shown) for title, name, shown in rows]
    settings = ", ".join(f"{name} {value}" for name, value in made.get("decoding", {}).items())
    some = after.get("scored", 0) not in (0, after["prompts"])
    scored = f" ({after['scored']} of them could be scored)" if some else ""
    return [
        f"On {after['prompts']} held-out prompts{scored}, decoded by `{made['method']}`"
        + (f" with {settings}:" if settings else ":"),
        "",
        "| | before | after |",
        "| --- | --- | --- |",
        *(f"| {title} | {shown.format(before[name])} | {shown.format(after[name])} |" for title, name, shown in rows),
    ]


def put_on_card(model: str, found: Sequence[Quality]) -> None:
    """Write the figures of the last model into its card, compared with the first model's where there are several."""
    folder = check_card(model)
    made = read_json_object(folder / CARD, TODO)
    write_card(folder, {**made, "quality": on_card(found)})
