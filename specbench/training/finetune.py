"""Fine-tuning the target itself, by an adapter or whole, so that a method finds more of its guesses right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from torch import nn

from specbench.adapters import fingerprints
from specbench.errors import EnvironmentRefused, UsageError
from specbench.files import read_json_object, write_json_atomic
from specbench.training import checkpoints
from specbench.training.card import write_card
from specbench.training.look import Held, held_out, method_of
from specbench.training.loop import Course, Look, fit, in_bf16
from specbench.training.recipe import Job, digest
from specbench.training.settings import FREE, WeightOptions
from specbench.training.weights import Weights

_BEFORE = "before.json"


@dataclass(frozen=True)
class Teaching:
    """What a method brings to its training.

    Attributes:
        method: its name.
        lesson: (model) -> a module called as ``lesson(**batch)`` that returns ``loss``, and figures to show.
        collator: texts -> batch; told by its attribute ``visit`` how often the texts were gone through before.
        masked: the lesson's attention is masked by blocks.
        size: tokens of a text as it is packed.
        decoding: options of the method with which held-out prompts are decoded.
    """

    method: str
    lesson: Callable[[Any], nn.Module]
    collator: Any
    masked: bool
    size: Callable[[Any], int]
    decoding: Mapping[str, Any]


def finetune(teaching: Teaching, options: WeightOptions, job: Job) -> Mapping[str, Any]:
    """Trains, and leaves ``adapter`` or ``checkpoint`` in ``job.out``, which ``--model`` loads.

    Raises:
        UsageError: there is nothing to learn from, texts are another tokenizer's, the loss is not finite, or
            ``job.out`` holds a training with other options.
        EnvironmentRefused: memory does not suffice, or the disk is full.
    """
    _check(job)
    _claim(teaching, options, job)
    loaded = job.target
    base = fingerprints(loaded.model)
    before = _before(teaching, job)
    half = in_bf16(options, loaded.model.device)
    loaded.model.set_attn_implementation(_attention(teaching, options, loaded.model.device, half))
    weights = Weights(loaded.model, options, job.model, job.seed, half)

    def collate(visit: int, texts: Sequence[Any]) -> Any:
        teaching.collator.visit = visit
        return teaching.collator(texts)

    def look(texts: Sequence[Any]) -> Held:
        with weights.as_decoded() as model:
            return _held(teaching, job, model, texts)

    def glance() -> Look:
        found = look(job.held_out[: options.watched])
        return Look(found.figures(), found.line())

    lesson = teaching.lesson(weights.model)
    done = fit(Course(lesson, job.texts, collate, teaching.size, glance if job.held_out else None), options, job)
    weights.settle()
    after = look(job.held_out) if job.held_out else None
    if after:
        job.say(f"held out, all {after.prompts}: {after.line()}")
    made = {
        **job.about,
        "method": teaching.method,
        "model": job.model,
        "texts": len(job.texts),
        "answer_tokens": done.answer_tokens,
        "steps": done.steps,
        "visits": done.visits,
        **{name: round(value, 4) for name, value in done.last.items() if name in ("loss", "agrees", "accuracy")},
        "decoding": dict(teaching.decoding),
        "before": before,
        "after": after.figures() if after else None,
        "options": options.model_dump(mode="json"),
        **({} if options.full else {"base_fingerprints": base}),
    }
    folder = job.out / ("checkpoint" if options.full else "adapter")
    if PartialState().is_main_process:
        _leave(folder, weights, loaded.tokenizer, made)
    return {**made, "weights": str(folder)}


def _leave(folder: Path, weights: Weights, tokenizer: Any, made: Mapping[str, Any]) -> None:
    """Weights and card in a folder that has its name once everything is in it; what had it before is not lost."""
    draft, before = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.before")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        weights.keep(draft, tokenizer)
        write_card(draft, made)
        if folder.exists():  # folders cannot be exchanged at once: a kill in between leaves both, by these names
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        draft.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    except (OSError, SafetensorError, EnvironmentRefused) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = " ".join(str(error).split())[:120]
        raise EnvironmentRefused(
            f"{folder} cannot be written ({reason}); make room and repeat the command: the last checkpoint is whole"
        ) from error


def _attention(teaching: Teaching, options: WeightOptions, device: torch.device, half: bool) -> str:
    if options.attention != "auto":
        return options.attention
    if device.type == "cuda":
        return "flex_attention" if teaching.masked else "sdpa"
    return "eager" if half else "sdpa"  # in bfloat16, sdpa's CPU kernels take twice as long


def _check(job: Job) -> None:
    """Texts of another tokenizer have ids that this model does not know, or never means."""
    if not job.texts:
        raise UsageError("there is no text to learn from; give more prompts, or longer answers")
    highest = max(max((*text.prompt, *text.answer)) for text in (*job.texts, *job.held_out))
    if highest >= job.target.vocab_size:
        raise UsageError(
            f"the texts have token {highest}, and {job.model} has only {job.target.vocab_size}: they are another "
            "tokenizer's; ask this model"
        )


def _claim(teaching: Teaching, options: WeightOptions, job: Job) -> None:
    """Takes the folder for this training: its options, texts, model and seed."""
    texts = {"texts": digest(job.texts), "trajectories": job.about.get("trajectories")}
    about = {**texts, "model": job.target.spec.fingerprint, "seed": job.seed}
    checkpoints.claim(job.out, {**options.model_dump(mode="json", exclude=set(FREE)), **about}, f"a {teaching.method}")


def _before(teaching: Teaching, job: Job) -> dict[str, Any] | None:
    """Held-out figures of the untouched target; from the first call where this one goes on."""
    if not job.held_out:
        return None
    path: Path = job.out / _BEFORE
    if path.exists():
        return read_json_object(path, "delete it to measure anew")
    held = _held(teaching, job, job.target.model, job.held_out)
    job.say(f"held out before training, all {held.prompts}: {held.line()}")
    write_json_atomic(path, held.figures())
    return held.figures()


def _held(teaching: Teaching, job: Job, model: Any, texts: Sequence[Any]) -> Held:
    return held_out(job.target, model, method_of(teaching.method, teaching.decoding), texts, job.seed, job.score)
