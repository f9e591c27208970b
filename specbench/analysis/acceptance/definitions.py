"""Compute a row's acceptance with the definitions and names of engines, benchmarks and papers.

Their sources are named in ``docs/concepts/acceptance.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TypeAlias

from specbench.analysis.acceptance.drafts import accepted_drafts, draft_tokens
from specbench.analysis.acceptance.papers import PAPERS, Counted
from specbench.analysis.figures import quotient
from specbench.results import RequestRecord

Value: TypeAlias = float | Sequence[float] | Mapping[int, float] | None


@dataclass(frozen=True)
class Defined:
    """A figure under an engine's own name, and its formula in the engine's words."""

    name: str
    value: Value
    formula: str


@dataclass(frozen=True)
class _Row:
    """Sums over the requests of a row; ``histogram`` has the drafts by accepted tokens."""

    records: Sequence[RequestRecord]
    histogram: Counter[int]
    draft_tokens: int | None

    @property
    def drafts(self) -> int:
        return self.histogram.total()

    @property
    def accepted(self) -> int:
        return sum(kept * drafts for kept, drafts in self.histogram.items())

    @property
    def forwards(self) -> int:
        return sum(record.target_forwards for record in self.records)

    @property
    def tokens(self) -> int:
        return sum(record.output_tokens for record in self.records)

    def at_least(self, kept: int) -> int:
        """Drafts with at least so many accepted tokens."""
        return sum(drafts for each, drafts in self.histogram.items() if each >= kept)

    @property
    def positions(self) -> range:
        return range(1, max(self.histogram, default=0) + 1)


def define(records: Sequence[RequestRecord], engine: str) -> list[Defined] | None:
    """A row's acceptance as ``engine`` (a key of :data:`ENGINES`) defines it; None without drafts or their counts."""
    if engine == "papers":
        return _papers(_Row(records, Counter(), None))
    histogram: Counter[int] = Counter()
    for record in records:
        if (found := accepted_drafts(record)) is None or not record.forwards_distinct:
            return None
        histogram += found
    if not histogram:
        return None
    return ENGINES[engine](_Row(records, histogram, draft_tokens(records)))


def _vllm(row: _Row) -> list[Defined]:
    return [
        Defined("num_drafts", row.drafts, "forwards that verified a draft"),
        Defined("num_draft_tokens", row.draft_tokens, "draft tokens of these"),
        Defined("num_accepted_tokens", row.accepted, "accepted ones, also after a stop; no bonus tokens"),
        Defined(
            "mean_acceptance_length",
            1 + row.accepted / row.drafts,
            "1 + num_accepted_tokens / num_drafts, all requests",
        ),
        Defined(
            "draft_acceptance_rate", quotient(row.accepted, row.draft_tokens), "num_accepted_tokens / num_draft_tokens"
        ),
        Defined(
            "per_position_acceptance_rate",
            [row.at_least(at) / row.drafts for at in row.positions],
            "num_accepted_tokens_per_pos / num_drafts, from position 0",
        ),
    ]


def _sglang(row: _Row) -> list[Defined]:
    lengths = [record.output_tokens / record.target_forwards for record in row.records if record.target_forwards]
    return [
        Defined("spec_verify_ct", row.forwards, "decode forwards: each one verifies"),
        Defined("spec_num_correct_drafts", row.accepted, "accepted draft tokens, no bonus tokens"),
        Defined(
            "spec_num_proposed_drafts",
            row.draft_tokens,
            "draft tokens; SGLang multiplies spec_verify_ct by the configured number",
        ),
        Defined(
            "spec_accept_rate",
            quotient(row.accepted, row.draft_tokens),
            "spec_num_correct_drafts / spec_num_proposed_drafts",
        ),
        Defined(
            "spec_accept_length",
            mean(lengths) if lengths else None,
            "completion_tokens / spec_verify_ct of a request, the prefill's token included; mean over requests",
        ),
        Defined(
            "avg_spec_accept_length",
            quotient(row.forwards + row.accepted, row.forwards),
            "accepted draft and bonus tokens / forwards, all requests; without the prefill's token",
        ),
        Defined("spec_correct_drafts_histogram", _histogram(row), "forwards by accepted draft tokens, from 0"),
    ]


