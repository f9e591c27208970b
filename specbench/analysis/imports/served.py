"""Rows of requests as a client timed them, measured by another tool or by a run, and their comparison.

Nothing of an imported row is known but its times and counts: it has no token ids, forwards or weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

from specbench.analysis.blocks import blocks_of, timing_units
from specbench.analysis.comparison import split_target
from specbench.analysis.noise import unsure_speedup
from specbench.analysis.read import ReadRun, read_whole
from specbench.analysis.run_checks import FEW, RunCheck
from specbench.analysis.speedup import BOOTSTRAP_SEED, speedup_of
from specbench.analysis.stats.interval import minimum_clusters
from specbench.analysis.stats.percentiles import LEVELS, percentiles
from specbench.analysis.stats.ratio import independent_ratio, paired_ratio
from specbench.common import UsageError, unknown_name
from specbench.results import (
    BASELINE,
    ImportedRequest,
    ImportedRow,
    ImportedRun,
    Percentiles,
    Speedup,
    WaitingTimes,
    is_import,
    read_import,
)

#: Verdict on a speedup that is a ratio of medians.
MEDIANS = "ratio of medians"

_TIMES = ("ttft_s", "tpot_s", "itl_s", "latency_s")
_MOST_GAPS = 200_000  # resampling more would take minutes: then inter-token latency has no interval


@dataclass(frozen=True)
class ServedRow:
    """A row; ``requests`` are the completed ones and ``units`` what was timed apart, for each of them.

    ``run`` is the letter of its run in a comparison. ``speedup`` is over the baseline, and ``paired`` says how the
    prompts of both were found to be the same; empty if they were not.
    """

    method: str
    measured_by: str
    model: str
    load: Mapping[str, str]
    completed: int
    failed: int
    unfinished: int
    output_tok_s: float | None
    requests: Sequence[ImportedRequest]
    units: Sequence[str]
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    latency_s: Percentiles | None
    imported: ImportedRow | None = None
    run: str = ""
    unsure: bool = False
    baseline: bool = False
    speedup: Speedup | None = None
    paired: str = ""
    failure: str = ""

    def written(self) -> dict[str, Any]:
        """The row as JSON-ready data."""
        names = ("measured_by", "model", "load", "completed", "failed", "unfinished", "output_tok_s", "paired")
        found = {"run": self.run, "method": self.method, **{name: getattr(self, name) for name in names}}
        return {
            **found, **{name: _written(getattr(self, name)) for name in _TIMES},
            "speedup": _written(self.speedup),
            "figures": self.imported.figures if self.imported else {}, "imported": self.imported is not None,
        }  # fmt: skip


def _written(found: Percentiles | Speedup | None) -> dict[str, Any] | None:
    return None if found is None else found.written()


def served_rows(run: ImportedRun) -> list[ServedRow]:
    """The rows of imported results, with speedups over the first."""
    return _over_first([_imported(row, run.requests[row.label]) for row in run.rows])


def _imported(row: ImportedRow, requests: Sequence[ImportedRequest]) -> ServedRow:
    done = [request for request in requests if request.state == "completed"]
    units = _units(done)
    times = _waits(done, units) if requests or not row.completed else _reported(row)
    return ServedRow(
        row.label, row.measured_by, row.model, row.load, row.completed, row.failed, row.unfinished, row.output_tok_s,
        done, units, times.ttft_s, times.tpot_s, times.itl_s, times.latency_s, imported=row,
    )  # fmt: skip


def _units(requests: Sequence[ImportedRequest]) -> list[str]:
    """The unit of each request: itself if none overlaps, else a block of neighbours, which shared the server."""
    spans = [(r.start_s, r.latency_s) for r in requests]
    known = [(start, start + latency) for start, latency in spans if start is not None and latency is not None]
    if len(known) < len(spans) or not known:
        return ["0"] * len(requests)
    order = sorted(range(len(known)), key=known.__getitem__)
    ends, overlap = 0.0, False
    for start, end in sorted(known):
        overlap, ends = overlap or start < ends, max(ends, end)
    if not overlap:
        return [str(at) for at in range(len(known))]
    busy = sum(end - start for start, end in known) / (ends - known[order[0]][0])
    blocks = blocks_of([str(at) for at in order], max(2, math.ceil(busy)))
    block = {at: str(number) for number, members in enumerate(blocks) for at in members}
    return [block[str(at)] for at in range(len(known))]


def _waits(requests: Sequence[ImportedRequest], units: Sequence[str]) -> WaitingTimes:
    named = list(zip(units, requests, strict=True))
    few = sum(len(request.gaps_s) for request in requests) <= _MOST_GAPS
    found = {"itl_s": percentiles([(unit if few else "0", request.gaps_s) for unit, request in named])}
    for name in ("ttft_s", "tpot_s", "latency_s"):
        values = [(unit, getattr(request, name)) for unit, request in named]
        found[name] = percentiles([(unit, [value]) for unit, value in values if value is not None])
    return WaitingTimes.model_validate(found)


def _reported(row: ImportedRow) -> WaitingTimes:
    """The tool's own percentiles, which have no interval."""
    found: dict[str, dict[str, Any]] = {}
    for name, time in row.times.items():
        levels = {level: {"value": value} for level, value in time.items() if level in LEVELS.values()}
        found[name] = {"count": row.completed, **levels}
    return WaitingTimes.model_validate(found)


