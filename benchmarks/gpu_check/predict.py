"""Predictions: what a step should take, from assumptions that are named beside each one. No torch.

Seconds of a step = kernels × seconds of one small dependent kernel + the longer of bytes / bandwidth and FLOPs / peak.
Bandwidth and peak are measured by the first part; kernel counts are taken without a device, and the time of one is an
assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.gpu_check.shapes import Shape
from specbench.hardware.roofline import Ceilings, Cost, ModelShape, bound_s, step_cost
from specbench.profiling.nodes import NODE_S

Layers = Literal["fused", "plain", "compiled"]

#: Kernels of a layer in a step of a tree: fused and plain (as transformers has it) as counted without a device
#: (:mod:`specbench.engine.nodes`), compiled as assumed. At one row attention takes one less.
NODES: Mapping[str, Mapping[Layers, int]] = {
    "qwen2.5-7b": {"fused": 10, "plain": 40, "compiled": 16},
    "qwen3-8b": {"fused": 10, "plain": 56, "compiled": 17},
}

#: Kernels of one pass of JetSpec's head with five layers, as counted without a device.
HEAD_NODES = 93


@dataclass(frozen=True)
class Prediction:
    """Seconds, and what they were computed from."""

    seconds: float
    basis: str


def fields(
    prediction: Prediction | None, of: Callable[[float], float] = lambda seconds: 1e3 * seconds
) -> dict[str, Any]:
    """What a figure says of its prediction.

    Args:
        prediction: of seconds; None says nothing.
        of: makes the figure's own unit of them; default is milliseconds.
    """
    return {} if prediction is None else {"predicted": of(prediction.seconds), "basis": prediction.basis}


def nodes(shape: Shape, layers: Layers = "fused", rows: int = 1) -> int:
    """Predicted kernels of a step of so many rows of a sequence."""
    return shape.layers * (NODES[shape.family][layers] - (rows == 1))


def step(
    shape: Shape,
    cost: ModelShape | None,
    ceilings: Ceilings | None,
    rows: int,
    context: int,
    slots: int = 1,
    layers: Layers = "fused",
) -> Prediction | None:
    """A step of ``slots`` sequences and so many rows of each; None where the device's ceilings are not known.

    Args:
        shape: what is stepped.
        cost: its weights and cache, as :func:`specbench.profiling.shape.shape_of` counts them.
        ceilings: of the device.
        rows, context, slots: of the step.
        layers: how its layers run.
    """
    if ceilings is None or cost is None:
        return None
    return _sum(nodes(shape, layers, rows), step_cost(cost, rows, context, slots), ceilings)


def round_of_head(verify: Prediction | None, head_bytes: float, ceilings: Ceilings | None) -> Prediction | None:
    """A round of JetSpec: the target's step, and the head's pass behind it."""
    if verify is None or ceilings is None:
        return None
    seconds = verify.seconds + HEAD_NODES * NODE_S + head_bytes / ceilings.bytes_per_s
    return Prediction(seconds, f"{verify.basis}; head: {HEAD_NODES} kernels (predicted), {head_bytes / 1e9:.3g} GB")


def _sum(count: int, cost: Cost, ceilings: Ceilings) -> Prediction:
    moved = bound_s(cost, ceilings)
    bound = "bytes" if moved * ceilings.bytes_per_s <= cost.bytes * 1.000001 else "FLOPs"
    what = f"{cost.bytes / 1e9:.3g} GB" if bound == "bytes" else f"{cost.flops / 1e12:.3g} TFLOP"
    rate = (
        f"{ceilings.bytes_per_s / 1e9:.4g} GB/s" if bound == "bytes" else f"{ceilings.flops_per_s / 1e12:.4g} TFLOP/s"
    )
    return Prediction(
        count * NODE_S + moved, f"{count} kernels (predicted) × {NODE_S * 1e6:g} µs (assumed) + {what} / {rate}"
    )
