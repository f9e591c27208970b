"""Recipe for a draft model: a small model with the target's vocabulary learns its distributions on its own answers.

The papers on speculative decoding give no recipe. Distilling a draft model on the target's answers is from DistillSpec
(Zhou et al. 2023, arXiv:2310.08461), here with forward KL; starting from the target's own layers is our choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import field_serializer, field_validator

from specbench.common import UsageError
from specbench.decoding import option
from specbench.methods.sps import start
from specbench.methods.sps.learning import HeldOut, Lesson, held_out
from specbench.models import LoadedModel, resolve
from specbench.training import (
    Evaluation,
    Job,
    LoopOptions,
    claim_for,
    fit,
    learnable,
    leave_weights,
    plain_course,
    round_weights_to,
    teaching,
)

OPTION = "draft"  # the method's option that takes the trained model
_KEPT = torch.bfloat16  # drafts need not be exact, and this halves the bytes to read


class Options(LoopOptions):
    """Options of the recipe."""

    start: str = option(
        start.LAYERS,
        help="initial weights: layers (the target's first layers), fresh (random), or a model as --model takes it",
    )
    layers: int = option(4, help="layers of the draft model; ignored with start=MODEL", ge=1)
    hidden: int | None = option(None, help="hidden size of a fresh model; default is the target's", ge=8)
    words: bool | None = option(None, help="also train embedding and LM head; default: only with start=fresh")
    kl: float = option(1.0, help="weight of KL(target || draft)", ge=0)
    ce: float = option(0.1, help="weight of the cross-entropy of the answer's tokens", ge=0)
    max_tokens: int = option(1024, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    keep_circles: int = option(3, help="repetitions kept if an answer ends in repetitive text; 0 keeps all", ge=0)
    draft_tokens: int = option(
        5, "k", help="draft_tokens of sps, for tokens per forward on held-out texts", ge=1, le=511
    )
    epochs: float = option(3.0, help="passes over the texts", gt=0)
    batch: int = option(4, help="texts per step, on each device", ge=1)
    lr: float = option(3e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)

    @field_validator("start")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (start.LAYERS, start.FRESH):
            resolve(name)  # raises the error that says what is wrong
        return name

    @field_serializer("start")
    def _named(self, name: str) -> str:
        """The model's name for the record; for a folder only the last part of the path."""
        return name if name in (start.LAYERS, start.FRESH) else resolve(name).name


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a draft model, or continue from the last checkpoint in ``job.out``; the result is ``job.out/draft``."""
    texts = learnable(options, job)
    aside = teaching(job.held_out, options.max_tokens)
    draft = _first_weights(options, job)
    claim_for(options, job, "a draft model", model=job.target.spec.fingerprint)
    before = held_out(draft, aside, options.draft_tokens) if aside else None
    if before:
        job.say(f"held out before training: {_look(before).line}")
    look = (lambda: _look(held_out(draft, aside, options.draft_tokens))) if aside else None
    course = plain_course(Lesson(draft, job.target.model, kl=options.kl, ce=options.ce), texts, look)
    done = fit(course, options, job)
    round_weights_to(_KEPT, draft)
    after = held_out(draft, aside, options.draft_tokens) if aside else None
    if after:
        job.say(f"held out, draft model as kept: {_look(after).line}")
    folder = job.out / "draft"

    def write(into: Path) -> None:
        """The model with its tokenizer."""
        draft.to(_KEPT).save_pretrained(into)
        job.target.tokenizer.save_pretrained(into)

    leave_weights(folder, write)
    return {
        "texts": len(texts),
        "answer_tokens": done.answer_tokens,
        "steps": done.steps,
        "epochs": done.visits,
        **{name: round(done.last[name], 4) for name in ("loss", "kl", "ce", "agrees") if name in done.last},
        "parameters": sum(parameter.numel() for parameter in draft.parameters()),
        "layers": int(draft.config.get_text_config().num_hidden_layers),
        "held_out_texts": len(aside),
        **({"before": _look(before).figures} if before else {}),
        **({"after": _look(after).figures} if after else {}),
        "cost": done.cost.model_dump(mode="json", exclude_none=True),
        "curve": done.curve,
        "weights": str(folder),
    }


def check(options: Options, target: LoadedModel) -> None:
    """Refuse options that cannot be used with this target."""
    if not hasattr(target.tokenizer, "save_pretrained"):
        raise UsageError(
            f"{target.spec.name} has dummy weights and no words, so a draft model of it could not be loaded; "
            "train one for a model with a tokenizer"
        )
    if options.hidden is not None and options.start != start.FRESH:
        raise UsageError(f"hidden needs start=fresh, not start={options.start}; leave one of them out")
    if not options.kl and not options.ce:
        raise UsageError("kl and ce are both 0, so the loss is empty; raise one")
    if options.start in (start.LAYERS, start.FRESH):
        start.shape(target, options.layers, options.hidden)


def _first_weights(options: Options, job: Job) -> Any:
    if options.start == start.LAYERS:
        draft = start.from_layers(job.target, options.layers)
    elif options.start == start.FRESH:
        draft = start.from_noise(job.target, options.layers, options.hidden, job.seed)
    else:
        draft = start.from_model(job.target, options.start)
    draft.requires_grad_(True)
    if not (options.start == start.FRESH if options.words is None else options.words):
        for module in (draft.get_input_embeddings(), draft.get_output_embeddings()):
            module.requires_grad_(False)
    return draft


def _look(found: HeldOut) -> Evaluation:
    figures = {"tpf": round(found.tpf, 4), "right": round(found.right, 4)}
    return Evaluation(figures, f"{found.tpf:.3f} tokens per forward of sps, {found.right:.1%} drafted right")
