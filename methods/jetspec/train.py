"""Recipe for a JetSpec or DFlash head: forward KL to the frozen target on blocks of its own answers (SpecForge, NeMo).

JetSpec published no training code. Known parts of its recipe: causal block of 16, forward KL, learning rate 3e-4, six
epochs, no weights by offset. Blocks and anchors follow SpecForge's DFlash trainer, the loss follows NeMo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specbench.common import UsageError
from specbench.decoding import option
from specbench.heads import BlockHead, BlockHeadConfig, build_target_layer_ids
from specbench.methods.jetspec.learning.held_out import held_out
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.models import LoadedModel
from specbench.training import Accepted, HeadTrainingOptions, Job, Text, check_head, start_from_target, train_head

OPTION = "head"  # the method's option that takes the trained head


class Options(HeadTrainingOptions):
    """Options of the recipe."""

    layers: int = option(5, help="layers of the head", ge=1)
    taps: int | None = option(
        None, help="number of target layers that the head reads; default is the head's number of layers", ge=1
    )
    block_size: int = option(16, help="rows of a block, the anchor included", ge=2)
    causal: bool = option(True, help="a row attends to the rows before it (JetSpec), not to its whole block (DFlash)")
    mask_token: int | None = option(
        None, help="token id that fills a block; default is the last row of the embedding", ge=0
    )
    anchors: int = option(512, help="most blocks per text in a step", ge=1)
    max_tokens: int = option(3072, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    gamma: float = option(0.0, help="weight of offset k is exp(-(k-1)/gamma); 0 weighs all equally", ge=0)
    lr: float = option(3e-4, help="peak learning rate, after warm-up and before the cosine decay", gt=0)
    warmup: float = option(0.04, help="warm-up as a share of the steps", ge=0, le=1)


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

    def start(head: BlockHead, texts: Sequence[Text]) -> None:
        text = [*texts[0].prompt, *texts[0].answer]
        start_from_target(head, model, torch.tensor([text], device=model.device))

    def lesson_of(head: BlockHead) -> Lesson:
        return Lesson(head, model, anchors=options.anchors, gamma=options.gamma, keep=options.keep_features)

    def measure(lesson: Lesson) -> tuple[Accepted, Mapping[str, Any]]:
        found = held_out(lesson, job.held_out, model.device)
        return found.accepted, found.figures

    config = _config(options, job.target)
    return train_head(options, job, BlockHead, config, lesson_of, start=start, held_out=measure)


def _config(options: Options, target: LoadedModel) -> BlockHeadConfig:
    config, vocabulary = target.model.config, target.vocab_size
    depth = config.get_text_config().num_hidden_layers
    return BlockHeadConfig.for_target(
        config,
        mask_token_id=vocabulary - 1 if options.mask_token is None else options.mask_token,
        block_size=options.block_size,
        layers=options.layers,
        causal=options.causal,
        taps=build_target_layer_ids(depth, options.taps) if options.taps else None,
        draft_vocab_size=options.drafted(vocabulary),
    )
