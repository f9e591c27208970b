"""Recipe for a DSpark head, as published in DeepSpec (``config/dspark``): the target's own answers, sampled blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.decoding import option
from specbench.methods.dspark.config import DSparkConfig, MarkovType
from specbench.methods.dspark.head import DSparkHead
from specbench.methods.dspark.learning.lesson import Lesson
from specbench.models import LoadedModel
from specbench.training import BlockTrainingOptions, Job, Text, check_block_head, start_block_head, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(BlockTrainingOptions):
    """Options of the recipe."""

    block_size: int = option(7, help="rows of a block, the anchor included, each of which drafts a token", ge=1)
    markov_rank: int = option(256, help="rank of the Markov head; 0 trains a DFlash head", ge=0)
    markov_head: MarkovType = option("vanilla", help="what the Markov head's bias depends on")
    max_tokens: int = option(4096, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    gamma: float = option(4.0, help="weight of offset k is exp(-(k-1)/gamma); 0 weighs all equally", ge=0)
    ce: float = option(0.1, help="weight of the cross-entropy with the answers", ge=0)
    l1: float = option(0.9, help="weight of the L1 distance from the target's distribution", ge=0)
    confidence: float = option(1.0, help="weight of the confidence head's loss; 0 trains no such head", ge=0)
    lr: float = option(6e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)
    epochs: float = option(10.0, help="passes over the texts", gt=0)
    embeddings: bool = option(
        False, help="keep copies of the target's embedding and LM head in the file, which DeepSpec's evaluation needs"
    )


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a head that does not fit this target."""
    check_block_head(options, _config(options, target), target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a head, see :func:`~specbench.training.head_training.train_head`."""
    model = job.target.model

    def start(head: DSparkHead, texts: Sequence[Text]) -> None:
        start_block_head(head, job.target, texts)

    def lesson_of(head: DSparkHead) -> Lesson:
        weights = {"ce": options.ce, "l1": options.l1, "confidence": options.confidence}
        return Lesson(head, model, anchors=options.anchors, gamma=options.gamma, keep=options.keep_features, **weights)

    card = train_head(options, job, DSparkHead, _config(options, job.target), lesson_of, start=start)
    if options.embeddings:
        _add_embeddings(job.out / "head", model)
    return card


def _config(options: Options, target: LoadedModel) -> DSparkConfig:
    return DSparkConfig.for_target(
        target.model.config,
        markov_rank=options.markov_rank,
        markov_head_type=options.markov_head,
        enable_confidence_head=options.confidence > 0,
        confidence_head_with_markov=options.markov_rank > 0,
        num_anchors=options.anchors,
        **options.shape(target),
    )


def _add_embeddings(folder: Path, model: Any) -> None:
    head = DSparkHead.load(folder)
    head.copy_from(model)
    head.save(folder)
