"""Compute the figures of one method from its records, without the AR baseline.

* ``tokens_per_forward`` = Σ decoded tokens / Σ target forwards after the prefill, including forwards without a draft.
  Decoded tokens are those after the first arrival: all but one in our engine, see ``RequestRecord.first_tokens``.
* ``decode_tok_s`` = Σ decoded tokens / Σ decode seconds; at concurrency above 1 a request's decode seconds are its
  share of the engine's time, so the same formula is the throughput.
* ``tpot_median_s`` = median over requests of ``decode_s / decoded tokens``, without requests of one token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from specbench.analysis.acceptance.drafts import acceptance
from specbench.results import PHASES, Gpu, MethodFigures, RequestRecord


def method_figures(records: Sequence[RequestRecord], *, shared: bool = False) -> MethodFigures:
    """The figures of a method; ``shared``: concurrency above 1, where a request's share of the time counts."""
    found = counts(records, shared)
    tokens, forwards = found["tokens"], sum(r.target_forwards for r in records)
    decode_s = sum(r.decoding_s(shared) for r in records)
    prefill_s = sum(r.prefill_s(shared) for r in records)
    waits = [r.tpot_s for r in records if r.tpot_s is not None]
    return MethodFigures(
        **found,
        target_forwards=forwards,
        draft_forwards=sum(r.draft_forwards for r in records),
        tokens_per_forward_with_prefill=quotient(tokens, forwards + len(records)) if _counted(records) else None,
        e2e_tok_s=quotient(tokens, decode_s + prefill_s),
        step_s=quotient(decode_s, forwards),
        acceptance=acceptance(records),
        rows_per_step=quotient(sum(r.tree_rows for r in records) or None, forwards),
        tpot_median_s=median(waits) if waits else None,
        sequences=_sequences(records) if shared else None,
        peak_memory_bytes=max((r.peak_memory_bytes for r in records if r.peak_memory_bytes is not None), default=None),
        prefix_share=quotient(sum(r.prefix_tokens for r in records) or None, sum(r.prompt_tokens for r in records)),
        overshoot_tokens=sum(r.overshoot_tokens for r in records),
        stop_tail_tokens=sum(r.stop_tail_tokens for r in records),
        phases=steps_by_phase(records),
        measures=_measures(records),
        gpu=_gpu(records),
    )


def counts(records: Sequence[RequestRecord], shared: bool) -> dict[str, Any]:
    """The fields of :class:`specbench.results.summary_schema.Counts`, also for a group of categories."""
    decoded = sum(r.decoded_tokens for r in records)
    return {
        "prompts": len({r.sample for r in records}),
        "requests": len(records),
        "tokens": sum(r.output_tokens for r in records),
        "tokens_per_forward": quotient(decoded, sum(r.target_forwards for r in records)),
        "decode_tok_s": quotient(decoded, sum(r.decoding_s(shared) for r in records)),
        "ttft_median_s": median(r.ttft_s for r in records) if records else None,
        "latency_median_s": median(r.latency_s for r in records) if records else None,
        "truncated": sum(r.finish_reason == "length" for r in records),
    }


def _sequences(records: Sequence[RequestRecord]) -> float | None:
    """Mean number of sequences in the slots: all requests' seconds over the seconds of their segments."""
    spans: dict[int, tuple[float, float]] = {}
    for record in records:
        start, end = spans.get(record.segment, (record.start_s, 0.0))
        spans[record.segment] = min(start, record.start_s), max(end, record.start_s + record.latency_s)
    return quotient(sum(record.latency_s for record in records), sum(end - start for start, end in spans.values()))


def _counted(records: Sequence[RequestRecord]) -> bool:
    """Whether target forwards were counted; an engine at an endpoint may not report them."""
    return any(record.target_forwards for record in records) or not any(record.decoded_tokens for record in records)


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    """A ratio; None if undefined."""
    return numerator / denominator if numerator is not None and denominator else None


def _gpu(records: Sequence[RequestRecord]) -> Gpu | None:
    """GPU figures over the requests: median clock and power, highest temperature, energy per token.

    None without GPU data. ``energy_per_token_j`` includes the prefills and divides by all kept tokens.
    """
    traced = [(r, r.gpu) for r in records if r.gpu]
    if not traced:
        return None

    def known(name: str) -> list[float]:
        return [value for _, gpu in traced if (value := getattr(gpu, name)) is not None]

    clocks, powers = known("sm_clock_mhz"), known("power_w")
    throttled = [gpu.throttled for _, gpu in traced if gpu.throttled]
    tokens = sum(r.output_tokens for r, gpu in traced if gpu.energy_j is not None)
    return Gpu(
        sm_clock_mhz=median(clocks) if clocks else None,
        power_w=median(powers) if powers else None,
        temperature_c=max(known("temperature_c"), default=None),
        energy_per_token_j=quotient(sum(known("energy_j")), tokens),
        throttled=len(throttled),
        throttle_reasons=list(dict.fromkeys(reason for reasons in throttled for reason in reasons)),
    )


def steps_by_phase(records: Sequence[RequestRecord]) -> dict[str, float] | None:
    """Median seconds per step by phase, and of everything except the forward; None without a trace."""
    steps = [step for r in records if r.phases_s for step in zip(*(r.phases_s[p] for p in PHASES), strict=True)]
    if not steps:
        return None
    found = {f"{phase}_s": median(spent) for phase, spent in zip(PHASES, zip(*steps, strict=True), strict=True)}
    forward = PHASES.index("forward")
    return {**found, "host_s": median(sum(step) - step[forward] for step in steps)}


def _measures(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Mean over requests of each of the method's own figures; requests without a figure are left out of its mean."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.measures.items():
            found[name].append(value)
    return {name: mean(values) for name, values in found.items()}
