"""Measure a training's tokens, floating-point operations, hours, memory and energy, across interruptions."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.trainer_callback import ExportableState, TrainerCallback

from specbench.hardware import Nvml


class Cost(BaseModel):
    """Cost of the steps that produced the weights, without evaluations on held-out texts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tokens_seen: int = Field(
        ge=0, description="tokens through the model in training steps: prompts, answers and their noisy copies"
    )
    flops: float | None = Field(
        default=None,
        description="operations of all processes: counted by torch in the first step, extrapolated by tokens for the "
        "other steps; None with compiled attention (flex_attention), which torch does not count, and with on-policy "
        "answers, whose decoding is not counted",
    )
    hours: float = Field(
        ge=0, description="time of the steps and of decoding on-policy answers, without loading data and saving"
    )
    peak_memory_bytes: int | None = Field(
        default=None, description="peak of the first process: its tensors on a GPU, the whole process on a CPU"
    )
    energy_j: float | None = Field(
        default=None, description="energy of the first process's GPU; None on a CPU, or if a step's was not measured"
    )
    device: str = Field(default="", description="device of each process")
    processes: int = 1


class _Spent(BaseModel):
    """Part of the cost that checkpoints hold."""

    model_config = ConfigDict(extra="ignore", strict=True)

    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    first_step_flops: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    peak_memory_bytes: int = Field(default=0, ge=0)
    energy_j: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class Meter(TrainerCallback, ExportableState):
    """Callback of transformers' Trainer that adds up the cost of steps and stores it in every checkpoint."""

    def __init__(self, model: Any, processes: int = 1, gpu: Callable[[torch.device], Nvml | None] | None = None):
        self._device = next(iter(model.parameters())).device
        self._processes = processes
        self._countable = not any(
            getattr(getattr(module, "config", None), "_attn_implementation", None) == "flex_attention"
            for module in model.modules()
        )
        self._gpu = (gpu or _open)(self._device)
        self._spent = _Spent()
        self._began = 0.0
        self._began_mj: int | None = None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"args": {}, "attributes": {"spent": self._spent.model_dump()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        kept = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        try:
            self._spent = _Spent.model_validate(kept["attributes"]["spent"])
        except (ValidationError, KeyError, TypeError):
            self._spent = _Spent()  # the checkpoint has no cost: that of its steps is lost
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began, self._began_mj = time.perf_counter(), self._energy_mj()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now_mj, spent = self._energy_mj(), self._spent
        known = spent.energy_j if spent.seconds else 0.0  # once one step's energy is missing, the sum stays unknown
        energy = None
        if known is not None and now_mj is not None and self._began_mj is not None:
            energy = known + (now_mj - self._began_mj) / 1e3
        self._spent = spent.model_copy(
            update={
                "seconds": spent.seconds + time.perf_counter() - self._began,
                "peak_memory_bytes": max(spent.peak_memory_bytes, peak_memory_bytes(self._device)),
                "energy_j": energy,
            }
        )

    @contextmanager
    def counting(self, step: int) -> Iterator[None]:
        """Count the operations within the ``with`` block if it belongs to the first step.

        Attention runs as plain products there: torch counts no fused kernel of a CPU, and before 2.13 it refuses a
        fused kernel of CUDA whose heads share keys.
        """
        if step or not self._countable:
            yield
            return
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            yield
        counted = (self._spent.first_step_flops or 0.0) + counter.get_total_flops()
        self._spent = self._spent.model_copy(update={"first_step_flops": counted})

    def cost(self, steps: int, tokens: Callable[[int], int]) -> Cost:
        """Return the cost of the first ``steps`` steps.

        Args:
            tokens: steps -> tokens that they brought through the model, over all processes.
        """
        spent, seen = self._spent, tokens(steps)
        first = spent.first_step_flops
        return Cost(
            tokens_seen=seen,
            flops=None if first is None or not seen else first * self._processes * seen / tokens(1),
            hours=spent.seconds / 3600,
            peak_memory_bytes=spent.peak_memory_bytes or None,
            energy_j=spent.energy_j,
            device=torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else self._device.type,
            processes=self._processes,
        )

    def _energy_mj(self) -> int | None:
        return None if self._gpu is None else self._gpu.look().energy_mj


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _open(device: torch.device) -> Nvml | None:
    if device.type != "cuda":
        return None
    return Nvml.open(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
