"""Recipe for a JetSpec or DFlash head: forward KL to the frozen target on blocks of its own answers (SpecForge, NeMo).

JetSpec published no training code. Known parts of its recipe: causal block of 16, forward KL, learning rate 3e-4, six
epochs, no weights by offset. Blocks and anchors follow SpecForge's DFlash trainer, the loss follows NeMo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.decoding import option
from specbench.heads import BlockHead, BlockHeadConfig
from specbench.methods.jetspec.learning.held_out import held_out
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.models import LoadedModel
from specbench.training import Accepted, BlockTrainingOptions, Job, Text, check_block_head, start_block_head, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(BlockTrainingOptions):
    """Options of the recipe."""

    causal: bool = option(True, help="a row attends to the rows before it (JetSpec), not to its whole block (DFlash)")
    max_tokens: int = option(3072, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    gamma: float = option(0.0, help="weight of offset k is exp(-(k-1)/gamma); 0 weighs all equally", ge=0)
    lr: float = option(3e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a head that does not fit this target."""
    check_block_head(options, _config(options, target), target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a head, see :func:`~specbench.training.head_training.train_head`."""
    model = job.target.model

    def start(head: BlockHead, texts: Sequence[Text]) -> None:
        start_block_head(head, job.target, texts)

    def lesson_of(head: BlockHead) -> Lesson:
        return Lesson(head, model, anchors=options.anchors, gamma=options.gamma, keep=options.keep_features)

    def measure(lesson: Lesson) -> tuple[Accepted, Mapping[str, Any]]:
        found = held_out(lesson, job.held_out, model.device)
        return found.accepted, found.figures

    config = _config(options, job.target)
    return train_head(options, job, BlockHead, config, lesson_of, start=start, held_out=measure)


def _config(options: Options, target: LoadedModel) -> BlockHeadConfig:
    return BlockHeadConfig.for_target(target.model.config, causal=options.causal, **options.shape(target))
