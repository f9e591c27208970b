"""Profile a loaded model: its shape, the device's ceilings, step times."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from specbench.engine import Engine, linear_kind
from specbench.hardware import (
    FreeRows,
    ModelShape,
    Profile,
    Settings,
    StepPoint,
    base_context,
    datasheet,
    environment,
    free_ram_bytes,
    free_rows,
    gpus,
    knee,
)
from specbench.models import LoadedModel
from specbench.profiling.ceilings import measure_ceilings
from specbench.profiling.measure import SOME_TOKENS, Measurement, Say
from specbench.profiling.routing import ROUTED, with_routing
from specbench.profiling.shape import shape_of
from specbench.profiling.step_grid import within
from specbench.results import SWITCH

_TOLERANCE = 0.10
_CEILINGS = 0.05  # share of the time for measuring ceilings, once before the steps and once after them
_UNKNOWN_RAM = 2 << 30  # where the kernel does not report free memory


def measure_profile(loaded: LoadedModel, settings: Settings, say: Say) -> Profile:
    """Measure the cost of a step of ``loaded`` on its device.
    Raises:
        UsageError: contexts that the model does not support, or a model that the engine does not run.
        EnvironmentRefused: not enough memory, or an option that this device does not support.
    """
    for_ceilings = _CEILINGS * settings.seconds
    deadline = time.perf_counter() + settings.seconds - for_ceilings
    model = loaded.model
    shape, packed = _shape(model, settings)
    free_bytes = _free_bytes(model.device)
    if packed:
        free_bytes -= 2 * loaded.spec.weight_bytes  # the packed copies of two engines
    dense = model.device.type != "cuda" or settings.attention == "reference"
    cells, left_out = within(settings, shape, loaded.context, free_bytes, dense)
    say("measuring bandwidth and matrix products")
    ceilings = partial(measure_ceilings, model.device, model.dtype, linear_kind(model), for_ceilings, say)
    measured = ceilings()
    say(f"trying {len(cells)} steps of at most {settings.rows[-1]} rows")
    measurement = Measurement(
        model,
        shape,
        measured.ceilings,
        deadline,
        say,
        backend=settings.attention,
        graphs=SWITCH[settings.graphs],
        compile=settings.compile,
        native=SWITCH[settings.native],
    )
    points, no_time = measurement.run(cells)
    if not measurement.interrupted:
        measured = measured.or_better(ceilings())  # another process may have read memory the first time
    # After measuring: the device's clocks then are closer to those of the measurement.
    captured = environment.capture(str(model.device))
    gpu = gpus.identify(captured.device.name, captured.device.memory_bytes) if captured.device.kind == "cuda" else None
    base = base_context([cell.context for cell in cells])
    return Profile(
        model=loaded.spec,
        environment=captured.model_dump(mode="json"),
        settings=settings,
        engine=measurement.report,
        shape=shape,
        measured=measured,
        gpu=gpu.name if gpu else None,
        datasheet=datasheet(gpu, loaded.spec.dtype) if gpu else None,
        base_context=base,
        knee=knee(shape, measured.ceilings, base),
        points=points,
        free_rows=_free_rows(points),
        left_out=[*left_out, *no_time],
        interrupted=measurement.interrupted,
    )


def _shape(model: Any, settings: Settings) -> tuple[ModelShape, bool]:
    """The model's shape, and whether engines copy its weights, from an engine with the smallest cache."""
    engine = Engine(
        model, capacity=1, max_rows=2, graphs=False, backend=settings.attention, native=SWITCH[settings.native]
    )
    try:
        with engine.detached():
            vocab = min(SOME_TOKENS, int(model.get_input_embeddings().weight.shape[0]))
            ids = random.Random(0).choices(range(vocab), k=ROUTED)  # as the steps' tokens are sampled
            return with_routing(shape_of(engine), model, ids), engine.code.linears == "onednn"
    finally:
        engine.close()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_ram_bytes() or _UNKNOWN_RAM


def _free_rows(points: Sequence[StepPoint]) -> list[FreeRows]:
    """The budget of free rows at every context where one slot was measured with more than one row."""
    found = []
    for context in sorted({point.context for point in points}):
        curve = {p.rows: p.seconds for p in points if (p.context, p.slots) == (context, 1)}
        if 1 in curve and len(curve) > 1:
            rows = free_rows(curve, _TOLERANCE)
            below = min((count for count in curve if count > rows), default=None)
            found.append(FreeRows(context=context, rows=rows, below=below, tolerance=_TOLERANCE))
    return found