def _tensorrt_llm(row: _Row) -> list[Defined]:
    rates = [
        sum(kept * drafts for kept, drafts in found.items()) / record.draft_tokens
        for record in row.records
        if record.draft_tokens and (found := accepted_drafts(record)) is not None
    ]
    return [
        Defined("total_draft_tokens", row.draft_tokens, "draft tokens"),
        Defined("total_accepted_draft_tokens", row.accepted, "accepted ones"),
        Defined(
            "acceptance_rate",
            mean(rates) if rates else None,
            "total_accepted_draft_tokens / total_draft_tokens of a request; mean over requests",
        ),
        Defined(
            "acceptance_length",
            quotient(row.tokens, row.forwards + len(row.records)),
            "trtllm-bench: output tokens / iterations, the prefill and its token included, all requests",
        ),
    ]


def _llama_cpp(row: _Row) -> list[Defined]:
    return [
        Defined("n_draft_verif_steps", row.drafts, "forwards that verified a draft"),
        Defined("n_draft_tokens", row.draft_tokens, "draft tokens of these: 'generated' in the log"),
        Defined("n_draft_accepted", row.accepted, "accepted ones, no bonus tokens"),
        Defined("draft acceptance", quotient(row.accepted, row.draft_tokens), "n_draft_accepted / n_draft_tokens"),
        Defined("mean len", 1 + row.accepted / row.drafts, "1 + n_draft_accepted / n_draft_verif_steps"),
        Defined(
            "acc per pos",
            [row.at_least(at) / row.drafts for at in row.positions],
            "accepted at the position / n_draft_verif_steps, from position 0",
        ),
    ]


def _speed_bench(row: _Row) -> list[Defined]:
    chunks = [[record.first_tokens, *record.accepted_lengths] for record in row.records]
    counts = Counter(length for request in chunks for length in request)
    conditional: dict[int, float] = {}
    left, before, total = counts.total(), 1.0, counts.total()
    for length, number in sorted(counts.items()):
        conditional[length] = left / total / before
        before, left = left / total, left - number
    joint, product = {}, 1.0
    for length, share in conditional.items():
        joint[length] = product = product * share
    return [
        Defined(
            "Average_AL",
            mean(sum(request) / len(request) for request in chunks),
            "tokens per chunk of a turn, the prefill's included; mean over turns",
        ),
        Defined("Acceptance_Length_Histogram", dict(sorted(counts.items())), "chunks by tokens, all turns"),
        Defined(
            "Conditional_Acceptance_Rate", conditional, "chunks of at least k tokens / of at least the length before"
        ),
        Defined("Joint_Acceptance_Rate", joint, "chunks of at least k tokens / chunks"),
    ]


def _eagle(row: _Row) -> list[Defined]:
    steps = row.forwards
    return [
        Defined(
            "new_token",
            steps + row.accepted,
            "accepted draft tokens + 1 per step, not cut at the stop; no prefill token",
        ),
        Defined("steps", steps, "idx + 1: forwards with a tree"),
        Defined("average acceptance length", quotient(steps + row.accepted, steps), "new_token / steps, all questions"),
        Defined(
            "alpha",
            [row.at_least(at) / row.at_least(at - 1) for at in row.positions],
            "n-alpha: accepted at depth n / accepted at depth n - 1, from depth 1",
        ),
    ]


def _papers(row: _Row) -> list[Defined]:
    """Tokens per forward by every definition; needs no counts of draft tokens."""
    counted = [Counted.of(record) for record in row.records]
    found = {name: counting.of(counted) for name, counting in PAPERS.items()}
    return [Defined(name, each.value if each else None, PAPERS[name].words) for name, each in found.items()]


def _histogram(row: _Row) -> list[float]:
    plain = row.forwards - row.drafts  # SGLang verifies in each of them and accepts nothing
    return [row.histogram[kept] + (plain if kept == 0 else 0) for kept in (0, *row.positions)]


#: Names of ``--definitions`` -> the figures of a row.
ENGINES: Mapping[str, Callable[[_Row], list[Defined]]] = {
    "papers": _papers,
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "llama.cpp": _llama_cpp,
    "speed-bench": _speed_bench,
    "eagle": _eagle,
}
