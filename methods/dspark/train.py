"""Recipe for a DSpark head, as published in DeepSpec (``config/dspark``): the target's own answers, sampled blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specbench.common import UsageError
from specbench.decoding import option
from specbench.heads import build_target_layer_ids
from specbench.methods.dspark.config import DSparkConfig, MarkovType
from specbench.methods.dspark.head import DSparkHead
from specbench.methods.dspark.learning.lesson import Lesson
from specbench.models import LoadedModel
from specbench.training import HeadTrainingOptions, Job, Text, check_head, start_from_target, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(HeadTrainingOptions):
    """Options of the recipe."""

    layers: int = option(5, help="layers of the head", ge=1)
    taps: int | None = option(
        None, help="number of target layers that the head reads; default is the head's number of layers", ge=1
    )
    block_size: int = option(7, help="rows of a block, the anchor included, each of which drafts a token", ge=1)
    mask_token: int | None = option(
        None, help="token id that fills a block; default is the last row of the embedding", ge=0
    )
    markov_rank: int = option(256, help="rank of the Markov head; 0 trains a DFlash head", ge=0)
    markov_head: MarkovType = option("vanilla", help="what the Markov head's bias depends on")
    anchors: int = option(512, help="most blocks per text in a step", ge=1)
    max_tokens: int = option(4096, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    gamma: float = option(4.0, help="weight of offset k is exp(-(k-1)/gamma); 0 weighs all equally", ge=0)
    ce: float = option(0.1, help="weight of the cross-entropy with the answers", ge=0)
    l1: float = option(0.9, help="weight of the L1 distance from the target's distribution", ge=0)
    confidence: float = option(1.0, help="weight of the confidence head's loss; 0 trains no such head", ge=0)
    lr: float = option(6e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)
    warmup: float = option(0.04, help="warm-up as a share of the steps", ge=0, le=1)
    epochs: float = option(10.0, help="passes over the texts", gt=0)
    embeddings: bool = option(
        False, help="keep copies of the target's embedding and LM head in the file, which DeepSpec's evaluation needs"
    )


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a head that does not fit this target."""
    config = _config(options, target)
    rows = target.model.get_input_embeddings().weight.shape[0]
    if (config.mask_token_id or 0) >= rows:
        raise UsageError(
            f"cannot fill blocks with token {config.mask_token_id}: the embedding of {target.spec.name} has {rows} "
            "rows; lower mask_token or leave it out"
        )
    check_head(options, target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train a head, see :func:`~specbench.training.head_training.train_head`."""
    model = job.target.model

    def start(head: DSparkHead, texts: Sequence[Text]) -> None:
        text = [*texts[0].prompt, *texts[0].answer]
        start_from_target(head, model, torch.tensor([text], device=model.device))

    def lesson_of(head: DSparkHead) -> Lesson:
        weights = {"ce": options.ce, "l1": options.l1, "confidence": options.confidence}
        return Lesson(head, model, anchors=options.anchors, gamma=options.gamma, keep=options.keep_features, **weights)

    card = train_head(options, job, DSparkHead, _config(options, job.target), lesson_of, start=start)
    if options.embeddings:
        _add_embeddings(job.out / "head", model)
    return card


def _config(options: Options, target: LoadedModel) -> DSparkConfig:
    config, vocabulary = target.model.config, target.vocab_size
    depth = config.get_text_config().num_hidden_layers
    return DSparkConfig.for_target(
        config,
        mask_token_id=vocabulary - 1 if options.mask_token is None else options.mask_token,
        block_size=options.block_size,
        layers=options.layers,
        taps=build_target_layer_ids(depth, options.taps) if options.taps else None,
        draft_vocab_size=options.drafted(vocabulary),
        markov_rank=options.markov_rank,
        markov_head_type=options.markov_head,
        enable_confidence_head=options.confidence > 0,
        confidence_head_with_markov=options.markov_rank > 0,
        num_anchors=options.anchors,
    )


def _add_embeddings(folder: Path, model: Any) -> None:
    head = DSparkHead.load(folder)
    head.copy_from(model)
    head.save(folder)
