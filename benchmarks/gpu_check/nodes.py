"""Predicted time of a step from a model's configuration alone, without a GPU and without weights.

Seconds of a step = nodes × seconds of one small dependent kernel + the longer of bytes / bandwidth and FLOPs / peak.
Nodes are kernels, counted on torch's meta device (:mod:`.meta_step`); bytes and FLOPs are the roofline's. What was
never measured is in :class:`Assumed`. The model is simple: launches overlap with nothing and every kernel takes equally
long. Imports torch only when something is counted.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import EnvironmentRefused
from specbench.hardware.gpus import Gpu
from specbench.hardware.roofline import Ceilings, Cost, ModelShape, bound_s, step_cost
from specbench.hardware.stored_profile import datasheet
from specbench.models import resolve
from specbench.models.names import Source

if TYPE_CHECKING:
    import torch

    from benchmarks.gpu_check.meta_step import MetaStep

#: Share of a datasheet's bandwidth that a copy reaches: 4.3 of an H200's 4.8 TB/s.
COPIED = 4.3 / 4.8

#: Rows of a product that our kernel computes at most, which reads a weight as fast as a copy does.
OWN_ROWS = 16


@dataclass(frozen=True)
class Assumed:
    """What a prediction assumes.

    Attributes:
        node_s: seconds from the start of one small kernel of a graph to that of the next, which waits for it.
        library: share of the copy bandwidth at which a library's product of more than :data:`OWN_ROWS` rows reads its
            weight.
        host_s: seconds of a round that the device waits for the host, where something is drafted.
    """

    node_s: float
    library: float
    host_s: float


#: What is expected, and both ends of what is thought possible: the least and the most that steps take.
EXPECTED = Assumed(2.25e-6, 0.885, 0.30e-3)
LEAST, MOST = Assumed(2.1e-6, 0.90, 0.28e-3), Assumed(2.6e-6, 0.87, 0.35e-3)
NODE_S = EXPECTED.node_s

#: Rows of the steps, and cached tokens, unless others are asked for.
ROWS, CONTEXT = (1, 16, 64), 1024

# A peak that bounds nothing, where a datasheet states none.
_NO_PEAK = sys.float_info.max

_TEMPERATURE = 0.8  # any above 0 launches the same


def predicted_s(nodes: int, cost: Cost, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
    """Seconds that so many kernels take, which compute and move so much, on a device with these ceilings."""
    return nodes * assumed.node_s + bound_s(cost, ceilings)


def ceilings_of(card: Gpu, dtype: str) -> Ceilings:
    """What a card copies at and its peak for a dtype, by its datasheet; where it states no peak, FLOPs cost nothing."""
    found = datasheet(card, dtype)
    peak = found.flops_per_s if found else _NO_PEAK
    return Ceilings(bytes_per_s=1e9 * COPIED * card.bandwidth_gb_s, flops_per_s=peak)


@dataclass(frozen=True)
class StepNodes:
    """A step.

    Attributes:
        rows: of each sequence.
        sampled: above temperature 0.
        fused: its layers are; else they are as transformers has them.
        layers: nodes of each layer.
        outside: nodes before the first and behind the last.
        weight_bytes: of weights that it reads.
        cache_bytes: of keys and values that it reads and writes.
        flops: that it computes.
        sequences: stepped together.
    """

    rows: int
    sampled: bool
    fused: bool
    layers: tuple[int, ...]
    outside: int
    weight_bytes: float
    cache_bytes: float
    flops: float
    sequences: int = 1

    @property
    def nodes(self) -> int:
        """All of them."""
        return sum(self.layers) + self.outside

    @property
    def cost(self) -> Cost:
        """What it computes and moves at least."""
        return Cost(self.flops, self.weight_bytes + self.cache_bytes)

    def seconds(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Predicted, on a device with these ceilings."""
        moved = self.moved_s(ceilings, assumed)
        return self.nodes * assumed.node_s + max(moved, self.flops / ceilings.flops_per_s)

    def moved_s(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Seconds in which its bytes are read."""
        slower = 1.0 if self.rows * self.sequences <= OWN_ROWS else assumed.library
        return (self.weight_bytes / slower + self.cache_bytes) / ceilings.bytes_per_s

    def computes(self, ceilings: Ceilings) -> bool:
        """Whether its FLOPs take longer than its bytes."""
        return self.flops / ceilings.flops_per_s > self.moved_s(ceilings)


@dataclass(frozen=True)
class NodeCount:
    """The steps of a model.

    Attributes:
        model, dtype: what was counted; weights and cache are of that dtype.
        context: cached tokens of each sequence.
        slots: sequences.
        fusions: parts of layers that are fused, as far as their modules tell.
        not_fused: the other parts, with why not.
        why_not_fused: why nothing is; empty where something is.
        steps: each with its layers as transformers has them, behind the same with fused ones where there are any, or
            what of both was asked for.
    """

    model: str
    dtype: str
    context: int
    slots: int
    fusions: tuple[str, ...]
    not_fused: Mapping[str, str]
    why_not_fused: str
    steps: tuple[StepNodes, ...]


def count_nodes(
    spec: str,
    rows: Sequence[int] = ROWS,
    context: int = CONTEXT,
    slots: int = 1,
    *,
    dtype: str = "bfloat16",
    fused: bool | None = None,
) -> NodeCount:
    """Counts the steps of a model: of each number of rows, and of the largest once more with sampling.

    Args:
        spec: ``config:NAME`` or ``config:FILE.json``.
        rows: of each sequence, ascending.
        context: cached tokens of each sequence.
        slots: sequences stepped together.
        dtype: torch's name of the weights' and the cache's.
        fused: count fused layers alone, or alone those that transformers has; default is both.

    Raises:
        UsageError: no such configuration, or one that the engine does not run.
        EnvironmentRefused: triton is not installed.
    """
    source = resolve(spec)
    if importlib.util.find_spec("triton") is None:
        raise EnvironmentRefused(
            "nodes are launches of Triton kernels, and triton is not installed; pip install triton"
        )
    import torch

    from benchmarks.gpu_check.meta_step import MetaStep
    from specbench.engine import scratch_cells
    from specbench.profiling.shape import shape_of

    model = _model(source, getattr(torch, dtype))
    capacity = context + scratch_cells(rows[-1])
    steps: list[StepNodes] = []
    for wanted in (False, True) if fused is None else (fused,):  # first as they are, before its layers are others
        meta = MetaStep(model, slots=slots, capacity=capacity, fused=wanted, reach=context + rows[-1])
        shape = shape_of(meta)
        if bool(meta.fusions) == wanted:
            steps += _steps(meta, shape, rows, context, slots, fused=wanted)
    return NodeCount(
        model=source.name,
        dtype=dtype,
        context=context,
        slots=slots,
        fusions=meta.fusions,
        not_fused=meta.not_fused,
        why_not_fused=meta.why_not_fused,
        steps=tuple(sorted(steps, key=lambda step: (step.sampled, step.rows, not step.fused))),
    )


def _steps(
    meta: MetaStep, shape: ModelShape, rows: Sequence[int], context: int, slots: int, *, fused: bool
) -> list[StepNodes]:
    """The steps of a model whose layers are as they are at the moment."""
    from specbench.engine import Sampling
    from specbench.engine.program import StepKind

    without_cache = shape.model_copy(update={"attention": ()})
    found: list[StepNodes] = []
    for count, sampling in [*((count, Sampling()) for count in rows), (rows[-1], Sampling(_TEMPERATURE))]:
        kind = StepKind(sampling, attention="triton", tall=meta.tall(count))
        nodes = meta.nodes(count * slots, kind, again=bool(found))
        cost, weights = step_cost(shape, count, context, slots), step_cost(without_cache, count, context, slots)
        found.append(
            StepNodes(
                rows=count,
                sampled=not sampling.greedy,
                fused=fused,
                layers=tuple(map(len, nodes.of_layers())),
                outside=len(nodes.others()),
                weight_bytes=weights.bytes,
                cache_bytes=cost.bytes - weights.bytes,
                flops=cost.flops,
                sequences=slots,
            )
        )
    return found


def _model(source: Source, dtype: torch.dtype) -> Any:
    """The model of a configuration, on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from specbench.models.checkpoint import read_config

    config = AutoConfig.for_model(**read_config(Path(source.location)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)
