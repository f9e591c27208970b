"""Predictions: what a step should take, from assumptions that are named beside each one. No torch before one is made.

How a step is predicted is :mod:`specbench.profiling.nodes`'s, as ``specbench profile --nodes`` has it: its kernels are
counted without a device, and the time of one is assumed. Bandwidth and peak are those that the first part measured, or
a datasheet's.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from benchmarks.gpu_check import shapes
from benchmarks.gpu_check.bench import Bench, Size
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import Shape
from specbench.hardware.gpus import Gpu
from specbench.hardware.roofline import Ceilings, Cost, ModelShape, bound_s
from specbench.models import configured_shape, resolve
from specbench.profiling.nodes import NODE_S, NodeCount, StepNodes, count_nodes, predicted_s

Layers = Literal["fused", "plain", "compiled"]

#: Kernels that a layer through torch.compile is assumed to launch beyond those of a fused one. Nobody has counted them.
COMPILED_MORE: Mapping[str, int] = {"qwen2.5-7b": 6, "qwen3-8b": 7}

#: Kernels of one pass of JetSpec's head with five layers, as counted without a device.
HEAD_NODES = 89


@dataclass(frozen=True)
class Prediction:
    """Seconds, and what they were computed from.

    Attributes:
        seconds: predicted.
        basis: in words.
        nodes: the step; None where it is more than a step.
    """

    seconds: float
    basis: str
    nodes: StepNodes | None = None


@dataclass(frozen=True)
class Known:
    """What predictions are made of.

    Attributes:
        size: how much is measured.
        ceilings: of the device.
        dtype: of weights and cache, by torch's name.
        card: whose datasheet is known; None where none is.
    """

    size: Size
    ceilings: Ceilings
    dtype: str = "bfloat16"
    card: Gpu | None = None

    def shapes(self, families: Iterable[str]) -> Iterator[Shape]:
        """Whole families, as far as the card has memory for them."""
        for family in families:
            if self.card is None or shapes.fits(family, int(1e9 * self.card.memory_gb)):
                yield shapes.whole(family)

    def cost(self, shape: Shape) -> ModelShape:
        """What decides the cost of a step of it."""
        found = configured_shape(resolve(shape.spec), self.dtype)
        assert found is not None, f"the families of the check follow from their configurations, and {shape.spec} not"
        return found

    def step(self, shape: Shape, rows: int, *, sampled: bool = False) -> Prediction:
        """A step of one sequence behind the usual context, its layers fused."""
        found = _counted(shape.spec, self.dtype, (rows,), self.size.context, 1, fused=True)
        return self.of(next(step for step in found.steps if step.sampled == sampled))

    def crowd(self, shape: Shape, slots: int) -> Prediction:
        """A step of AR, of several sequences together."""
        return self.of(_counted(shape.spec, self.dtype, (1,), self.size.crowd_context, slots, fused=True).steps[0])

    def ladder(self, shape: Shape, rows: Sequence[int], layers: Layers = "fused") -> dict[int, Prediction]:
        """Steps of one sequence behind the usual context, by ascending rows."""
        counted = _counted(shape.spec, self.dtype, tuple(rows), self.size.context, 1, fused=layers != "plain").steps
        steps, assumed = [step for step in counted if not step.sampled], ""
        if layers == "compiled":  # what is outside of layers is transformers' own then
            outside = _counted(shape.spec, self.dtype, (1,), self.size.context, 1, fused=False).steps[0].outside
            more = COMPILED_MORE[shape.family]
            steps = [
                replace(step, layers=tuple(count + more for count in step.layers), outside=outside) for step in steps
            ]
            assumed = f", of each layer {more} more than of a fused one (assumed)"
        return {step.rows: self.of(step, assumed) for step in steps}

    def of(self, step: StepNodes, assumed: str = "") -> Prediction:
        """A step that has been counted.

        Args:
            step: counted.
            assumed: of its kernels, in words.
        """
        bound = _bound(step.cost, self.ceilings)
        kernels = f"{step.nodes:,} kernels (counted{assumed})"
        return Prediction(
            step.seconds(self.ceilings), f"{kernels} × {NODE_S * 1e6:g} µs (assumed) + {bound}", nodes=step
        )

    def bound(self, cost: Cost) -> Prediction:
        """The roofline's bound: kernels cost nothing."""
        return Prediction(bound_s(cost, self.ceilings), _bound(cost, self.ceilings))

    def round_of_head(self, verify: Prediction, head_bytes: float) -> Prediction:
        """A round of JetSpec: the target's step, and the head's pass behind it."""
        seconds = verify.seconds + predicted_s(HEAD_NODES, Cost(0.0, head_bytes), self.ceilings)
        return Prediction(seconds, f"{verify.basis}; head: {HEAD_NODES} kernels (counted), {head_bytes / 1e9:.3g} GB")


@cache
def _counted(spec: str, dtype: str, rows: tuple[int, ...], context: int, slots: int, *, fused: bool) -> NodeCount:
    """Steps, counted once whatever the device: a check has several devices in ``--predict`` alone."""
    return count_nodes(spec, rows, context, slots, dtype=dtype, fused=fused)


def _bound(cost: Cost, ceilings: Ceilings) -> str:
    """What takes a step the longest, beside its kernels."""
    if bound_s(cost, ceilings) > cost.bytes / ceilings.bytes_per_s:
        return f"{cost.flops / 1e12:.3g} TFLOP / {ceilings.flops_per_s / 1e12:.4g} TFLOP/s"
    return f"{cost.bytes / 1e9:.3g} GB / {ceilings.bytes_per_s / 1e9:.4g} GB/s"


class Expected:
    """What a part expects of its figures, by their names."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def add(self, figures: Iterable[Figure]) -> None:
        """Takes predictions; what goes wrong with one is told to the part's log and costs no figure.

        Args:
            figures: without values.
        """
        try:
            for figure in figures:
                self._figures[figure.name] = figure
        except Exception:  # the check measures on an image that nobody has seen, whatever counting runs into there
            traceback.print_exc()

    def fields(self, name: str) -> dict[str, Any]:
        """What a figure says of its prediction; nothing without one."""
        found = self._figures.get(name)
        return {} if found is None else {"predicted": found.predicted, "basis": found.basis}

    def aim(self, name: str) -> str:
        """The aim of a figure whose aim goes by its prediction."""
        found = self._figures.get(name)
        return "" if found is None else found.aim


def expected(bench: Bench, *predictors: Callable[[Known], Iterable[Figure]]) -> Expected:
    """What a part expects of the device that it runs on; nothing where the device's ceilings are not known.

    Args:
        bench: of the part.
        predictors: give figures without values.
    """
    found = Expected()
    ceilings = bench.ceilings
    if ceilings is not None:
        for of in predictors:
            found.add(of(Known(bench.size, ceilings, bench.dtype)))
    return found
