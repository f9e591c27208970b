"""Answers to chained problems with times known beforehand."""

from __future__ import annotations

from typing import Any

from sweep_workers import record

from specbench.results.schema import RequestRecord, TaskSpec, request_key

CHAINED = TaskSpec(
    name="gsm8k", version=1, options={"chain": 2}, prompts=3, requests=6, metric="", prompts_sha256="b" * 64
)


def turn(method: str, prompt: str, number: int, steps: list[float], kept: int, **more: Any) -> RequestRecord:
    """An answer of ``kept`` tokens a forward; its prefill took half a second."""
    tokens = kept * len(steps)
    made = record(method, prompt, decode_s=sum(steps), tokens=1 + tokens, forwards=len(steps), rows=len(steps))
    return made.model_copy(
        update={
            "request_id": request_key(method, prompt, 0, number), "turn": number, "step_s": steps,
            "accepted_lengths": [kept] * len(steps), "prompt_tokens": 100 * number, "ttft_s": 0.5,
            "prefill_share_s": 0.5, "latency_s": 0.5 + sum(steps), "decode_share_s": sum(steps), **more,
        }
    )  # fmt: skip
