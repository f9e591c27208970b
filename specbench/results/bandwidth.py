"""Bandwidth: what memory gave while a run on a CPU was measured, and the share of it that a method's forwards took.

A forward of few rows reads every weight, so decoding cannot be faster than memory, whose speed differs between machines
and, on a shared one, from minute to minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from specbench.results.attachment import Attachment
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import Count, Record
from specbench.results.summary_schema import BandwidthFigures, RunSummary

_Bytes = Annotated[float, Field(ge=1, le=1e18)]
_NAMED = 3  # methods beside the first that are told one by one
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class ForwardBytes(Record):
    """What a forward of one row has to read of a model, over the tokens in its cache.

    Given at some contexts. In between it is a straight line: a layer reads each cached token, or those of its window.
    """

    contexts: list[Count] = Field(min_length=1)
    nbytes: list[_Bytes] = Field(min_length=1)

    @model_validator(mode="after")
    def _lines_up(self) -> ForwardBytes:
        if len(self.contexts) != len(self.nbytes) or self.contexts != sorted(set(self.contexts)):
            raise ValueError("bytes belong to contexts that grow, one to each")
        return self

    def behind(self, context: float) -> float:
        """Bytes of a forward behind so many cached tokens."""
        return float(np.interp(context, self.contexts, self.nbytes))


class Reading(Record):
    """One reading of the probe."""

    segment: Count = Field(description="it was taken before this one; behind the last, the number of a next one")
    threads: Annotated[int, Field(gt=0, le=1 << 20)]
    bytes_per_s: _Bytes


class Bandwidth(Record):
    """The content of ``bandwidth.json``: readings in order, and by method label the bytes that a forward of its target
    reads.

    ``refused`` says why there are no readings; ``waited_s`` are the seconds that segments have waited (``--patience``).
    """

    forwards: dict[str, ForwardBytes] = Field(default_factory=dict)
    readings: list[Reading] = Field(default_factory=list)
    refused: str = ""
    waited_s: _Seconds = 0.0

    def low(self, share: float) -> bool:
        """Whether the last reading is below that share of the highest one."""
        speeds = [reading.bytes_per_s for reading in self.readings]
        return bool(speeds) and speeds[-1] < share * max(speeds)

    def figures(self) -> BandwidthFigures:
        """What a summary says of it."""
        if not self.readings:
            return BandwidthFigures(refused=self.refused)
        speeds = [reading.bytes_per_s for reading in self.readings]
        return BandwidthFigures(
            bytes_per_s=median(speeds),
            low_bytes_per_s=min(speeds),
            high_bytes_per_s=max(speeds),
            readings=len(speeds),
            threads=sorted({reading.threads for reading in self.readings}),
        )

    def share(self, label: str, records: Sequence[RequestRecord], *, shared: bool = False) -> float | None:
        """Bytes that a method's target forwards had to read, over its decode seconds, over the median bandwidth.

        None where sequences were stepped together: one forward then serves several of them, and weights that were read
        once would be counted for each.
        """
        forwards, seconds = sum(r.target_forwards for r in records), sum(r.decode_s for r in records)
        if shared or not self.readings or label not in self.forwards or not forwards or not seconds:
            return None
        read = forwards * self.forwards[label].behind(_mean_context(records, forwards))
        return read / seconds / median(reading.bytes_per_s for reading in self.readings)


BANDWIDTH = Attachment("bandwidth.json", Bandwidth)


def _mean_context(records: Sequence[RequestRecord], forwards: int) -> float:
    """Cached tokens that a target forward after the prefill was behind, in the mean over all of them."""
    cached = 0.0
    for record in records:
        # The prompt, and what the forwards before this one kept: the last token of these is the next one's first row.
        # Of an engine that tells its forwards in all, its arrivals stand for them.
        lengths = record.accepted_lengths
        kept = sum(accumulate(lengths[:-1], initial=record.first_tokens - 1)) / len(lengths) if lengths else 0.0
        cached += (record.prompt_tokens + kept) * record.target_forwards
    return cached / forwards


def bandwidth_line(summary: RunSummary) -> str:
    """The line, as "memory 22.1 GB/s (20.3 to 23.0, 2 threads); ar reads 0.81 of it, pld 0.66"; empty of runs without.

    Where memory could not be read it says why.
    """
    found = summary.bandwidth
    if found is None:
        return ""
    if found.bytes_per_s is None:
        return f"memory bandwidth was not read: {found.refused}" if found.refused else ""
    shares = [(row.method, row.bandwidth_share) for row in summary.rows if row.bandwidth_share is not None]
    told = [f"{method} {share:.2f}" for method, share in shares[1:]]
    if len(told) > _NAMED:
        others = [share for _, share in shares[1:]]
        told = [f"the others {min(others):.2f} to {max(others):.2f}"]
    parts = [f"memory {_range(found)}"]
    if shares:
        method, share = shares[0]
        parts.append(", ".join([f"{method} reads {share:.2f} of it", *told]))
    return "; ".join(parts)


def _range(found: BandwidthFigures) -> str:
    threads = " or ".join(map(str, found.threads)) + (" thread" if found.threads == [1] else " threads")
    middle, low, high = (
        "–" if speed is None else f"{speed / 1e9:.1f}"
        for speed in (found.bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s)
    )
    within = [f"{low} to {high}"] if found.readings > 1 else []
    return f"{middle} GB/s ({', '.join([*within, *([threads] if found.threads else [])])})"
