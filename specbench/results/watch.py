"""Watch: what else the machine did while a run decoded, in looks between its stretches: the content of ``watch.json``.

What a kernel does not tell is None and nowhere an error.
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


class Look(Record):
    """What happened since the look before it; figures in cores are averages over these seconds."""

    segment: Count = Field(description="it was taken before this one; behind the last, the number of a next one")
    seconds: _Seconds
    cores: Annotated[int, Field(gt=0, le=1 << 20)] = Field(
        description="that the run may use, of which the kernel counts; in a container with none of its own, the host's"
    )
    usable: Annotated[int, Field(gt=0, le=1 << 20)] = Field(
        description="of these, the time that it gets on them: less by a quota of its container"
    )
    own_cores: _Cores = Field(description="that the run took, its threads and its child processes together")
    others_cores: _Cores | None = Field(description="that other processes took, and the kernel for itself")
    stolen_cores: _Cores | None = Field(description="that a hypervisor took while there was work here")
    clock_mhz: Annotated[float, Field(gt=0, le=1e6)] | None = Field(description="of the fastest core, at the look")
    slowed: Count | None = Field(description="times that heat slowed a core down")
    load: Annotated[float, Field(ge=0, le=1e6)] | None = Field(description="the load average of a minute, at the look")


class Watch(Record):
    """The looks of a run, in the order in which they were taken; a resumed run adds to them."""

    looks: list[Look] = Field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        return sum(look.seconds for look in self.looks)

    def others_share(self) -> float | None:
        """Share of the run's cores that other processes took beyond what a quota leaves them; None if unknown."""
        taken = [(None if look.others_cores is None else _beyond(look.others_cores, look), look) for look in self.looks]
        return _share([(cores, look.usable, look.seconds) for cores, look in taken])

    def stolen_share(self) -> float | None:
        """Share of the cores' time that a hypervisor took; None where the kernel does not tell."""
        return _share([(look.stolen_cores, look.cores, look.seconds) for look in self.looks])

    def load_share(self) -> float | None:
        """The median load average beyond what the run itself kept busy, as a share of the cores.

        None where the processes' time is known: a load average lags by a minute.
        """
        if any(look.others_cores is not None for look in self.looks):
            return None
        loads = [(look.load - look.own_cores, look) for look in self.looks if look.load is not None]
        return median(_beyond(load, look) / look.usable for load, look in loads) if loads else None

    def clocks_mhz(self) -> list[float]:
        """The clock at each look that knew it."""
        return [look.clock_mhz for look in self.looks if look.clock_mhz is not None]

    def slowed(self) -> int | None:
        """How often heat slowed a core down; None where the kernel does not count it."""
        known = [look.slowed for look in self.looks if look.slowed is not None]
        return sum(known) if known else None


WATCH = Attachment("watch.json", Watch)


def _beyond(cores: float, look: Look) -> float:
    """Cores that somebody took beyond those that the run could not have used anyway."""
    return max(0.0, cores - max(0, look.cores - look.usable))


def _share(taken: Sequence[tuple[float | None, int, float]]) -> float | None:
    """Of (cores taken, cores there, seconds): how much was taken of all of it."""
    known = [(cores * seconds, there * seconds) for cores, there, seconds in taken if cores is not None]
    return sum(mine for mine, _ in known) / sum(there for _, there in known) if known else None
