"""``doctor --watch``: a figure beyond its limit is named with what to do, and one that is not measured is "unknown"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specbench.common.errors import EnvironmentRefused
from specbench.hardware.monitor import MachineSample
from specbench.profiling.doctor import Check
from specbench.profiling.quiet import quiet_checks


class Machine:
    """Two cores, of which others take a share; memory whose readings come in turn."""

    def __init__(
        self, others: float | None = 0.01, stolen: float = 0.0, clock: Callable[[float], float] = lambda now: 2300.0,
        heat: float = 0.0, load: float | None = 0.5, memory: tuple[float, ...] = (30.0,), fails: int | None = None,
    ) -> None:  # fmt: skip
        self.now, self.taken, self.open = 100.0, 0, False
        self.others, self.stolen, self.clock, self.heat = others, stolen, clock, heat
        self.load, self.memory, self.fails = load, memory, fails

    def look(self) -> MachineSample:
        busy = None if self.others is None else 2 * self.others * self.now
        stolen = None if self.others is None else 2 * self.stolen * self.now
        slowed = int(self.heat * self.now)
        return MachineSample(self.now, 2, 2, 0.0, busy, stolen, self.clock(self.now), slowed, self.load)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def opened(self, say: Any) -> Machine:
        if self.fails == 0:
            raise EnvironmentRefused("no C++ compiler was found")
        self.open = True
        return self

    def read(self, threads: int, *, settle_s: float) -> float:
        assert settle_s >= 0.2, "every reading comes after a sleep"
        self.taken += 1
        if self.taken == self.fails:
            raise EnvironmentRefused("no 2 threads for a bandwidth probe")
        self.now += 0.25
        return 1e9 * self.memory[self.taken % len(self.memory)]

    def close(self) -> None:
        self.open = False


def checks(machine: Machine, **more: Any) -> dict[str, Check]:
    found = quiet_checks(10.0, look=machine.look, opened=machine.opened, sleep=machine.sleep, **more)
    assert not machine.open
    assert machine.now == pytest.approx(110.0, abs=1.3), "it is watched for so long and no longer"
    assert [one for one in found if bool(one.advice) != (one.status in ("warn", "fail"))] == []
    return {one.name: one for one in found}


def loud(found: dict[str, Check]) -> dict[str, str]:
    return {name: one.detail for name, one in found.items() if one.status not in ("ok", "unknown")}


def test_a_quiet_machine_says_what_was_seen() -> None:
    found = checks(Machine(memory=(30.0, 29.0, 31.0)))
    assert loud(found) == {}
    assert list(found) == ["other processes", "steal", "clocks", "heat", "memory bandwidth"]
    assert found["other processes"].detail == "other processes took 1% of the cores (limit 5%)"
    assert found["memory bandwidth"].detail.endswith("(limit 30%), 29.0 to 31.0 GB/s in 8 readings")


@pytest.mark.parametrize(
    ("machine", "result"),
    [
        (Machine(others=0.31), {"other processes": "other processes took 31% of the cores (limit 5%)"}),
        (Machine(stolen=0.08), {"steal": "a hypervisor took 8% of the cores for other machines (limit 5%)"}),
        (Machine(clock=lambda now: 3000 - 150 * (now - 100)), {"clocks": "the cores' clock fell by 26% (limit 15%)"}),
        (Machine(heat=0.2), {"heat": "heat slowed the cores 2 times (limit 0)"}),
        (Machine(others=None, load=3.0), {"other load": "the load of other work was 150% of the cores (limit 50%)"}),
        (
            Machine(memory=(30.0, 18.0)),
            {"memory bandwidth": "memory bandwidth varied by 50% (limit 30%), 18.0 to 30.0 GB/s in 8 readings"},
        ),
    ],
)
def test_each_figure_alone_makes_it_loud(machine: Machine, result: dict[str, str]) -> None:
    assert loud(checks(machine)) == result


@pytest.mark.parametrize(
    ("fails", "why"), [(0, "no C++ compiler was found"), (3, "no 2 threads for a bandwidth probe")]
)
def test_without_a_probe_the_rest_is_watched(fails: int, why: str) -> None:
    machine = Machine(others=0.31, fails=fails)
    found = quiet_checks(10.0, look=machine.look, opened=machine.opened, sleep=machine.sleep)
    assert [one.name for one in found if one.status == "warn"] == ["other processes"]
    assert found[-1] == Check("memory bandwidth", "unknown", f"not measured: {why}")


@pytest.mark.parametrize("seconds", [5.0, 5.5, 7.3, 12.0])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_any_number_of_seconds_measures_other_processes(seconds: float, on_gpu: bool) -> None:
    machine = Machine(others=0.6)
    found = quiet_checks(seconds, look=machine.look, opened=machine.opened, sleep=machine.sleep, on_gpu=on_gpu)
    by_name = {one.name: one for one in found}
    assert by_name["other processes"].status == "warn"
    assert "60%" in by_name["other processes"].detail
    assert "unknown" not in {one.status for one in found}


def test_a_figure_that_is_not_measured_is_not_ok() -> None:
    found = checks(Machine(others=None, load=None))
    assert found["other processes"].status == found["steal"].status == "unknown"


def test_with_a_gpu_the_cores_only_launch_and_memory_is_not_read() -> None:
    machine = Machine(others=0.31)
    found = checks(machine, on_gpu=True)
    assert loud(found) == {}
    assert found["other processes"].detail.endswith("(limit 50%)")
    assert machine.taken == 0
    assert "memory bandwidth" not in found
