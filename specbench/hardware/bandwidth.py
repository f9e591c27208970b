"""Measure this machine's current memory read bandwidth with a given number of threads.

A step of few rows reads every weight, so it takes at least the weights' bytes divided by the bandwidth. Bandwidth is
shared with other processes and varies, so it is measured close in time to the steps that it is compared with.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType

from specbench.common import EnvironmentRefused, Native
from specbench.hardware.limits import free_ram_bytes

#: Bytes of one reading: more than any cache holds.
PROBED = 512 << 20
_READINGS = 5
_SPARE = 2  # free memory needed, in buffer sizes, so that the measured process does not run short of memory

_SOURCE = Native(Path(__file__).with_suffix(".cpp"), ("-pthread",))


class BandwidthProbe:
    """Read bandwidth probe with its own buffer of half a gigabyte; use it as a context manager.

    Args:
        say: is called with a line if the probe has to be built first.
    """

    def __init__(self, nbytes: int = PROBED, say: Callable[[str], None] = lambda line: None) -> None:
        library = _SOURCE.load(say)
        free = free_ram_bytes()
        # Checked first, because Linux overcommits memory and would kill a process when it writes to it.
        if free is not None and free < _SPARE * nbytes:
            raise EnvironmentRefused(f"no memory for a bandwidth probe of {nbytes >> 20} MiB")
        library.probe_open.restype = ctypes.c_void_p
        library.probe_open.argtypes = [ctypes.c_long]
        library.probe_close.argtypes = [ctypes.c_void_p]
        library.probe_read.restype = ctypes.c_double
        library.probe_read.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
        self._library, self._bytes = library, nbytes
        self._buffer: int | None = library.probe_open(nbytes)
        if not self._buffer:
            raise EnvironmentRefused(f"no memory for a bandwidth probe of {nbytes >> 20} MiB")

    def read(self, threads: int, readings: int = _READINGS, settle_s: float = 0.0) -> float:
        """Return bytes per second with ``threads`` threads: the median of several readings.

        Args:
            settle_s: seconds of warm-up readings. Idle cores of a virtual machine may share a physical core, and then
                have half the bandwidth for a fifth of a second.
        """
        assert self._buffer is not None, "the probe is closed"
        if threads < 1:
            raise ValueError(f"memory is read by at least 1 thread, not {threads}")
        until = time.monotonic() + settle_s
        while time.monotonic() < until and self._library.probe_read(self._buffer, self._bytes, threads):
            pass
        found: list[float] = [self._library.probe_read(self._buffer, self._bytes, threads) for _ in range(readings)]
        if not all(found):
            raise EnvironmentRefused(f"cannot start {threads} threads for a bandwidth probe")
        return median(found)

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer:
            self._library.probe_close(self._buffer)
            self._buffer = None

    def __enter__(self) -> BandwidthProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
