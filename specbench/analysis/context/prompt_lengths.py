"""Speed by the length of the prompt: drafting, verification and acceptance change as the context grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from specbench.analysis.figures import counts, quotient, steps_by_phase
from specbench.analysis.speedup import DECODE, Key, Pairs
from specbench.results import AtContext, RequestRecord

_SHORTEST = 128  # tokens; shorter prompts share one bin


def context_bins(lengths: Iterable[int]) -> list[int]:
    """Upper ends of the bins with prompts: 128 tokens and its doublings; a prompt of 1,024 tokens is below 1,024."""
    found = set()
    for length in lengths:
        end = _SHORTEST
        while end < length:
            end *= 2
        found.add(end)
    return sorted(found)


def by_context(
    baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool
) -> list[AtContext]:
    """A method's figures for each bin of prompt lengths; empty if all prompts lie in one bin."""
    bins: dict[int, dict[Key, RequestRecord]] = defaultdict(dict)
    for key, record in mine.items():
        (end,) = context_bins([record.prompt_tokens])
        bins[end][key] = record
    return [_at(end, baseline, bins[end], shared) for end in sorted(bins)] if len(bins) > 1 else []


def _at(end: int, baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool) -> AtContext:
    records = list(mine.values())
    figures, phases = counts(records, shared), steps_by_phase(records) or {}
    drafting = [phases[f"{name}_s"] for name in ("draft", "observe") if phases]
    return AtContext(
        end=end,
        prompts=figures["prompts"],
        prompt_tokens=median(record.prompt_tokens for record in records),
        tokens_per_forward=figures["tokens_per_forward"],
        decode_tok_s=figures["decode_tok_s"],
        ttft_median_s=figures["ttft_median_s"],
        step_s=quotient(sum(r.decoding_s(shared) for r in records), sum(r.target_forwards for r in records)),
        draft_s=sum(drafting) if drafting else None,
        verify_s=phases["host_s"] + phases["forward_s"] - sum(drafting) if phases else None,
        speedup=Pairs.of({key: baseline[key] for key in mine if key in baseline}, mine, shared).speedup(DECODE),
    )
