"""Is this machine quiet: it is watched for some seconds, and held to the limits that runs are held to afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from specbench.analysis import LEAST_READINGS, find_disturbance, threshold_text
from specbench.common import EnvironmentRefused
from specbench.hardware import BandwidthProbe, MachineSample, sample_delta, sample_machine, usable_cores
from specbench.profiling.doctor import Check
from specbench.results import Bandwidth, Disturbed, MachineInterval, Reading, Watch

_APART_S = 1.0
_LEAST_S = 0.3  # shorter intervals between two samples are too coarse
#: Checks that show whether other processes disturb a run; if neither is measured, whether the machine is quiet is
#: unknown.
OTHER_WORK = ("other processes", "other load")
_SETTLE_S = 0.4  # memory is read right after a sleep, when its threads are slow to start

# Per figure: its name in doctor, and what to do if it passes its limit.
_NAMED = {
    "others_share": ("other processes", "stop other work; timings will be noisy"),
    "stolen_share": ("steal", "take a machine with cores of its own; timings will be noisy"),
    "load_share": ("other load", "stop other work; timings will be noisy"),
    "clock_fall": ("clocks", "let it cool, or fix its clock"),
    "slowed": ("heat", "let it cool"),
    "bandwidth_spread": ("memory bandwidth", "stop other programs that read memory, in other virtual machines too"),
}
_UNMEASURED = {
    "others_share": "not measured: this machine does not report the time of other processes",
    "stolen_share": "not measured: this machine does not report the time that a hypervisor takes",
    "clock_fall": "not measured: this machine does not report the clocks of its cores",
    "slowed": "not measured: this machine does not report how often heat slows its cores",
}


class Probe(Protocol):
    """Reader of memory: :class:`specbench.hardware.bandwidth.BandwidthProbe`, or a test's own."""

    def read(self, threads: int, *, settle_s: float) -> float: ...
    def close(self) -> None: ...


def quiet_checks(
    seconds: float,
    say: Callable[[str], None] = lambda line: None,
    *,
    on_gpu: bool = False,
    look: Callable[[], MachineSample] = sample_machine,
    opened: Callable[[Callable[[str], None]], Probe] = lambda say: BandwidthProbe(say=say),
    sleep: Callable[[float], None] = time.sleep,
) -> list[Check]:
    """Watch the machine and return a check for each figure; a figure that this machine does not report is "unknown".

    Args:
        seconds: to watch, :data:`specbench.analysis.noise.LEAST_WATCHED_S` or more.
        say: takes a line where the probe of memory has to be built first.
        on_gpu: runs will be on a GPU, so that the cores only launch and memory's bandwidth is the GPU's own.
        look, opened, sleep: the kernel's counters, the probe and the waiting; replaced in tests.
    """
    refused, probe = "", None
    if not on_gpu:
        try:
            probe = opened(say)
        except EnvironmentRefused as error:
            refused = str(error)
    try:
        watch, bandwidth = _watched(seconds, look, probe, sleep)
    except EnvironmentRefused as error:  # no threads for a reading
        refused, (watch, bandwidth) = str(error), _watched(seconds, look, None, sleep)
    finally:
        if probe is not None:
            probe.close()
    found = find_disturbance([], on_gpu=on_gpu, watch=watch, bandwidth=bandwidth)
    return _checks(found, bandwidth, refused)


def _watched(
    seconds: float, look: Callable[[], MachineSample], probe: Probe | None, sleep: Callable[[float], None]
) -> tuple[Watch, Bandwidth]:
    """Sample the machine and read memory once a second, for at least ``seconds`` and :data:`LEAST_READINGS` samples.

    A reading's own CPU time counts as this process's.
    """
    threads = usable_cores()
    readings: list[Reading] = []
    looks: list[MachineInterval] = []
    first = last = look()
    while (left := seconds - (last.at_s - first.at_s)) > 0 or len(looks) < LEAST_READINGS:
        if probe is not None:
            speed = probe.read(threads, settle_s=_SETTLE_S)
            readings.append(Reading(segment=len(looks), threads=threads, bytes_per_s=speed))
        sleep(min(_APART_S, max(left, _LEAST_S)))
        now = look()
        if (one := sample_delta(last, now, len(looks))) is not None:
            looks.append(one)
            last = now
    return Watch(looks=looks), Bandwidth(readings=readings)


def _checks(found: Disturbed | None, bandwidth: Bandwidth, refused: str) -> list[Check]:
    made = []
    for field, (name, advice) in _NAMED.items():
        figure = getattr(found, field) if found else None
        if figure is None:
            unmeasured = f"not measured: {refused}" if field == "bandwidth_spread" and refused else ""
            if why := unmeasured or _UNMEASURED.get(field, ""):
                made.append(Check(name, "unknown", why))
            continue
        text = threshold_text(field, figure)
        if field == "bandwidth_spread":
            speeds = bandwidth.figures()
            ends = (speeds.low_bytes_per_s or 0.0) / 1e9, (speeds.high_bytes_per_s or 0.0) / 1e9
            text += f", {ends[0]:.1f} to {ends[1]:.1f} GB/s in {speeds.readings} readings"
        made.append(Check(name, "warn", text, advice) if figure.passed else Check(name, "ok", text))
    return made
