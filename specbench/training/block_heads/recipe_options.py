"""Options that the recipes of heads with masked blocks share, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specbench.common import UsageError, option
from specbench.heads import BlockHead, BlockHeadConfig, build_target_layer_ids
from specbench.models import LoadedModel
from specbench.training.block_heads.initial_weights import start_from_target
from specbench.training.head_training import HeadTrainingOptions, check_head
from specbench.training.recipe import Text


class BlockTrainingOptions(HeadTrainingOptions):
    """Options of every recipe that trains a head of masked blocks, JetSpec's, DFlash's or DSpark's."""

    layers: int = option(5, help="layers of the head", ge=1)
    taps: int | None = option(
        None, help="number of target layers that the head reads; default is the head's number of layers", ge=1
    )
    block_size: int = option(16, help="rows of a block, the anchor included", ge=2)
    mask_token: int | None = option(
        None, help="token id that fills a block; default is the last row of the embedding", ge=0
    )
    anchors: int = option(512, help="most blocks per text in a step", ge=1)
    warmup: float = option(0.04, help="warm-up as a share of the steps", ge=0, le=1)

    def shape(self, target: LoadedModel) -> dict[str, Any]:
        """Arguments of :meth:`BlockHeadConfig.for_target` that these options decide."""
        depth = target.model.config.get_text_config().num_hidden_layers
        return {
            "mask_token_id": target.vocab_size - 1 if self.mask_token is None else self.mask_token,
            "block_size": self.block_size,
            "layers": self.layers,
            "taps": build_target_layer_ids(depth, self.taps) if self.taps else None,
            "draft_vocab_size": self.drafted(target.vocab_size),
        }


def check_block_head(options: BlockTrainingOptions, config: BlockHeadConfig, target: LoadedModel) -> None:
    """Refuse a head that does not fit this target."""
    rows = target.model.get_input_embeddings().weight.shape[0]
    if (config.mask_token_id or 0) >= rows:
        raise UsageError(
            f"cannot fill blocks with token {config.mask_token_id}: the embedding of {target.spec.name} has {rows} "
            "rows; lower mask_token or leave it out"
        )
    check_head(options, target)


def start_block_head(head: BlockHead, target: LoadedModel, texts: Sequence[Text]) -> None:
    """Initialise a head of random weights from the target's last layers."""
    text = [*texts[0].prompt, *texts[0].answer]
    start_from_target(head, target.model, torch.tensor([text], device=target.model.device))
