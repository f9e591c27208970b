"""What this machine reads from memory in a second, now and with so many threads.

A step of few rows reads every weight, so it takes at least their bytes over this figure. Bandwidth is shared with other
users and varies, so it is read together with what it is compared with.
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

#: Bytes that are read at a time: more than any cache holds.
PROBED = 512 << 20
_READINGS = 5
_SPARE = 2  # so many times the buffer has to be free: what is being measured shall not be short of memory for it

_SOURCE = Native(Path(__file__).with_suffix(".cpp"), ("-pthread",))


class BandwidthProbe:
    """Reads a buffer of its own; use it as a context manager, since that is half a gigabyte.

    Args:
        say: takes a line where the probe has to be built first.
    """

    def __init__(self, nbytes: int = PROBED, say: Callable[[str], None] = lambda line: None) -> None:
        library = _SOURCE.load(say)
        free = free_ram_bytes()
        # Asked beforehand: Linux gives memory that it has not, and ends whoever writes to it.
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
        """Bytes per second with so many threads: the median of some readings.

        Args:
            threads: to read with, at least one.
            settle_s: seconds to read beforehand, uncounted. Cores of a virtual machine that were idle may have been put
                together, and give half for a fifth of a second.
        """
        assert self._buffer is not None, "the probe is closed"
        if threads < 1:
            raise ValueError(f"memory is read by one thread at least, not by {threads}")
        until = time.monotonic() + settle_s
        while time.monotonic() < until and self._library.probe_read(self._buffer, self._bytes, threads):
            pass
        found: list[float] = [self._library.probe_read(self._buffer, self._bytes, threads) for _ in range(readings)]
        if not all(found):
            raise EnvironmentRefused(f"no {threads} threads for a bandwidth probe")
        return median(found)

    def close(self) -> None:
        """Gives the memory back."""
        if self._buffer:
            self._library.probe_close(self._buffer)
            self._buffer = None

    def __enter__(self) -> BandwidthProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
