"""The probe of memory: what it reads, what it takes, and where it is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.hardware import bandwidth
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.hardware.limits import usable_cores

SMALL = 64 << 20


@pytest.fixture
def built() -> None:
    """The probe's library, built where it can be."""
    try:
        bandwidth._SOURCE.load()
    except EnvironmentRefused as refused:
        pytest.skip(str(refused))


# In a process of its own: one that has run other tests may have as much memory that it gave back to itself alone.
RESIDENT = f"""
import resource
from pathlib import Path
from specbench.hardware.bandwidth import BandwidthProbe

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

with BandwidthProbe(1 << 12) as probe:  # what is loaded for the first one
    probe.read(1)
before = resident()
with BandwidthProbe({SMALL}) as probe:
    print(resident() - before)
print(resident() - before)
"""


@pytest.mark.usefixtures("built")
def test_it_reads_at_the_speed_of_some_memory_and_more_threads_are_not_half_as_fast() -> None:
    with BandwidthProbe(SMALL) as probe:
        one = probe.read(1)
        # Other processes may keep these cores busy for a while.
        several = max(probe.read(min(2, usable_cores()), readings=1) for _ in range(12))
    # Any machine that runs this reads half a gigabyte a second, and none a petabyte.
    assert 5e8 < one < 1e15
    assert one / 2 < several < 1e15


@pytest.mark.usefixtures("built")
def test_its_memory_is_there_and_given_back() -> None:
    printed = subprocess.run([sys.executable, "-c", RESIDENT], check=True, capture_output=True, text=True).stdout
    there, left = map(int, printed.split())
    assert there > 0.9 * SMALL, "pages that were never written may all share one page"
    assert left < 0.1 * SMALL
    with BandwidthProbe(1 << 20) as probe:
        probe.read(1)
    probe.close()  # a second time it is nothing
    with pytest.raises(AssertionError, check=wording):
        probe.read(1)
    with BandwidthProbe(1 << 20) as probe, pytest.raises(ValueError, check=wording):
        probe.read(0)


@pytest.mark.usefixtures("built")
def test_without_the_memory_it_is_refused_and_no_process_is_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentRefused, check=wording):
        BandwidthProbe(1 << 60)
    monkeypatch.setattr(bandwidth, "free_ram_bytes", lambda: 2 * SMALL - 1)
    with pytest.raises(EnvironmentRefused, check=wording):
        BandwidthProbe(SMALL)
    monkeypatch.setattr(bandwidth, "free_ram_bytes", lambda: None)  # the kernel does not tell
    BandwidthProbe(1 << 20).close()
    with pytest.raises(EnvironmentRefused, check=wording):
        BandwidthProbe(1 << 60)
