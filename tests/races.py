"""Runs whose tokens came at known times, for races."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import reported
from reported import answers, traced

from specbench.results.read import ReadRun, read_run

TEXTS = ["One", " two", " three", " <b>four</b>", "\n", "five\x1b[31m", " six", " \u202eseven"]


def run(out: Path, prompts: int = 3, **changes: Any) -> Path:
    """AR takes a second a token, ``pld`` two seconds for each pair; both begin after half a second.

    Of prompt ``p/1`` all of this takes twice as long for ``pld``, of ``p/2`` half as long.
    """
    factor = {0: 1.0, 1: 2.0, 2: 0.5}
    made = reported.config(["pld"], prompts, **changes)
    records = [
        *_timed("ar", [1] * 7, [1.0] * 7, lambda at: 1.0, "a" + "b" * 7, prompts),
        *_timed("pld", [2, 2, 2, 1], [1.0] * 4, lambda at: factor[at % 3], "a" + "cb" * 3 + "b", prompts),
    ]
    return reported.folder(out, made, records)


def read(out: Path, prompts: int = 3, **changes: Any) -> ReadRun:
    """The same, read."""
    return read_run(run(out, prompts, **changes))


def _timed(label: str, accepts: Sequence[int], steps: Sequence[float], factor: Any, origins: str, prompts: int) -> Any:
    found = answers(label, prompts, decode_s=0.0, **traced(TEXTS, accepts, origins, ["prefill", "bonus", "lookup"]))
    return [
        one.model_copy(
            update={
                "ttft_s": 0.5,
                "step_s": [step * factor(at) for step in steps],
                "decode_s": sum(steps) * factor(at),
                "decode_share_s": sum(steps) * factor(at),
                "latency_s": 0.5 + sum(steps) * factor(at),
            }
        )
        for at, one in enumerate(found)
    ]
