"""Training an EAGLE-3 head: training-time test on the target's own answers (Li et al. 2025, §3.2; SpecForge).

Loss, weights of the steps (0.8 to the power of the step) and which rows learn are SpecForge's. The draft vocabulary is
the most frequent tokens of the answers learnt from; how many tokens of held-out answers are in it, the card says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specbench.decoding import option
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.head import DraftHead
from specbench.methods.eagle3.learning.lesson import Lesson
from specbench.methods.eagle3.learning.start import start_from_target
from specbench.models import LoadedModel
from specbench.training import Job
from specbench.training.evaluation.accepted import Accepted
from specbench.training.evaluation.draft_vocabulary import most_frequent
from specbench.training.head_training import OPTION as OPTION
from specbench.training.head_training import train_head
from specbench.training.recipe import LoopOptions, Text, check_start


class Options(LoopOptions):
    """Options of the recipe."""

    layers: int = option(1, help="of the head; EAGLE-3 has one", ge=1)
    intermediate: int | None = option(None, help="width of its MLP; default is the target's", ge=1)
    draft_vocab: int = option(0, help="tokens that can be drafted: the most frequent of the answers; 0 is all", ge=0)
    start: Literal["target", "random"] = option("target", help="first weights: parts of the target's own, or noise")
    unroll: int = option(7, help="steps of the training-time test: drafts that it learns to go on from", ge=1)
    decay: float = option(0.8, help="step i weighs decay to the power of i", gt=0, le=1)
    max_tokens: int = option(2048, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    keep_circles: int = option(3, help="rounds that stay of an answer that repeats itself to its end; 0 is all", ge=0)
    activation_checkpointing: bool = option(
        False, "checkpointing", help="compute activations again in the backward pass: less memory, a third more time"
    )
    keep_features: bool = option(
        False, help="the target's features of each text stay in memory: later epochs need no forward of it"
    )
    epochs: float = option(10.0, help="passes over the texts", gt=0)
    batch: int = option(4, help="texts of a step, on each device", ge=1)
    lr: float = option(1e-4, help="learning rate, after warm-up and before its cosine", gt=0)
    warmup: float = option(0.015, help="share of the steps", ge=0, le=1)
    beta2: float = option(0.95, help="of AdamW", ge=0, lt=1)
    clip: float = option(0.5, help="largest norm of the gradient", gt=0)


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a head that has more layers to start from than the target."""
    if options.start == "target":
        check_start(options.layers, target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a head, see :func:`~specbench.training.head_training.train_head`."""
    model, vocabulary = job.target.model, job.target.vocab_size
    made: list[DraftHead] = []

    def new_head(texts: Sequence[Text]) -> DraftHead:
        size = options.draft_vocab if 0 < options.draft_vocab < vocabulary else 0
        config = HeadConfig.for_target(
            model.config, layers=options.layers, intermediate_size=options.intermediate, draft_vocab_size=size
        )
        head = DraftHead.random(config, device=model.device, seed=job.seed)
        if size:
            head.set_draft_ids(most_frequent(texts, size, vocabulary))
        if options.start == "target":
            start_from_target(head, model)
        made.append(head)
        return head

    def lesson_of(head: DraftHead) -> Lesson:
        return Lesson(
            head,
            model,
            steps=options.unroll,
            decay=options.decay,
            recompute=options.activation_checkpointing,
            keep=options.keep_features,
        )

    def held_out(lesson: Lesson) -> tuple[Accepted, Mapping[str, Any]]:
        accepted = lesson.held_out(job.held_out, options.unroll, model.device)
        return accepted, accepted.look.figures

    card = train_head(options, job, new_head, lesson_of, held_out)
    outside = card["parameters"] - made[0].lm_head.weight.numel()
    return {**card, "parameters_outside_lm_head": outside}
