"""Draft heads: configuration and files, and the rounds in which they draft: level by level, or a block in one pass."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.heads.block_config import BlockHeadConfig as BlockHeadConfig
    from specbench.heads.block_config import PublishedBlockHead as PublishedBlockHead
    from specbench.heads.block_config import build_target_layer_ids as build_target_layer_ids
    from specbench.heads.block_head import BlockHead as BlockHead
    from specbench.heads.block_head import BlockRounds as BlockRounds
    from specbench.heads.draft_head import Head as Head
    from specbench.heads.head_config import HEAD_FILE as HEAD_FILE
    from specbench.heads.head_config import HEAD_SIZES as HEAD_SIZES
    from specbench.heads.head_config import HEAD_TODO as HEAD_TODO
    from specbench.heads.head_config import HeadConfig as HeadConfig
    from specbench.heads.head_config import PublishedHead as PublishedHead
    from specbench.heads.head_config import head_size as head_size
    from specbench.heads.head_config import layer_sizes as layer_sizes
    from specbench.heads.head_files import HeadFiles as HeadFiles
    from specbench.heads.head_rounds import HeadRounds as HeadRounds
    from specbench.heads.level_decoder import LevelDecoder as LevelDecoder
    from specbench.heads.level_decoder import LevelOptions as LevelOptions
    from specbench.heads.level_growth import grow_levels as grow_levels
    from specbench.heads.level_rounds import LevelRounds as LevelRounds
    from specbench.heads.level_rounds import level_drafting as level_drafting
    from specbench.heads.levels import Levels as Levels
    from specbench.heads.levels import chain as chain
    from specbench.heads.sampled_drafts import SampledDrafts as SampledDrafts
    from specbench.heads.sized_trees import marginal_trees as marginal_trees
else:
    __getattr__, __dir__ = door(__name__)