def _of_run(read: ReadRun) -> list[ServedRow]:
    """The rows of a run of ours, as a client would have seen their requests."""
    config = read.config
    shared = config.concurrency > 1 or config.load is not None
    asked = {"concurrency": str(config.concurrency)}
    if config.load:
        if len(config.load.points) > 1:
            raise UsageError("cannot compare an import with a run of several rates; run it with one --rate")
        asked |= {"arrivals": config.load.arrivals, "request_rate": str(config.load.points[0])}
    rows = []
    for row in read.summary.rows:
        records = [record for record in read.records if record.method == row.method]
        requests = [
            ImportedRequest(
                row=row.method, prompt=record.request_id, prompt_tokens=record.prompt_tokens,
                output_tokens=record.decoded_tokens + 1,  # our decode time begins after the first arrival
                ttft_s=record.ttft_s, decode_s=record.decode_s, latency_s=record.latency_s, gaps_s=record.arrivals_s,
            )
            for record in records
        ]  # fmt: skip
        units = [str(record.segment) if shared else record.sample for record in records]
        times = _waits(requests, units)
        by = "specbench" if not row.simulated else "specbench with simulated acceptance"
        rows.append(
            ServedRow(
                row.method, by, f"{config.model.name} {config.model.dtype}", asked,
                row.requests, 0, 0, None if config.load else row.e2e_tok_s, requests, units,
                times.ttft_s, times.tpot_s, times.itl_s, times.latency_s,
                unsure=read.summary.unsure, failure=row.failed,
            )
        )  # fmt: skip
    return rows


def _over_first(rows: Sequence[ServedRow]) -> list[ServedRow]:
    first, *others = rows
    return [replace(first, baseline=True), *(_compared(first, other) for other in others)]


def _compared(a: ServedRow, b: ServedRow) -> ServedRow:
    """``b`` with its speedup over ``a``: decode seconds per token after the first, as the client saw them."""
    arms, paired = [_arm(row) for row in (a, b)], _paired(a, b)
    if all(tokens for _, tokens, _ in arms):
        if paired:
            mine, its = ({r.prompt: (r, int(unit)) for r, unit in _timed(row)} for row in (a, b))
            both = [key for key in mine if key in its]
            units = timing_units([[(key, side[key][1]) for key in both] for side in (mine, its)], shared=True)
            sides = [_sums([side[key][0] for key in both]) for side in (mine, its)]
            found = paired_ratio(sides[0], sides[1], seed=BOOTSTRAP_SEED, clusters=[units[key] for key in both])
        else:
            (s, t, unit), (u, v, other) = arms
            found = independent_ratio((s, t), (u, v), (unit, other), seed=BOOTSTRAP_SEED)
        speedup = speedup_of(found, None)
    else:
        medians = [row.tpot_s and row.tpot_s.p50 for row in (a, b)]
        ratio = medians[0].value / medians[1].value if medians[0] and medians[1] and medians[1].value else None
        speedup = None if ratio is None else Speedup(value=ratio, verdict=MEDIANS)
    return replace(b, speedup=unsure_speedup(speedup) if a.unsure or b.unsure else speedup, paired=paired)


def _timed(row: ServedRow) -> Iterator[tuple[ImportedRequest, str]]:
    return ((r, unit) for r, unit in zip(row.requests, row.units, strict=True) if r.tpot_s is not None)


def _sums(requests: Sequence[ImportedRequest]) -> tuple[list[float], list[float]]:
    return [r.decode_s or 0.0 for r in requests], [(r.output_tokens or 0) - 1.0 for r in requests]


