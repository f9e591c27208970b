"""Train draft heads, draft models, adapters or whole models on answers: the target's own or given ones."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.training.block_heads.block_lesson import BlockLesson as BlockLesson
    from specbench.training.block_heads.blocks import Blocks as Blocks
    from specbench.training.block_heads.recipe_options import BlockTrainingOptions as BlockTrainingOptions
    from specbench.training.block_heads.recipe_options import check_block_head as check_block_head
    from specbench.training.block_heads.recipe_options import start_block_head as start_block_head
    from specbench.training.card import put_on_card as put_on_card
    from specbench.training.data.jacobi_states import block_sizes as block_sizes
    from specbench.training.data.trajectory_folder import Trajectory as Trajectory
    from specbench.training.evaluation.accepted import Accepted as Accepted
    from specbench.training.evaluation.accepted import leading as leading
    from specbench.training.finetuning import Teaching as Teaching
    from specbench.training.finetuning import finetune as finetune
    from specbench.training.head_training import HeadLesson as HeadLesson
    from specbench.training.head_training import HeadTrainingOptions as HeadTrainingOptions
    from specbench.training.head_training import check_head as check_head
    from specbench.training.head_training import train_head as train_head
    from specbench.training.loop.checkpoints import leave_weights as leave_weights
    from specbench.training.loop.on_policy import OnPolicyOptions as OnPolicyOptions
    from specbench.training.loop.stopping import Evaluation as Evaluation
    from specbench.training.loop.trainer import fit as fit
    from specbench.training.objectives.attention_mask import BlockCausalMask as BlockCausalMask
    from specbench.training.objectives.consistency import ConsistencyLesson as ConsistencyLesson
    from specbench.training.objectives.distances import forward_kl as forward_kl
    from specbench.training.objectives.frozen import Frozen as Frozen
    from specbench.training.objectives.frozen import LabelOptions as LabelOptions
    from specbench.training.objectives.frozen import Labels as Labels
    from specbench.training.objectives.losses import Losses as Losses
    from specbench.training.objectives.losses import Norm as Norm
    from specbench.training.objectives.losses import Pairs as Pairs
    from specbench.training.objectives.losses import Targets as Targets
    from specbench.training.objectives.losses import cross_entropy as cross_entropy
    from specbench.training.objectives.losses import evaluate_losses as evaluate_losses
    from specbench.training.objectives.losses import global_consistency as global_consistency
    from specbench.training.objectives.losses import local_consistency as local_consistency
    from specbench.training.objectives.losses import mean_of_rows as mean_of_rows
    from specbench.training.objectives.losses import progressive_consistency as progressive_consistency
    from specbench.training.objectives.packing import CLEAN as CLEAN
    from specbench.training.objectives.packing import NOISY as NOISY
    from specbench.training.objectives.packing import ConsistencyCollator as ConsistencyCollator
    from specbench.training.objectives.packing import Packed as Packed
    from specbench.training.objectives.packing import stack as stack
    from specbench.training.objectives.scored_kl import scored_kl as scored_kl
    from specbench.training.objectives.scored_rows import autocast_weight as autocast_weight
    from specbench.training.objectives.scored_rows import score_chunks as score_chunks
    from specbench.training.objectives.side_by_side import claim_for as claim_for
    from specbench.training.objectives.side_by_side import learnable as learnable
    from specbench.training.objectives.side_by_side import plain_course as plain_course
    from specbench.training.objectives.side_by_side import round_weights_to as round_weights_to
    from specbench.training.objectives.side_by_side import teaching as teaching
    from specbench.training.objectives.student import Student as Student
    from specbench.training.quality_card import check_card as check_card
    from specbench.training.recipe import Job as Job
    from specbench.training.recipe import LoopOptions as LoopOptions
    from specbench.training.recipe import Text as Text
    from specbench.training.recipe import WeightOptions as WeightOptions
    from specbench.training.running import run_collection as run_collection
    from specbench.training.running import run_training as run_training
    from specbench.training.running import train as train
    from specbench.training.training_grid import Cell as Cell
    from specbench.training.training_grid import Cells as Cells
    from specbench.training.training_grid import Made as Made
    from specbench.training.training_grid import Predicted as Predicted
    from specbench.training.training_plan import TrainPlan as TrainPlan
    from specbench.training.training_plan import TrajectoriesPlan as TrajectoriesPlan
else:
    __getattr__, __dir__ = door(__name__)
