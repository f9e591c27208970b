"""Fake NVML: a machine with one GPU, which answers as it is told to."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace
from typing import Any

UUID = "11111111-2222-3333-4444-555555555555"
REASONS = 0x1 | 0x4 | 0x40  # idle, power cap, hardware thermal slowdown


class FakeNvml(ModuleType):
    """NVML with one GPU; queries in ``silent`` are not supported by it."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open, self.silent = 0, set[str]()
        self.reasons, self.pids, self.busy = REASONS, [os.getpid()], 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": lambda kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda sensor: 61,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: 5_000_000,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda: [SimpleNamespace(pid=pid) for pid in self.pids],
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=self.busy),
            "nvmlDeviceGetViolationStatus": lambda policy: SimpleNamespace(violationTime=100 + policy, referenceTime=9),
        }

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's own names)
        if "nvmlInit" in self.silent:
            raise self.NVMLError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != f"GPU-{UUID}":
            raise self.NVMLError("not found")
        return "handle"

    def __getattr__(self, query: str) -> Any:
        def ask(handle: str, *arguments: Any) -> Any:
            assert handle == "handle"
            if query in self.silent:
                raise self.NVMLError("not supported")
            return self.answers[query](*arguments)

        return ask
