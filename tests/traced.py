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
        "key": request_key(method, prompt, 0), "method": method, "prompt_id": prompt, "repeat": 0, "n_prompt": 5,
        "ids": output.ids, "text": output.text(), "stop_reason": output.reason or "length", "n_out": len(output.ids),
        "n_overshoot": output.overshoot, "n_stop_tail": output.stop_tail(), "accepts": accepts,
        "rows": sum(step.rows for step in taken), "forwards": len(steps), "draft_forwards": 0, "start_s": 0.0,
        "segment": 0, "ttft_s": 0.1, "decode_s": seconds, "e2e_s": 0.1 + seconds, "busy_prefill_s": 0.1,
        "busy_decode_s": seconds, "tokens": token_trace(output, accepts, taken),
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)
