"""Recipe for Medusa's heads on a frozen target (Medusa-1): cross-entropy on the target's own answers.

Loss, weights of the heads and initialisation follow the paper (§2.2.1) and the released code, which trains on other
people's conversations; its learning rate is 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specbench.decoding import option
from specbench.methods.medusa.config import HeadConfig
from specbench.methods.medusa.head import DraftHead
from specbench.methods.medusa.learning.lesson import Lesson, start_from_target
from specbench.training import HeadTrainingOptions, Job, Text, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(HeadTrainingOptions):
    """Options of the recipe."""

    heads: int = option(5, help="number of heads: positions that are drafted", ge=1, le=64)
    layers: int = option(1, help="residual blocks of each head", ge=1)
    lm_head: Literal["own", "target"] = option(
        "own", help="each head has its own LM head, or all use the target's, which is not stored with them"
    )
    loss: Literal["cross-entropy", "kl"] = option(
        "cross-entropy", help="learn the text's tokens, or the target's distribution of each"
    )
    decay: float = option(0.8, help="weight of the k-th head's loss is decay to the power of k", gt=0, le=1)
    lr: float = option(1e-3, help="peak learning rate, after warm-up and before the cosine decay", gt=0)
    warmup: float = option(0.1, help="warm-up as a share of the steps", ge=0, le=1)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train heads, see :func:`~specbench.training.head_training.train_head`."""
    model = job.target.model
    config = HeadConfig.for_target(
        model.config,
        heads=options.heads,
        blocks=options.layers,
        scorer=options.lm_head,
        draft_vocab_size=options.drafted(job.target.vocab_size),
    )

    def start(head: DraftHead, texts: Sequence[Text]) -> None:
        start_from_target(head, model)

    def lesson_of(head: DraftHead) -> Lesson:
        distil = options.loss == "kl"
        return Lesson(head, model, decay=options.decay, distil=distil, keep=options.keep_features)

    return train_head(options, job, DraftHead, config, lesson_of, start=start)
