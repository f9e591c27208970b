"""Card of trained weights: what they learnt from, how much of it, and what decoding gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specbench.analysis import Quality
from specbench.common import read_json_object, write_json_atomic, write_text_atomic
from specbench.models import CARD
from specbench.training.data.given_answers import said_of
from specbench.training.loop.cost import Cost
from specbench.training.quality_card import TODO, check_card, on_card, section


def write_card(folder: Path, made: Mapping[str, Any]) -> None:
    """Writes ``card.json`` and ``README.md`` beside weights.

    Args:
        made: plain values: ``method``, ``model``, ``texts``, ``answer_tokens``, ``steps``, ``options``, ``before`` and
            ``after`` (:meth:`specbench.training.evaluation.held_out.Held.figures`), and whatever else there is to say.
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
    data = " and ".join(made.get("prompts", ())) or "the prompts of its texts"
    given = said_of(made)
    source = f"answers that were given in {given}" if given else f"the model's own answers to {data}"
    own = made.get("own_answers")
    beside = f" Beside them, from {own['answers']} answers of its own, {own['tokens']} tokens." if own else ""
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        "",
        f"# {method} for {model}",
        "",
        f"A {what} of `{model}` for the parallel decoder `{method}`, made by `specbench train {method}`. It learnt "
        f"from {source}: {made['texts']} answers, {made['answer_tokens']} of their tokens in {made['steps']} steps."
        + beside,
        "",
        "```",
        f"specbench run --model THIS_FOLDER --method {method} --task gsm8k",
        "```",
        "",
        *_table(made),
        "",
        *_cost(made),
        *_course(made),
        *section(made),
        "Options of the training:",
        "",
        "```yaml",
        yaml.safe_dump(dict(made["options"]), sort_keys=False).strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


#: What weights write by themselves, which older cards do not say: title, figure, format.
_OF_TEXTS = (
    ("positions as the target's own, running free", "agreement", "{:.1%}"),
    ("log-likelihood of a token under the target", "log_likelihood_per_token", "{:.2f}"),
    ("the same without answers that loop", "sound_log_likelihood_per_token", "{:.3f}"),
    ("answers that end in a loop", "looping", "{}"),
    ("tokens in such loops", "loop_share", "{:.1%}"),
    ("distinct 4-grams", "distinct_4", "{:.2f}"),
)

#: Titles of what is told of the answers that were learnt from, where those were given.
_OF_GIVEN = {
    "agrees": "tokens as the given answers', behind their own text",
    "agreement": "positions as the given answers', running free",
}


def _cost(made: Mapping[str, Any]) -> list[str]:
    """What the training took; nothing of older ones, which did not measure it."""
    if "cost" not in made:
        return []
    cost = Cost.model_validate(made["cost"])
    parts = [f"{cost.tokens_seen:,} tokens through the model, noisy copies included"]
    parts += [f"{cost.flops:.2g} floating-point operations"] if cost.flops is not None else []
    many = f"{cost.processes} times " if cost.processes > 1 else ""
    parts += [f"{cost.hours:.2f} hours on {many}{cost.device}"]
    parts += [f"at most {cost.peak_memory_bytes / 1e9:.1f} GB of memory"] if cost.peak_memory_bytes else []
    parts += [f"{cost.energy_j / 3.6e6:.2f} kWh"] if cost.energy_j is not None else []
    return [f"The training took {', '.join(parts)}.", ""]


#: Columns of the course: title, figure, format; those that no look has are left out.
_COURSE = (
    ("tokens per forward", "tpf", "{:.2f}"),
    ("tokens in closing loops", "loop_share", "{:.1%}"),
    ("log-likelihood of a token under the target", "log_likelihood_per_token", "{:.3f}"),
    ("without answers that loop", "sound_log_likelihood_per_token", "{:.3f}"),
    ("as the target's own, running free", "agreement", "{:.1%}"),
)


def _course(made: Mapping[str, Any]) -> list[str]:
    """The looks of a training over the tokens that it had seen; nothing of older ones, which did not keep them."""
    curve = made.get("curve") or []
    if len(curve) < 2:
        return []
    columns = [column for column in _COURSE if all(column[1] in point for point in curve)]
    rows = [
        [f"{point['tokens_seen']:,}", str(point["step"]), *(shown.format(point[name]) for _, name, shown in columns)]
        for point in curve
    ]
    heads = ["tokens seen", "steps", *(title for title, _, _ in columns)]
    ended = f" It ended early: {made['ended']}; kept are the weights of the look before." if "ended" in made else ""
    return [
        f"Its course, on {curve[0]['prompts']} of the held-out prompts.{ended}",
        "",
        f"| {' | '.join(heads)} |",
        "|" + " --- |" * len(heads),
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]


def _table(made: Mapping[str, Any]) -> list[str]:
    """Held-out prompts before and after."""
    before, after = made.get("before"), made.get("after")
    if not before or not after:
        return ["No prompts were held out, so nothing was measured."]
    rows = [("tokens per forward", "tpf", "{:.3f}")]
    rows += [("right answers", "pass_rate", "{:.1%}")] if "pass_rate" in after and "pass_rate" in before else []
    rows += [("tokens as the target's own, behind its own text", "agrees", "{:.1%}")]
    rows += [row for row in _OF_TEXTS if row[1] in before and row[1] in after]
    if "given" in made:
        rows = [(_OF_GIVEN.get(name, title), name, shown) for title, name, shown in rows]
    settings = ", ".join(f"{name} {value}" for name, value in made.get("decoding", {}).items())
    some = after.get("scored", 0) not in (0, after["prompts"])
    scored = f" ({after['scored']} of them have a verdict)" if some else ""
    return [
        f"On {after['prompts']} held-out prompts{scored}, decoded by `{made['method']}`"
        + (f" with {settings}:" if settings else ":"),
        "",
        "| | before | after |",
        "| --- | --- | --- |",
        *(f"| {title} | {shown.format(before[name])} | {shown.format(after[name])} |" for title, name, shown in rows),
    ]


def put_on_card(model: str, found: Sequence[Quality]) -> None:
    """Write the figures of the last model onto its card, next to the first model's where there are several."""
    folder = check_card(model)
    made = read_json_object(folder / CARD, TODO)
    write_card(folder, {**made, "quality": on_card(found)})
