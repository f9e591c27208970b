"""Predict the time of a step from a model's configuration alone, without a GPU or weights.

Seconds of a step = nodes × seconds of one small dependent kernel + the longer of bytes / bandwidth and FLOPs / peak.
Nodes are kernels, counted on torch's meta device (:mod:`.meta_step`); bytes and FLOPs come from the roofline. Values
that were never measured are in :class:`Assumed`. The model is simple: launches do not overlap, and every kernel takes
the same time. Torch is imported only to count.
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

#: Share of the datasheet's bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200.
COPIED = 4.3 / 4.8

#: Largest number of rows for our own product kernel, which reads weights as fast as a copy does.
OWN_ROWS = 16


@dataclass(frozen=True)
class Assumed:
    """Assumptions of a prediction.

    Attributes:
        node_s: seconds from the start of one small kernel of a graph to the start of the next, which depends on it.
        library: share of the copy bandwidth at which a library's product of more than :data:`OWN_ROWS` rows reads its
            weight.
        host_s: seconds per round in which the device waits for the host, if the method drafts.
    """

    node_s: float
    library: float
    host_s: float


#: Expected values, and both ends of the plausible range: shortest and longest steps.
EXPECTED = Assumed(2.25e-6, 0.885, 0.30e-3)
LEAST, MOST = Assumed(2.1e-6, 0.90, 0.28e-3), Assumed(2.6e-6, 0.87, 0.35e-3)
NODE_S = EXPECTED.node_s

#: Default rows of the steps, and cached tokens.
ROWS, CONTEXT = (1, 16, 64), 1024

# Used if a datasheet states no peak: it never limits a step.
_NO_PEAK = sys.float_info.max

_TEMPERATURE = 0.8  # any temperature above 0 launches the same kernels


def predicted_s(nodes: int, cost: Cost, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
    """Predict the seconds of a number of kernels with a total cost, on a device with these ceilings."""
    return nodes * assumed.node_s + bound_s(cost, ceilings)


def ceilings_of(card: Gpu, dtype: str) -> Ceilings:
    """Copy bandwidth and peak of a GPU from its datasheet; if that states no peak, FLOPs count as taking no time."""
    found = datasheet(card, dtype)
    peak = found.flops_per_s if found else _NO_PEAK
    return Ceilings(bytes_per_s=1e9 * COPIED * card.bandwidth_gb_s, flops_per_s=peak)


@dataclass(frozen=True)
class StepNodes:
    """Kernels and cost of a step.

    Attributes:
        rows: rows of each sequence.
        sampled: whether the temperature is above 0.
        fused: whether layers are fused; otherwise they are transformers' own.
        layers: nodes of each layer.
        outside: nodes before the first and after the last layer.
        weight_bytes: bytes of weights that the step reads.
        cache_bytes: bytes of keys and values that the step reads and writes.
        flops: FLOPs of the step.
        sequences: sequences stepped together.
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
        """Number of all nodes."""
        return sum(self.layers) + self.outside

    @property
    def cost(self) -> Cost:
        """FLOPs and bytes of the step."""
        return Cost(self.flops, self.weight_bytes + self.cache_bytes)

    def seconds(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Predict the seconds of the step on a device with these ceilings."""
        moved = self.moved_s(ceilings, assumed)
        return self.nodes * assumed.node_s + max(moved, self.flops / ceilings.flops_per_s)

    def moved_s(self, ceilings: Ceilings, assumed: Assumed = EXPECTED) -> float:
        """Seconds for reading the step's bytes."""
        slower = 1.0 if self.rows * self.sequences <= OWN_ROWS else assumed.library
        return (self.weight_bytes / slower + self.cache_bytes) / ceilings.bytes_per_s

    def computes(self, ceilings: Ceilings) -> bool:
        """Whether the step is limited by compute: its FLOPs take longer than its bytes."""
        return self.flops / ceilings.flops_per_s > self.moved_s(ceilings)


@dataclass(frozen=True)
class NodeCount:
    """Counted steps of a model.

    Attributes:
        model, dtype: counted model, and dtype of its weights and cache.
        context: cached tokens of each sequence.
        slots: number of sequences.
        fusions: fused parts of layers, according to their modules.
        not_fused: the other parts, with the reasons.
        why_not_fused: reason if nothing is fused, else empty.
        steps: by rows, the step with fused layers (if there are any) before the step with transformers' own layers,
            as far as both were requested.
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
    """Count the kernels of a model's steps: for each number of rows, and for the largest also with sampling.

    Args:
        spec: ``config:NAME`` or ``config:FILE.json``.
        rows: rows of each sequence, ascending.
        context: cached tokens of each sequence.
        slots: sequences stepped together.
        dtype: dtype of weights and cache, as torch names it.
        fused: True counts only fused layers, False only transformers' own; default is both.

    Raises:
        UsageError: the configuration does not exist, or the engine cannot run it.
        EnvironmentRefused: triton is not installed.
    """
    source = resolve(spec)
    if importlib.util.find_spec("triton") is None:
        raise EnvironmentRefused("cannot count kernels: triton is not installed; pip install triton")
    import torch

    from benchmarks.gpu_check.meta_step import MetaStep
    from specbench.engine import scratch_cells
    from specbench.profiling.shape import shape_of

    model = _model(source, getattr(torch, dtype))
    capacity = context + scratch_cells(rows[-1])
    steps: list[StepNodes] = []
    for wanted in (
        (False, True) if fused is None else (fused,)
    ):  # transformers' own layers first, because fusing replaces them
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
    """Count the steps of a model with its current layers."""
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
    """Build the model of a configuration on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from specbench.models.checkpoint import read_config

    config = AutoConfig.for_model(**read_config(Path(source.location)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)
