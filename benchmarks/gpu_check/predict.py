"""Predicted step times, with the assumptions of each prediction. Torch is imported only to count kernels.

Steps are predicted by :mod:`benchmarks.gpu_check.nodes`: kernels are counted without a device, and the time per kernel
is assumed. Bandwidth and peak come from the first part, or from a datasheet. The range of a prediction follows from the
ends of the assumptions.
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

#: Additional kernels of a layer with torch.compile compared with a fused layer: assumed, not counted.
COMPILED_MORE: Mapping[str, int] = {"qwen2.5-7b": 6, "qwen3-8b": 7}

#: Kernels of one pass of JetSpec's head with five layers, and of a round of EAGLE-3 at its default depth, counted
#: without a device.
HEAD_NODES, EAGLE_NODES = 89, 313


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds and their basis.

    Attributes:
        seconds: predicted seconds.
        basis: how they were computed, as text.
        nodes: the predicted step; None if the prediction covers more than a step.
    """

    seconds: float
    basis: str
    nodes: StepNodes | None = None


@dataclass(frozen=True)
class Known:
    """The basis of predictions.

    Attributes:
        size: how much is measured.
        ceilings: bandwidth and peak of the device.
        dtype: dtype of weights and cache, as torch names it.
        card: the GPU, if its datasheet is known, else None.
        peaks: ceilings of the datasheet for roofline bounds; None means ``ceilings``.
        assumed: values that were never measured.
    """

    size: Size
    ceilings: Ceilings
    dtype: str = "bfloat16"
    card: Gpu | None = None
    peaks: Ceilings | None = None
    assumed: Assumed = EXPECTED

    def shapes(self, families: Iterable[str]) -> Iterator[Shape]:
        """Yield the families that fit in the GPU's memory as a whole."""
        for family in families:
            if self.card is None or shapes.fits(family, int(1e9 * self.card.memory_gb)):
                yield shapes.whole(family)

    def cost(self, shape: Shape) -> ModelShape:
        """Return the model's shape, which determines the cost of a step."""
        found = configured_shape(resolve(shape.spec), self.dtype)
        assert found is not None, f"{shape.spec} has no configuration to count from"
        return found

    def step(self, shape: Shape, rows: int, *, sampled: bool = False) -> Prediction:
        """Predict a step of one sequence at the usual context, with fused layers."""
        found = _counted(shape.spec, self.dtype, (rows,), self.size.context, 1, fused=True)
        return self.of(next(step for step in found.steps if step.sampled == sampled))

    def crowd(self, shape: Shape, slots: int) -> Prediction:
        """Predict an AR step of several sequences together."""
        return self.of(_counted(shape.spec, self.dtype, (1,), self.size.crowd_context, slots, fused=True).steps[0])

    def ladder(self, shape: Shape, rows: Sequence[int], layers: Layers = "fused") -> dict[int, Prediction]:
        """Predict steps of one sequence at the usual context, by ascending rows."""
        counted = _counted(shape.spec, self.dtype, tuple(rows), self.size.context, 1, fused=layers != "plain").steps
        steps, assumed = [step for step in counted if not step.sampled], ""
        if layers == "compiled":  # code outside the layers is then transformers' own
            outside = _counted(shape.spec, self.dtype, (1,), self.size.context, 1, fused=False).steps[0].outside
            more = COMPILED_MORE[shape.family]
            steps = [
                replace(step, layers=tuple(count + more for count in step.layers), outside=outside) for step in steps
            ]
            assumed = f", {more} more per layer than with fused layers (assumed)"
        return {step.rows: self.of(step, assumed) for step in steps}

    def of(self, step: StepNodes, assumed: str = "") -> Prediction:
        """Predict a counted step.

        Args:
            step: the counted step.
            assumed: assumption about its kernels, as text.
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
        """Return the roofline bound: launches take no time, and the bandwidth is the datasheet's."""
        peaks = self.peaks or self.ceilings
        return Prediction(bound_s(cost, peaks), _bound(cost, peaks))

    def round_of_head(self, verify: Prediction, head_bytes: float, nodes: int = HEAD_NODES) -> Prediction:
        """Predict a round: the target's step, the head's passes after it, and the wait for the host.

        Args:
            verify: prediction of the target's step.
            head_bytes: bytes of weights that the head's passes read.
            nodes: counted kernels of these passes.
        """
        head = predicted_s(nodes, Cost(0.0, head_bytes), self.ceilings, self.assumed)
        basis = (
            f"{verify.basis}; head: {nodes} kernels (counted), {head_bytes / 1e9:.3g} GB; "
            f"host: {self.assumed.host_s * 1e3:g} ms (assumed)"
        )
        return Prediction(verify.seconds + head + self.assumed.host_s, basis)


@cache
def _counted(spec: str, dtype: str, rows: tuple[int, ...], context: int, slots: int, *, fused: bool) -> NodeCount:
    """Count steps, once for all devices of ``--predict``."""
    return count_nodes(spec, rows, context, slots, dtype=dtype, fused=fused)


def _bound(cost: Cost, ceilings: Ceilings) -> str:
    """Describe the roofline bound of a step: FLOPs or bytes, whichever takes longer."""
    if bound_s(cost, ceilings) > cost.bytes / ceilings.bytes_per_s:
        return f"{cost.flops / 1e12:.3g} TFLOP / {ceilings.flops_per_s / 1e12:.4g} TFLOP/s"
    return f"{cost.bytes / 1e9:.3g} GB / {ceilings.bytes_per_s / 1e9:.4g} GB/s"


class Expected:
    """Predictions of a part, by the names of figures."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def add(self, figures: Iterable[Figure]) -> None:
        """Add predictions; an error is printed to the part's log and does not affect measurements.

        Args:
            figures: figures without values.
        """
        try:
            for figure in figures:
                self._figures[figure.name] = figure
        except Exception:  # measure even if counting fails in an unknown image
            traceback.print_exc()

    def fields(self, name: str) -> dict[str, Any]:
        """Return the prediction as fields of a figure; empty without a prediction."""
        found = self._figures.get(name)
        if found is None:
            return {}
        return {"predicted": found.predicted, "low": found.low, "high": found.high, "basis": found.basis}

    def aim(self, name: str) -> str:
        """Return the aim of a figure whose aim depends on its prediction."""
        found = self._figures.get(name)
        return "" if found is None else found.aim


def expected(bench: Bench, *predictors: Callable[[Known], Iterable[Figure]]) -> Expected:
    """Return a part's predictions for the device; empty if the device's ceilings are unknown.

    Args:
        bench: bench of the part.
        predictors: functions that yield figures without values.
    """
    found, known = Expected(), known_of(bench)
    if known is not None:
        for of in predictors:
            found.add(with_range(of, known))
    return found


def with_range(predictor: Callable[[Known], Iterable[Figure]], known: Known) -> Iterator[Figure]:
    """Yield predicted figures with their ranges: each is predicted again with both ends of the assumptions."""
    ends = (predictor(replace(known, assumed=assumed)) for assumed in (LEAST, MOST))
    for figure, *others in zip(predictor(known), *ends, strict=True):
        values = [one.predicted for one in (figure, *others) if one.predicted is not None]
        yield replace(figure, low=min(values), high=max(values)) if values else figure


def known_of(bench: Bench) -> Known | None:
    """Return the basis of predictions for this device; None if its ceilings are unknown."""
    ceilings = bench.ceilings
    return None if ceilings is None else Known(bench.size, ceilings, bench.dtype, bench.card)
