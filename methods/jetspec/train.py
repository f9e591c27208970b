"""Training a head: forward KL to the frozen target on blocks of the target's own answers (JetSpec; SpecForge, NeMo).

JetSpec published no training code. What is known of its recipe: causal block of 16, forward KL, learning rate 3e-4, six
epochs, no weights by offset. Blocks and anchors are those of SpecForge's DFlash trainer, the loss is NeMo's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from specbench.common import UsageError
from specbench.decoding import option
from specbench.methods.jetspec.config import HeadConfig, build_target_layer_ids
from specbench.methods.jetspec.head import DraftHead
from specbench.methods.jetspec.learning.held_out import HeldOut, held_out
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.methods.jetspec.learning.start import start_from_target
from specbench.models import LoadedModel
from specbench.training import Job, fit
from specbench.training.answers import without_circles
from specbench.training.checkpoints import claim
from specbench.training.loop import Course, in_bf16
from specbench.training.recipe import FREE, LoopOptions, Text, check_start, digest
from specbench.training.side_by_side import side_by_side, teaching
from specbench.training.vocabulary import covered, most_frequent

OPTION = "head"  # of the method: what is trained goes there
_KEPT = torch.bfloat16  # as published heads are


class Options(LoopOptions):
    """Options of the recipe."""

    layers: int = option(5, help="of the head", ge=1)
    taps: int | None = option(None, help="layers of the target that it reads; default is as many as it has", ge=1)
    block_size: int = option(16, help="rows of a block, the anchor included", ge=2)
    causal: bool = option(True, help="a row sees those before it (JetSpec), not all of its block (DFlash)")
    draft_vocab: int = option(0, help="tokens that can be drafted: the most frequent of the answers; 0 is all", ge=0)
    mask_token: int | None = option(None, help="id that fills a block; default is the last row of the embedding", ge=0)
    start: Literal["target", "random"] = option("target", help="first weights: the target's last layers, or noise")
    anchors: int = option(512, help="blocks of a text that a step learns from, at most", ge=1)
    max_tokens: int = option(3072, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    gamma: float = option(0.0, help="offset k weighs exp(-(k-1)/gamma); 0 weighs all alike", ge=0)
    keep_circles: int = option(3, help="rounds that stay of an answer that repeats itself to its end; 0 is all", ge=0)
    keep_features: bool = option(
        False, help="the target's features of each text stay in memory: later epochs need no forward of it"
    )
    epochs: float = option(6.0, help="passes over the texts", gt=0)
    batch: int = option(4, help="texts of a step, on each device", ge=1)
    lr: float = option(3e-4, help="learning rate, after warm-up and before its cosine", gt=0)
    warmup: float = option(0.04, help="share of the steps", ge=0, le=1)


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a head that this target cannot have.

    Raises:
        UsageError: the target has too few layers to tap or to start from, or no such mask token.
    """
    config = _config(options, target)
    rows = target.model.get_input_embeddings().weight.shape[0]
    if config.mask_token_id >= rows:
        raise UsageError(
            f"cannot fill blocks with token {config.mask_token_id}: the embedding of {target.spec.name} has {rows} "
            "rows; lower mask_token or leave it out"
        )
    if options.start == "target":
        check_start(options.layers, target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Trains a head, or goes on from the last checkpoint in ``job.out``; the head is left in ``job.out/head``.

    Raises:
        UsageError: no text has an answer of two tokens, or ``job.out`` holds a head in training with other options.
    """
    texts = teaching(without_circles(job.texts, options.keep_circles), options.max_tokens)
    if not texts:
        raise UsageError("no answer has two tokens to learn from; raise --max-new-tokens or give other prompts")
    about = {"seed": job.seed, "texts": digest(job.texts)}
    claim(job.out, {**options.model_dump(mode="json", exclude=set(FREE)), **about}, "a head")
    model = job.target.model
    head = _new_head(options, job, texts)
    lesson = Lesson(head, model, anchors=options.anchors, gamma=options.gamma, keep=options.keep_features)

    def measure() -> HeldOut:
        half = in_bf16(options, model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
            return held_out(lesson, job.held_out, model.device)

    course = Course(
        lesson=lesson,
        texts=texts,
        collate=lambda visit, met: side_by_side(met),
        size=lambda text: len(text.prompt) + len(text.answer),
        look=(lambda: measure().accepted.look) if job.held_out else None,
    )
    done = fit(course, options, job)
    for parameter in head.parameters():  # what is measured is what is kept
        parameter.data = parameter.data.to(_KEPT).to(parameter.dtype)
    found = measure() if job.held_out else None
    if found:
        job.say(f"held out, head as kept: {found.accepted.look.line}")
    head.save(job.out / "head", dtype=_KEPT)
    return {
        "texts": len(texts),
        "answer_tokens": sum(len(text.answer) for text in texts),
        "steps": done.steps,
        "epochs": done.visits,
        "loss": round(done.last.get("loss", float("nan")), 4),
        "agrees": round(done.last.get("agrees", float("nan")), 4),
        "cost": done.cost.model_dump(mode="json", exclude_none=True),
        "curve": done.curve,
        "parameters": sum(p.numel() for p in head.parameters()),
        "held_out_texts": len(job.held_out),
        **covered(head.draft_ids, job.held_out),
        "weights": str(job.out / "head"),
        **({f"held_out_{name}": value for name, value in found.figures.items()} if found else {}),
    }


def _new_head(options: Options, job: Job, texts: Sequence[Text]) -> DraftHead:
    model = job.target.model
    config = _config(options, job.target)
    head = DraftHead.random(config, device=model.device, seed=job.seed)
    if size := config.draft_vocab_size:
        head.set_draft_ids(most_frequent(texts, size, job.target.vocab_size))
    if options.start == "target":
        text = [*texts[0].prompt, *texts[0].answer]
        start_from_target(head, model, torch.tensor([text], device=model.device))
    return head


def _config(options: Options, target: LoadedModel) -> HeadConfig:
    config, vocabulary = target.model.config, target.vocab_size
    return HeadConfig.for_target(
        config,
        mask_token_id=vocabulary - 1 if options.mask_token is None else options.mask_token,
        block_size=options.block_size,
        layers=options.layers,
        causal=options.causal,
        target_layer_ids=build_target_layer_ids(config.get_text_config().num_hidden_layers, options.taps)
        if options.taps
        else None,
        draft_vocab_size=options.draft_vocab if 0 < options.draft_vocab < vocabulary else 0,
    )
