"""Predictions: what a step should take, from assumptions that are named beside each one. No torch before one is made.

How a step is predicted is :mod:`benchmarks.gpu_check.nodes`'s: its kernels are
counted without a device, and the time of one is assumed. Bandwidth and peak are those that the first part measured, or
by a datasheet. Each prediction has the range that the ends of what is assumed give.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from benchmarks.gpu_check import shapes
from benchmarks.gpu_check.bench import Bench, Size
from benchmarks.gpu_check.nodes import EXPECTED, LEAST, MOST, Assumed, NodeCount, StepNodes, count_nodes, predicted_s
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import Shape
from specbench.hardware.gpus import Gpu
from specbench.hardware.roofline import Ceilings, Cost, ModelShape, bound_s
from specbench.models import configured_shape, resolve

Layers = Literal["fused", "plain", "compiled"]

#: Kernels that a layer through torch.compile is assumed to launch beyond those of a fused one. Nobody has counted them.
COMPILED_MORE: Mapping[str, int] = {"qwen2.5-7b": 6, "qwen3-8b": 7}

#: Kernels of one pass of JetSpec's head with five layers, and of a round of EAGLE-3 at its default depth, as counted
#: without a device.
HEAD_NODES, EAGLE_NODES = 89, 313


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
        peaks: of its datasheet, which bounds go by; None is ``ceilings``.
        assumed: what was never measured.
    """

    size: Size
    ceilings: Ceilings
    dtype: str = "bfloat16"
    card: Gpu | None = None
    peaks: Ceilings | None = None
    assumed: Assumed = EXPECTED

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
        if step.computes(self.ceilings):
            bound = _bound(step.cost, self.ceilings)
        else:
            read = step.cost.bytes / step.moved_s(self.ceilings, self.assumed)
            bound = f"{step.cost.bytes / 1e9:.3g} GB / {read / 1e9:.4g} GB/s"
        kernels = f"{step.nodes:,} kernels (counted{assumed})"
        return Prediction(
            step.seconds(self.ceilings, self.assumed),
            f"{kernels} × {self.assumed.node_s * 1e6:g} µs (assumed) + {bound}",
            nodes=step,
        )

    def bound(self, cost: Cost) -> Prediction:
        """The roofline's bound: kernels cost nothing, and the bandwidth is the datasheet's."""
        peaks = self.peaks or self.ceilings
        return Prediction(bound_s(cost, peaks), _bound(cost, peaks))

    def round_of_head(self, verify: Prediction, head_bytes: float, nodes: int = HEAD_NODES) -> Prediction:
        """A round: the target's step, the head's passes after it, and a wait for the host.

        Args:
            verify: the target's step.
            head_bytes: of weights that the head's passes read.
            nodes: kernels of these passes, as counted.
        """
        head = predicted_s(nodes, Cost(0.0, head_bytes), self.ceilings, self.assumed)
        basis = (
            f"{verify.basis}; head: {nodes} kernels (counted), {head_bytes / 1e9:.3g} GB; "
            f"host: {self.assumed.host_s * 1e3:g} ms (assumed)"
        )
        return Prediction(verify.seconds + head + self.assumed.host_s, basis)


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
        if found is None:
            return {}
        return {"predicted": found.predicted, "low": found.low, "high": found.high, "basis": found.basis}

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
    found, known = Expected(), known_of(bench)
    if known is not None:
        for of in predictors:
            found.add(with_range(of, known))
    return found


def with_range(predictor: Callable[[Known], Iterable[Figure]], known: Known) -> Iterator[Figure]:
    """What is predicted, each figure with its range: predicted anew with both ends of what is assumed."""
    ends = (predictor(replace(known, assumed=assumed)) for assumed in (LEAST, MOST))
    for figure, *others in zip(predictor(known), *ends, strict=True):
        values = [one.predicted for one in (figure, *others) if one.predicted is not None]
        yield replace(figure, low=min(values), high=max(values)) if values else figure


def known_of(bench: Bench) -> Known | None:
    """What predictions of the device here are made of; None where its ceilings are not known."""
    ceilings = bench.ceilings
    return None if ceilings is None else Known(bench.size, ceilings, bench.dtype, bench.card)
