"""Rows of other engines in a summary, from records and facts that a test makes up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import toys
from made_engines import facts

from specbench.results.engines import Engines
from specbench.results.schema import MethodSpec, RequestRecord, RunConfig, request_key
from specbench.results.summary import RunContents, summarise
from specbench.results.summary_schema import MethodSummary, RunSummary

PROMPTS = 8


def spec(name: str, label: str | None = None, **options: Any) -> MethodSpec:
    """A row of another engine, ENGINE:MODE, at the run's precision unless told otherwise."""
    return MethodSpec(
        label=label or name, name=name, options=options, lossless=True, own_noise=True, engine=name.partition(":")[0]
    )


def config(*rows: MethodSpec, ours: Sequence[str] = ("ar",), prompts: int = PROMPTS) -> RunConfig:
    """A run of our rows and those."""
    made = toys.config(ours, prompts)
    return made.model_copy(update={"methods": [*made.methods, *rows]})


def answer(
    method: str, number: int, arrivals: Sequence[int], decode_s: float, forwards: int | None = None, **changes: Any
) -> RequestRecord:
    """One answer: so many tokens in each arrival, the first after 2 s, the others in the decode seconds.

    Args:
        forwards: target forwards that the engine tells in all; each arrival after the first is one where it is None.
    """
    tokens, behind = sum(arrivals), len(arrivals) - 1
    values: dict[str, Any] = {
        "request_id": request_key(method, f"p{number}", 0), "method": method, "prompt_id": f"p{number}", "repeat": 0,
        "prompt_tokens": 5, "output_ids": list(range(tokens)), "text": "", "finish_reason": "length",
        "output_tokens": tokens, "overshoot_tokens": 0, "stop_tail_tokens": 0, "first_tokens": arrivals[0],
        "accepted_lengths": list(arrivals[1:]), "tree_rows": behind, "draft_forwards": 0,
        "target_forwards": behind if forwards is None else forwards, "start_s": 0.0, "segment": number,
        "ttft_s": 2.0, "decode_s": decode_s, "latency_s": 2.0 + decode_s,
        "prefill_share_s": 2.0, "decode_share_s": decode_s,
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)


def answers(method: str, arrivals: Sequence[int], decode_s: float, *, prompts: int = PROMPTS, **more: Any) -> Any:
    """An answer to each prompt, whose seconds differ a little from prompt to prompt, in a way of each row's own."""
    return [
        answer(method, number, arrivals, decode_s * random.Random(f"{method}/{number}").uniform(0.98, 1.02), **more)
        for number in range(prompts)
    ]


def summed(run: RunConfig, records: Sequence[RequestRecord], **more: Any) -> RunSummary:
    """The summary, with facts of every row of another engine."""
    engines = more.pop("engines", None) or Engines(
        rows={each.label: facts(engine=each.engine) for each in run.methods if each.engine}
    )
    return summarise(RunContents(run, records, engines=engines, **more))


def row_of(summary: RunSummary, label: str) -> MethodSummary:
    """A row by its label."""
    return next(row for row in summary.rows if row.method == label)
