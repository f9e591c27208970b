"""Training a draft head on the target's own answers: what the recipes of all heads have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from specbench.common import UsageError
from specbench.training.data.answers import without_circles
from specbench.training.evaluation.accepted import Accepted
from specbench.training.evaluation.draft_vocabulary import covered
from specbench.training.loop.checkpoints import claim
from specbench.training.loop.trainer import Course, fit, in_bf16
from specbench.training.objectives.side_by_side import side_by_side, teaching
from specbench.training.recipe import FREE, Job, Text, digest

OPTION = "head"  # of the method: what is trained goes there
_KEPT = torch.bfloat16  # as published heads are


def train_head(
    options: Any,
    job: Job,
    new_head: Callable[[Sequence[Text]], Any],
    lesson_of: Callable[[Any], Any],
    held_out: Callable[[Any], tuple[Accepted, Mapping[str, Any]]],
) -> dict[str, Any]:
    """Train a head, or continue from the last checkpoint in ``job.out``; the head is left in ``job.out/head``.

    Args:
        options: have ``keep_circles``, ``max_tokens`` and what a training loop needs.
        new_head: an untrained head, from the texts that it will learn from.
        held_out: accepted lengths of a lesson's head on ``job.held_out``, and figures for its card.

    Returns:
        What the head's card says.

    Raises:
        UsageError: no text has an answer of two tokens, or ``job.out`` holds a head in training with other options.
    """
    texts = teaching(without_circles(job.texts, options.keep_circles), options.max_tokens)
    if not texts:
        raise UsageError("no answer has two tokens to learn from; raise --max-new-tokens or give other prompts")
    about = {"seed": job.seed, "texts": digest(job.texts)}
    claim(job.out, {**options.model_dump(mode="json", exclude=set(FREE)), **about}, "a head")
    device = job.target.model.device
    head = new_head(texts)
    lesson = lesson_of(head)

    def measure() -> tuple[Accepted, Mapping[str, Any]]:
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16(options, device)):
            return held_out(lesson)

    course = Course(
        lesson=lesson,
        texts=texts,
        collate=lambda visit, met: side_by_side(met),
        size=lambda text: len(text.prompt) + len(text.answer),
        look=(lambda: measure()[0].look) if job.held_out else None,
    )
    done = fit(course, options, job)
    for parameter in head.parameters():  # what is measured is what is kept
        parameter.data = parameter.data.to(_KEPT).to(parameter.dtype)
    figures: Mapping[str, Any] = {}
    if job.held_out:
        accepted, figures = measure()
        job.say(f"held out, head as kept: {accepted.look.line}")
    head.save(job.out / "head", dtype=_KEPT)
    return {
        "texts": len(texts),
        "answer_tokens": sum(len(text.answer) for text in texts),
        "steps": done.steps,
        "epochs": done.visits,
        "answer_tokens_learnt": done.answer_tokens,
        "loss": round(done.last.get("loss", float("nan")), 4),
        "agrees": round(done.last.get("agrees", float("nan")), 4),
        "cost": done.cost.model_dump(mode="json", exclude_none=True),
        "curve": done.curve,
        "parameters": sum(p.numel() for p in head.parameters()),
        "held_out_texts": len(job.held_out),
        **covered(head.draft_ids, job.held_out),
        "weights": str(job.out / "head"),
        **{f"held_out_{name}": value for name, value in figures.items()},
    }
