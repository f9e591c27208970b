"""Requests with a trace, from steps written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.decoding.tree import TokenTree
from specbench.results.schema import RequestRecord, request_key
from specbench.runner.stop import Decode, Output, StopRule
from specbench.runner.trace import Verified, token_trace, verified

Taken = tuple[TokenTree, Sequence[int], int]  # a step's tree, its path, and the target's token after it


def record(
    decode: Decode,
    first: int,
    steps: Sequence[Taken],
    *,
    stop_ids: Sequence[int] = (),
    stops: Sequence[str] = (),
    budget: int = 100,
    whole: bool = True,
    method: str = "toy",
    prompt: str = "p0",
    **changes: Any,
) -> RequestRecord:
    """The record of an answer whose prefill emitted ``first``, as the runner makes it; a step takes 10 ms."""
    output = Output(StopRule(frozenset(stop_ids), tuple(stops), budget, decode))
    output.extend([first])
    accepts: list[int] = []
    taken: list[Verified] = []
    for tree, path, bonus in steps:
        accepts.append(output.extend([tree.tokens[row] for row in path[1:]] + [bonus]))
        taken.append(verified(tree, path, whole=whole))
    seconds = 0.01 * len(steps)
    values = {
        "request_id": request_key(method, prompt, 0), "method": method, "prompt_id": prompt, "repeat": 0,
        "prompt_tokens": 5, "output_ids": output.ids, "text": output.text(), "finish_reason": output.reason or "length",
        "output_tokens": len(output.ids),
        "overshoot_tokens": output.overshoot, "stop_tail_tokens": output.stop_tail(), "accepted_lengths": accepts,
        "tree_rows": sum(step.rows for step in taken), "target_forwards": len(steps), "draft_forwards": 0,
        "start_s": 0.0,
        "segment": 0, "ttft_s": 0.1, "decode_s": seconds, "latency_s": 0.1 + seconds, "prefill_share_s": 0.1,
        "decode_share_s": seconds, "tokens": token_trace(output, accepts, taken),
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)
