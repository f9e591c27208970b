"""What else the machine did during a run, sampled between segments: the content of ``watch.json``.

Values that the kernel does not report are None and never an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated

from pydantic import Field

from specbench.results.attachment import Attachment
from specbench.results.schema import Count, Record

_Cores = Annotated[float, Field(ge=0, le=1 << 20)]
_Seconds = Annotated[float, Field(gt=0, le=1e9)]


class MachineInterval(Record):
    """One sample: what happened since the previous sample. Figures in cores are averages over ``seconds``."""

    segment: Count = Field(
        description="the sample was taken before this segment; after the last segment, its number plus 1"
    )
    seconds: _Seconds
    cores: Annotated[int, Field(gt=0, le=1 << 20)] = Field(
        description="cores whose use the kernel reports: those that the run may use, or the host's in a container "
        "without its own"
    )
    usable: Annotated[int, Field(gt=0, le=1 << 20)] = Field(
        description="cores' worth of time that the run gets on these cores: fewer if its container has a quota"
    )
    own_cores: _Cores = Field(description="cores that the run used, with its threads and child processes")
    others_cores: _Cores | None = Field(description="cores that other processes and the kernel used")
    stolen_cores: _Cores | None = Field(description="cores that a hypervisor took while the machine had work")
    clock_mhz: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        description="clock of the fastest core at the sample, in MHz"
    )
    slowed: Count | None = Field(description="number of times that heat slowed a core down")
    load: Annotated[float, Field(ge=0, le=1e6)] | None = Field(description="load average of one minute at the sample")


class Watch(Record):
    """The samples of a run in order of time; a resumed run adds to them."""

    looks: list[MachineInterval] = Field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Total time of the samples, in seconds."""
        return sum(look.seconds for look in self.looks)

    def others_share(self) -> float | None:
        """Share of the run's cores that other processes took, not counting cores that a quota denies the run."""
        taken = [(None if look.others_cores is None else _beyond(look.others_cores, look), look) for look in self.looks]
        return _share([(cores, look.usable, look.seconds) for cores, look in taken])

    def stolen_share(self) -> float | None:
        """Share of the cores' time that a hypervisor took; None if the kernel does not report it."""
        return _share([(look.stolen_cores, look.cores, look.seconds) for look in self.looks])

    def load_share(self) -> float | None:
        """Median load average beyond the run's own cores, as a share of the usable cores.

        None if ``others_cores`` is known, which is better: a load average lags by a minute.
        """
        if any(look.others_cores is not None for look in self.looks):
            return None
        loads = [(look.load - look.own_cores, look) for look in self.looks if look.load is not None]
        return median(_beyond(load, look) / look.usable for load, look in loads) if loads else None

    def clocks_mhz(self) -> list[float]:
        """Clock of each sample that has one, in MHz."""
        return [look.clock_mhz for look in self.looks if look.clock_mhz is not None]

    def slowed(self) -> int | None:
        """Number of times that heat slowed a core down; None if the kernel does not count it."""
        known = [look.slowed for look in self.looks if look.slowed is not None]
        return sum(known) if known else None


WATCH = Attachment("watch.json", Watch)


def _beyond(cores: float, look: MachineInterval) -> float:
    """Cores taken by others, minus those that the run's quota would not have let it use anyway."""
    return max(0.0, cores - max(0, look.cores - look.usable))


def _share(taken: Sequence[tuple[float | None, int, float]]) -> float | None:
    """Share of the core time that was taken, from (cores taken, cores available, seconds)."""
    known = [(cores * seconds, there * seconds) for cores, there, seconds in taken if cores is not None]
    return sum(mine for mine, _ in known) / sum(there for _, there in known) if known else None
