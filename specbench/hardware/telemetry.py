"""Measure the GPU's clocks, temperature and power during each request, through NVML.

NVML is queried when a request starts and when it ends, but not in between: polling would compete for the Python
interpreter. Energy and time lost to power or heat limits come from counters of the driver, which it updates every few
tens of milliseconds, so sums over many short requests are right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specbench.hardware.environment import throttle_faults
from specbench.results import GpuTrace


@dataclass(frozen=True)
class Snapshot:
    """State of a GPU at one time; None for a value that this GPU or driver does not report.

    Attributes:
        at_ns: time of a monotonic clock.
        energy_mj: energy in millijoules since the driver was loaded.
        faults: reasons that currently reduce the clocks, without harmless ones.
        lost_ns: reason -> time for which it has reduced the clocks since the driver was loaded.
    """

    at_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    energy_mj: int | None = None
    faults: tuple[str, ...] | None = None
    lost_ns: dict[str, int] = field(default_factory=dict)


class Nvml:
    """Keep NVML open for a GPU, so that a snapshot costs only its queries."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, uuid: str) -> Nvml | None:
        """Open the GPU with PyTorch's ``uuid``; None without nvidia-ml-py or an NVIDIA driver that knows the device."""
        try:
            import pynvml as nvml
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        try:
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            return None

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # harmless, since the run is over

    def look(self) -> Snapshot:
        """Take a snapshot."""
        nvml, ask = self._nvml, self._ask
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        lost = {
            "power cap": ask("nvmlDeviceGetViolationStatus", nvml.NVML_PERF_POLICY_POWER),
            "thermal slowdown": ask("nvmlDeviceGetViolationStatus", nvml.NVML_PERF_POLICY_THERMAL),
        }
        return Snapshot(
            at_ns=time.perf_counter_ns(),
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            energy_mj=ask("nvmlDeviceGetTotalEnergyConsumption"),
            faults=None if reasons is None else tuple(throttle_faults(reasons)),
            lost_ns={reason: int(status.violationTime) for reason, status in lost.items() if status is not None},
        )

    def _ask(self, query: str, *arguments: Any) -> Any:
        """Return the result of one query, or None if the GPU does not support it."""
        try:
            return getattr(self._nvml, query)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


@dataclass
class _Open:
    """A request that has started."""

    first: Snapshot
    energy_mj: float | None


class GpuMeter:
    """Measure each request's share of the GPU.

    The sequences in the slots change only when one starts or ends, and NVML is queried at both times. The energy in
    between is split evenly among the sequences, so the shares of all requests add up to the energy of the GPU.
    """

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look
        self._open: dict[int, _Open] = {}
        self._last: Snapshot | None = None

    def reset(self) -> None:
        """Drop requests that never ended because their segment failed."""
        self._open.clear()

    def begin(self, slot: int) -> None:
        """Start a request in a slot."""
        now = self._share()
        self._open[slot] = _Open(now, None if now.energy_mj is None else 0.0)

    def end(self, slot: int) -> GpuTrace:
        """End the request in a slot and return its trace."""
        now = self._share()
        request = self._open.pop(slot)
        first = request.first
        temperatures = [t for t in (first.temperature_c, now.temperature_c) if t is not None]
        spent, passed = _difference(now.energy_mj, first.energy_mj), now.at_ns - first.at_ns
        return GpuTrace(
            # At the end the GPU is still in its state under load; at the start it may have been idle.
            sm_clock_mhz=now.sm_clock_mhz,
            memory_clock_mhz=now.memory_clock_mhz,
            temperature_c=max(temperatures, default=None),
            energy_j=None if request.energy_mj is None else request.energy_mj / 1e3,
            power_w=None if spent is None or passed <= 0 else spent / 1e3 / (passed / 1e9),
            throttled=_throttled(first, now),
        )

    def _share(self) -> Snapshot:
        """Take a snapshot, and divide the energy since the last one among the open requests."""
        now = self._look()
        spent = _difference(now.energy_mj, self._last.energy_mj) if self._last else None
        for request in self._open.values():
            known = request.energy_mj is not None and spent is not None
            request.energy_mj = request.energy_mj + spent / len(self._open) if known else None  # type: ignore[operator]
        self._last = now
        return now


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None or now < before else now - before


def _throttled(first: Snapshot, last: Snapshot) -> list[str] | None:
    """Reasons that reduced the clocks in either snapshot or, by the driver's counters, in between; None if unknown."""
    counted = {reason: lost - first.lost_ns[reason] for reason, lost in last.lost_ns.items() if reason in first.lost_ns}
    if first.faults is None and last.faults is None and not counted:
        return None
    seen = [*(first.faults or ()), *(last.faults or ()), *(reason for reason, lost in counted.items() if lost > 0)]
    return list(dict.fromkeys(seen))
