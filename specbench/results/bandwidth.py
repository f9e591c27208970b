"""Memory bandwidth measured during a run on a CPU, and the share of it that a method's forwards used.

A forward of few rows reads every weight, so memory bandwidth limits decoding. It differs between machines and, on a
shared machine, from minute to minute.
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
from specbench.results.schema import Count, Figure, Record
from specbench.results.summary_schema import BandwidthFigures, RunSummary

_Bytes = Annotated[float, Field(ge=1, le=1e18)]
_NAMED = 3  # methods after the first whose shares are printed one by one
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class ForwardBytes(Record):
    """Bytes that a forward reads (weights and KV cache), at several context lengths in cached tokens.

    Values in between are interpolated linearly: a layer reads all cached tokens, or those in its window.
    """

    contexts: list[Count] = Field(min_length=1)
    nbytes: list[_Bytes] = Field(min_length=1, description="of one row, at each of the contexts")
    expert_bytes: dict[Count, Figure] = Field(
        default_factory=dict,
        description="rows of a forward -> bytes of the experts that it reads and one row does not; empty without "
        "experts, or if they were not counted",
    )

    @model_validator(mode="after")
    def _lines_up(self) -> ForwardBytes:
        if len(self.contexts) != len(self.nbytes) or self.contexts != sorted(set(self.contexts)):
            raise ValueError("contexts have to increase, and nbytes needs one value for each")
        return self

    def read(self, context: float, rows: float = 1.0) -> float:
        """Bytes that a forward of ``rows`` rows reads when ``context`` tokens are cached.

        Of further rows only the experts are counted; embedding and cache are negligible next to the weights.
        """
        counted = sorted(self.expert_bytes)
        experts = np.interp(rows, counted, [self.expert_bytes[each] for each in counted]) if counted else 0.0
        return float(np.interp(context, self.contexts, self.nbytes) + experts)


class Reading(Record):
    """One reading of the probe."""

    segment: Count = Field(
        description="the reading was taken before this segment; after the last segment, its number plus 1"
    )
    threads: Annotated[int, Field(gt=0, le=1 << 20)]
    bytes_per_s: _Bytes


class Bandwidth(Record):
    """Content of ``bandwidth.json``: readings in order, and by method label the bytes that a target forward reads.

    ``refused`` is the reason if there are no readings; ``waited_s`` is the time that segments waited for memory to
    recover (``--patience``).
    """

    forwards: dict[str, ForwardBytes] = Field(default_factory=dict)
    readings: list[Reading] = Field(default_factory=list)
    refused: str = ""
    waited_s: _Seconds = 0.0

    def low(self, share: float) -> bool:
        """Whether the last reading is below ``share`` of the highest one."""
        speeds = [reading.bytes_per_s for reading in self.readings]
        return bool(speeds) and speeds[-1] < share * max(speeds)

    def figures(self) -> BandwidthFigures:
        """Return the figures for ``summary.json``."""
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
        """Bytes that a method's target forwards had to read per decode second, as a share of the median bandwidth.

        None if sequences were stepped together (``shared``): one forward then serves several sequences, and its
        weights would be counted once for each.
        """
        forwards, seconds = sum(r.target_forwards for r in records), sum(r.decode_s for r in records)
        if shared or not self.readings or label not in self.forwards or not forwards or not seconds:
            return None
        rows = max(1.0, sum(r.tree_rows for r in records) / forwards)
        read = forwards * self.forwards[label].read(_mean_context(records, forwards), rows)
        return read / seconds / median(reading.bytes_per_s for reading in self.readings)


BANDWIDTH = Attachment("bandwidth.json", Bandwidth)


def _mean_context(records: Sequence[RequestRecord], forwards: int) -> float:
    """Mean number of cached tokens over all target forwards after the prefill."""
    cached = 0.0
    for record in records:
        # Cached are the prompt and the tokens kept so far, except the last one: it is the first row of the next
        # forward. For an engine that does not report each forward, the arrivals of tokens stand in for them.
        lengths = record.accepted_lengths
        kept = sum(accumulate(lengths[:-1], initial=record.first_tokens - 1)) / len(lengths) if lengths else 0.0
        cached += (record.prompt_tokens + kept) * record.target_forwards
    return cached / forwards


def bandwidth_line(summary: RunSummary) -> str:
    """Format a line such as "memory 22.1 GB/s (20.3 to 23.0, 2 threads); ar reads 0.81 of it, pld 0.66".

    Empty for a run without bandwidth figures. If the probe could not measure, the line says why.
    """
    found = summary.bandwidth
    if found is None:
        return ""
    if found.bytes_per_s is None:
        return f"memory bandwidth was not measured: {found.refused}" if found.refused else ""
    shares = [(row.method, row.bandwidth_share) for row in summary.rows if row.bandwidth_share is not None]
    listed = [f"{method} {share:.2f}" for method, share in shares[1:]]
    if len(listed) > _NAMED:
        others = [share for _, share in shares[1:]]
        listed = [f"the others {min(others):.2f} to {max(others):.2f}"]
    parts = [f"memory {_range(found)}"]
    if shares:
        method, share = shares[0]
        parts.append(", ".join([f"{method} reads {share:.2f} of it", *listed]))
    return "; ".join(parts)


def _range(found: BandwidthFigures) -> str:
    threads = " or ".join(map(str, found.threads)) + (" thread" if found.threads == [1] else " threads")
    middle, low, high = (
        "–" if speed is None else f"{speed / 1e9:.1f}"
        for speed in (found.bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s)
    )
    within = [f"{low} to {high}"] if found.readings > 1 else []
    return f"{middle} GB/s ({', '.join([*within, *([threads] if found.threads else [])])})"
