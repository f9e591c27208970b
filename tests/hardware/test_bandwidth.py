"""The probe of memory: what it reads, what it takes, and where it is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import asserting
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
        # Whoever else is on these cores may be there for a while.
        several = max(probe.read(min(2, usable_cores()), readings=1) for _ in range(12))
    # Any machine that runs this reads half a gigabyte a second, and none a petabyte.
    assert 5e8 < one < 1e15
    assert one / 2 < several < 1e15


@pytest.mark.usefixtures("built")
def test_a_reading_is_the_median_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([5.0, 1.0, 3.0, 2.0, 4.0, 7.0, 6.0, 8.0])
    with BandwidthProbe(1 << 20) as probe:
        library = type("Library", (), {"probe_read": lambda self, *_: next(found), "probe_close": lambda *_: None})
        monkeypatch.setattr(probe, "_library", library())
        assert probe.read(1) == 3.0
        assert probe.read(1, readings=3) == 7.0


@pytest.mark.usefixtures("built")
def test_what_is_read_to_settle_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, read = [10.0], []

    def probe_read(*_: object) -> float:
        read.append(now[0])
        now[0] += 0.25
        return 1.0 if now[0] <= 11.0 else 9.0

    monkeypatch.setattr("specbench.hardware.bandwidth.time.monotonic", lambda: now[0])
    with BandwidthProbe(1 << 20) as probe:
        library = type("Library", (), {"probe_read": probe_read, "probe_close": lambda *_: None})
        monkeypatch.setattr(probe, "_library", library())
        assert probe.read(1, settle_s=1.0) == 9.0
        assert len(read) == 4 + 5
        library.probe_read = lambda *_: 0.0  # type: ignore[attr-defined]
        with pytest.raises(EnvironmentRefused, check=wording):
            probe.read(1, settle_s=1.0)


@pytest.mark.usefixtures("built")
def test_its_memory_is_there_and_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", RESIDENT], check=True, capture_output=True, text=True).stdout
    there, behind = map(int, said.split())
    assert there > 0.9 * SMALL, "pages that nobody has written may all be one"
    assert behind < 0.1 * SMALL
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


@pytest.mark.usefixtures("built")
def test_where_threads_cannot_be_had_it_is_refused_and_those_that_there_are_end(tmp_path: Path) -> None:
    def short_of_threads() -> int:
        def threads() -> int:
            return len(list(Path("/proc/self/task").iterdir()))

        with BandwidthProbe(1 << 20) as probe:
            before = threads()  # libraries have some of their own
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            room = taken + (40 << 20)  # for some of their stacks
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
            with pytest.raises(EnvironmentRefused, match="200 threads"):
                probe.read(200, readings=1)
            end = time.monotonic() + 10  # one that has been waited for is there a moment longer
            while threads() > before and time.monotonic() < end:
                time.sleep(0.01)
            return threads() - before

    child = asserting.call(tmp_path, short_of_threads).wait(20)
    assert child.code == 0, child.err


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EnvironmentRefused, check=wording):
        BandwidthProbe(1 << 20)
