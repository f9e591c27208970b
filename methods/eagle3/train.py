"""Recipe for an EAGLE-3 head: training-time test on the target's own answers (Li et al. 2025, §3.2; SpecForge).

Loss, weights of the steps (0.8 to the power of the step) and the choice of learning rows follow SpecForge. The draft
vocabulary is the most frequent tokens of the training answers; the model card shows how many held-out tokens it covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.decoding import option
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.head import DraftHead
from specbench.methods.eagle3.learning.lesson import Lesson
from specbench.methods.eagle3.learning.start import start_from_target
from specbench.training import HeadTrainingOptions, Job, Text, check_head, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(HeadTrainingOptions):
    """Options of the recipe."""

    layers: int = option(1, help="layers of the head; EAGLE-3 has one", ge=1)
    intermediate: int | None = option(None, help="width of the head's MLP; default is the target's", ge=1)
    unroll: int = option(7, help="steps of the training-time test: drafts that the head learns to continue from", ge=1)
    decay: float = option(0.8, help="weight of step i is decay to the power of i", gt=0, le=1)
    activation_checkpointing: bool = option(
        False, "checkpointing", help="recompute activations in the backward pass: less memory, a third more time"
    )
    epochs: float = option(10.0, help="passes over the texts", gt=0)
    lr: float = option(1e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)
    warmup: float = option(0.015, help="warm-up as a share of the steps", ge=0, le=1)
    beta2: float = option(0.95, help="beta2 of AdamW", ge=0, lt=1)
    clip: float = option(0.5, help="largest gradient norm", gt=0)


check = check_head


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a head, see :func:`~specbench.training.head_training.train_head`."""
    model, vocabulary = job.target.model, job.target.vocab_size
    config = HeadConfig.for_target(
        model.config,
        layers=options.layers,
        intermediate_size=options.intermediate,
        draft_vocab_size=options.drafted(vocabulary),
    )

    def start(head: DraftHead, texts: Sequence[Text]) -> None:
        start_from_target(head, model)

    def lesson_of(head: DraftHead) -> Lesson:
        return Lesson(
            head,
            model,
            steps=options.unroll,
            decay=options.decay,
            recompute=options.activation_checkpointing,
            keep=options.keep_features,
        )

    card = train_head(options, job, DraftHead, config, lesson_of, start=start)
    outside = card["parameters"] - config.draft_vocab_size * config.hidden_size
    return {**card, "parameters_outside_lm_head": outside}
