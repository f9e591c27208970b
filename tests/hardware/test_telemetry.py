"""Queries to NVML and the results made from them, with a fake GPU that gives fixed values."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from support.asserting import known
from support.processes import UUID, FakeNvml

from specbench.hardware.telemetry import GpuMeter, Nvml, Snapshot


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_look_asks_for_everything_and_leaves_the_device_open(nvml: FakeNvml) -> None:
    gpu = known(Nvml.open(UUID))
    first, second = gpu.look(), gpu.look()
    assert nvml.open == 1
    assert second.at_ns > first.at_ns
    assert first == Snapshot(
        at_ns=first.at_ns, sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=61, energy_mj=5_000_000,
        faults=("power cap", "hardware thermal slowdown"), lost_ns={"power cap": 100, "thermal slowdown": 101},
    )  # fmt: skip
    gpu.close()
    assert nvml.open == 0


# ------------------------------------------------------------------ what one request had

QUIET = Snapshot(at_ns=0, sm_clock_mhz=210, memory_clock_mhz=3201, temperature_c=70, energy_mj=1000, faults=())


def over(first: Snapshot, last: Snapshot) -> Any:
    """The trace of a request that saw these two."""
    looks = iter([first, last])
    meter = GpuMeter(lambda: next(looks))
    meter.begin(0)
    return meter.end(0)


def test_a_request_has_the_clocks_of_its_end_the_higher_temperature_and_the_energy_between() -> None:
    trace = over(QUIET, replace(QUIET, at_ns=2_000_000_000, sm_clock_mhz=1980, temperature_c=64, energy_mj=901_000))
    assert trace.model_dump() == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_c": 70,
        "energy_j": 900.0, "power_w": 450.0, "throttled": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"energy_mj": None}, {"energy_mj": 999}],  # no longer reported; counted from 0 again after the driver was reloaded
)
def test_energy_that_is_not_known_is_none(change: dict[str, Any]) -> None:
    trace = over(QUIET, replace(QUIET, at_ns=1, **change))
    assert (trace.energy_j, trace.power_w) == (None, None)
    assert over(replace(QUIET, energy_mj=None), replace(QUIET, at_ns=1)).energy_j is None


@pytest.mark.parametrize(
    ("first", "last", "throttled"),
    [
        ({}, {}, []),
        ({"faults": ("power cap",)}, {}, ["power cap"]),
        ({}, {"faults": ("hardware slowdown",)}, ["hardware slowdown"]),
        # Neither look has seen it, but the driver has counted it.
        ({"lost_ns": {"thermal slowdown": 5}}, {"lost_ns": {"thermal slowdown": 6}}, ["thermal slowdown"]),
        ({"lost_ns": {"thermal slowdown": 5}}, {"lost_ns": {"thermal slowdown": 5}}, []),
        ({"lost_ns": {}}, {"lost_ns": {"power cap": 5}}, []),
        ({"faults": ("power cap",), "lost_ns": {"power cap": 5}}, {"lost_ns": {"power cap": 6}}, ["power cap"]),
        ({"faults": None}, {"faults": None}, None),
        ({"faults": None, "lost_ns": {"power cap": 5}}, {"faults": None, "lost_ns": {"power cap": 5}}, []),
    ],
)
def test_throttled_at_its_start_its_end_or_between(
    first: dict[str, Any], last: dict[str, Any], throttled: list[str] | None
) -> None:
    assert over(replace(QUIET, **first), replace(QUIET, at_ns=1, **last)).throttled == throttled
