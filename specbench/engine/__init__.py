"""Token-tree engine: one forward, one mask, one acceptance rule and one KV commit for every decoder."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.engine.buckets import scratch_cells as scratch_cells
    from specbench.engine.cache import ShapeRecorder as ShapeRecorder
    from specbench.engine.cpu.library import open_cpu_library as open_cpu_library
    from specbench.engine.cpu.source import CPU_SOURCE as CPU_SOURCE
    from specbench.engine.engine import Engine as Engine
    from specbench.engine.graphs import settle as settle
    from specbench.engine.heads.head_pass import HeadPass as HeadPass
    from specbench.engine.heads.head_rows import HeadRows as HeadRows
    from specbench.engine.layers.onednn import LinearKind as LinearKind
    from specbench.engine.layers.onednn import Linears as Linears
    from specbench.engine.layers.onednn import linear_kind as linear_kind
    from specbench.engine.layers.pieces import PLAIN as PLAIN
    from specbench.engine.layers.pieces import Attend as Attend
    from specbench.engine.layers.pieces import Pieces as Pieces
    from specbench.engine.layers.pieces import Rotary as Rotary
    from specbench.engine.layers.pieces import Store as Store
    from specbench.engine.layers.rotary import ExactRotary as ExactRotary
    from specbench.engine.logits.grammar import Grammar as Grammar
    from specbench.engine.memory import ran_out as ran_out
    from specbench.engine.memory_budget import TreesTooLarge as TreesTooLarge
    from specbench.engine.memory_budget import Widths as Widths
    from specbench.engine.memory_budget import assert_trees_fit as assert_trees_fit
    from specbench.engine.memory_budget import step_memory as step_memory
    from specbench.engine.phases import Phases as Phases
    from specbench.engine.program import base_model as base_model
    from specbench.engine.program import decoder_layers as decoder_layers
    from specbench.engine.program import tap_points as tap_points
    from specbench.engine.program import tapped as tapped
    from specbench.engine.sampler import Sampling as Sampling
    from specbench.engine.teacher_forcing import Chain as Chain
    from specbench.engine.teacher_forcing import log_probabilities as log_probabilities
    from specbench.engine.teacher_forcing import next_tokens as next_tokens
    from specbench.engine.teacher_forcing import rate_tokens as rate_tokens
else:
    __getattr__, __dir__ = door(__name__)