def _arm(row: ServedRow) -> tuple[list[float], list[float], list[str]]:
    timed = list(_timed(row))
    return *_sums([request for request, _ in timed]), [unit for _, unit in timed]


def _paired(a: ServedRow, b: ServedRow) -> str:
    """By what the prompts of two imported rows are known to be the same, in the same order; empty if they are not."""
    one, other = a.imported, b.imported
    mine, its = ({request.prompt: request.prompt_tokens for request in row.requests} for row in (a, b))
    both = mine.keys() & its.keys()
    sent = [row.completed + row.failed + row.unfinished for row in (a, b)]
    distinct = len(mine) == len(a.requests) and len(its) == len(b.requests)
    if not (one and other and one.tool == other.tool and both and distinct and sent[0] == sent[1]):
        return ""
    if any(mine[key] != its[key] for key in both):
        return ""
    if one.tool == "guidellm":
        return "the requests' bodies" if mine.keys() == its.keys() else ""
    if one.tool == "aiperf":
        return "data set settings and seed" if one.prompts_sha256 and one.prompts_sha256 == other.prompts_sha256 else ""
    lengths = len({mine[key] for key in both})  # prompts that are all equally long might be any
    return f"{lengths} different prompt lengths in the same order" if lengths >= minimum_clusters() else ""


def compare_served(targets: Sequence[str]) -> list[ServedRow]:
    """The rows of imported results and runs, with speedups over the first target's first row or the one it names."""
    if len(targets) > len(ascii_uppercase):
        raise UsageError(f"cannot compare {len(targets)} runs: name at most {len(ascii_uppercase)}")
    rows: list[ServedRow] = []
    for letter, target in zip(ascii_uppercase, targets, strict=False):
        path, label = split_target(target)
        found = served_rows(read_import(path)) if is_import(path) else _of_run(read_whole(path))
        labels = [row.method for row in found]
        if label is not None and label not in labels:
            raise unknown_name("method", label, labels, f"of {path}")
        first = label or (BASELINE if BASELINE in labels and not rows else labels[0])
        kept = [row for row in found if label in (None, row.method)]
        kept.sort(key=lambda row: row.method != first)
        rows += [replace(row, run=letter, baseline=False) for row in kept]
    return _over_first(rows)


def is_served(target: str) -> bool:
    """Whether a target of ``compare`` is imported results."""
    return is_import(split_target(target)[0])


def check_import(run: ImportedRun) -> list[RunCheck]:
    """Check imported results for what makes them mislead, and say what their files do not tell."""
    rows = served_rows(run)
    lost = [f"{row.method}: {row.failed} failed, {row.unfinished} not finished" for row in rows
            if row.failed or row.unfinished]  # fmt: skip
    loads = {tuple(sorted(row.load.items())) for row in rows}
    few = min(row.completed for row in rows)
    without = [row.method for row in rows if not row.requests]
    unpaired = [row.method for row in rows[1:] if not row.paired]
    remarks = [f"{row.label}: {remark}" for row in run.rows for remark in row.remarks]
    tools = ", ".join(dict.fromkeys(row.measured_by for row in rows))

    def of(name: str, wrong: str, fine: str, todo: str, state: Any = "misleads") -> RunCheck:
        return RunCheck(name, state, wrong, todo) if wrong else RunCheck(name, "fine", fine)

    return [
        of("failed requests", "; ".join(lost), "every request was answered", "fix the server and measure again"),
        of("tool's warnings", "; ".join(remarks), "the tool recorded none", "read the tool's manual on them"),
        of("same load", f"{len(loads)} different loads" if len(loads) > 1 else "", "all rows were sent alike",
           "compare rows of one load"),
        of("few requests", f"{few} requests" if few < FEW else "", f"{few} requests", "send more requests"),
        of("requests", f"only the tool's figures of {', '.join(without)}: no intervals" if without else "",
           "times of every request are known", "import a file with each request", "unknown"),
        of("same prompts", f"not shown for {', '.join(unpaired)}: compared as unpaired" if unpaired else "",
           "rows were sent the same prompts", "measure rows with one data set and seed", "unknown"),
        RunCheck("clock", "unknown", f"times are those of {tools}, seen from its client", "measure with specbench run"),
        RunCheck("other texts", "unknown", "no token ids: answers were not compared with plain decoding's",
                 "run specbench check-lossless with the weights"),
        RunCheck("disturbed machine", "unknown", "the machine was not watched", "measure with specbench run"),
        RunCheck("weights", "unknown", "a model's name is all that is known of it", "measure with specbench run"),
    ]  # fmt: skip
