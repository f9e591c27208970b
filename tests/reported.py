"""Run folders as ``specbench run`` writes them, with records made up so that their figures are known beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep_workers import record

from specbench.results.folder import RunFolder
from specbench.results.schema import (
    BASELINE,
    MethodSpec,
    ModelSpec,
    RequestRecord,
    RunConfig,
    SamplingSpec,
    SimulatedAcceptance,
    TaskSpec,
    TokenTrace,
)
from specbench.results.summary import RunContents, summarise
from specbench.results.summary_schema import RunSummary

EXACT = {"verdict": "exact", "exact": 8, "numeric_tie": 0, "lossy": 0, "noise_floor": None, "divergences": []}
LOSSY = {**EXACT, "verdict": "lossy", "exact": 5, "lossy": 3}

ENVIRONMENT = {
    "specbench": "0.1.0", "git_commit": "0123456789abcdef", "git_dirty": False, "python": "3.11.7",
    "platform": "Linux", "ram_bytes": 32 << 30, "load_average": [0.5, 0.25, 0.125],
    "cpu": {"model": "a CPU", "usable_cores": 8, "torch_threads": 4},
    "device": {
        "kind": "cuda", "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 << 30, "driver": "570", "cuda": "13.0",
    },
    "versions": {"torch": "2.13.0", "transformers": "5.23.0", "triton": None},
}  # fmt: skip


def config(labels: Sequence[str], prompts: int, *, lot: Sequence[str] = (), **changes: Any) -> RunConfig:
    """A configuration of these rows; ``m#2`` is another setting of method ``m``, those of ``lot`` are simulated."""
    specs = [
        MethodSpec(label=label, name=label.partition("#")[0], options=_options(label), lossless=True)
        for label in (BASELINE, *labels)
    ]
    made: dict[str, Any] = {
        "model": ModelSpec(
            name="config:qwen3-8b", source="config:qwen3-8b", revision=None, fingerprint="f" * 64, dtype="bfloat16",
            device="cuda", parameters=8, weight_bytes=16, dummy=False,
        ),
        "task": TaskSpec(
            name="humaneval", version=2, options={"style": "chat"}, prompts=prompts, requests=prompts,
            prompts_sha256="a" * 64,
        ),
        "methods": specs,
        "sampling": SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0),
        "max_new_tokens": 64, "repeats": 1, "concurrency": 1, "attention": "triton", "graphs": "on", "linears": "torch",
        "simulated": {label: SimulatedAcceptance(mean=4, spread=1) for label in lot},
        "order_seed": 0, "identity": {},
    }  # fmt: skip
    return RunConfig(**{**made, **changes})


def _options(label: str) -> dict[str, Any]:
    name, _, number = label.partition("#")
    return {} if name == BASELINE else {"n": 16 * int(number or 1), "window": "block"}


def answers(
    label: str,
    prompts: int | range,
    *,
    decode_s: float,
    output_tokens: int = 25,
    target_forwards: int = 24,
    **more: Any,
) -> list[RequestRecord]:
    """An answer to each prompt; of later prompts it takes a little longer, so that intervals have a width."""
    found = []
    for at in range(prompts) if isinstance(prompts, int) else prompts:
        counts: dict[str, Any] = {"tokens": output_tokens, "forwards": target_forwards, "rows": 4 * target_forwards}
        one = record(label, f"p/{at}", decode_s=decode_s * (1 + at / 64), **counts)
        found.append(one.model_copy(update={key: _of(value, at) for key, value in more.items()}))
    return found


def _of(value: Any, at: int) -> Any:
    return value(at) if callable(value) else value


def traced(texts: Sequence[str], accepts: Sequence[int], origins: str, words: Sequence[str]) -> dict[str, Any]:
    """What a record of these tokens says of them, for ``answers``."""
    steps, chars = len(accepts), [len(text) for text in texts]
    return {
        "output_ids": list(range(len(texts))), "text": "".join(texts), "output_tokens": len(texts),
        "tokens": TokenTrace(words=list(words), origins=origins, rows=[5] * steps, chars=chars, tail=""),
        "target_forwards": steps, "accepted_lengths": list(accepts), "tree_rows": 5 * steps,
    }  # fmt: skip


def folder(
    out: Path,
    made: RunConfig,
    records: Sequence[RequestRecord],
    *,
    lossless: Mapping[str, Mapping[str, Any]] | None = None,
    right: Callable[[RequestRecord], bool] | None = None,
    metrics: Sequence[str] = (),
    finish: bool = True,
    created: str = "2026-01-02T03:04:05+00:00",
    change: Callable[[dict[str, Any]], None] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder, named by its start and the hash of its configuration.

    Args:
        out: its parent.
        made: its configuration.
        records: its requests.
        lossless: verdict counts by label.
        right: whether an answer is right; without it nothing was scored.
        metrics: further metrics, which say the same.
        finish: with summary and ``DONE``.
        created: when it started.
        change: changes the summary before it is written.
        engine: what the engine reported.
    """
    run = {"created_utc": created, **made.model_dump(mode="json"), "environment": ENVIRONMENT}
    # Not its own digest, which changes with every field that configurations gain.
    said = [spec.label for spec in made.methods], made.task.name, made.model.dummy, made.concurrency
    digest = hashlib.sha256(repr(said).encode()).hexdigest()
    path = out / f"{created[:19].replace('-', '').replace(':', '')}Z-{digest[:8]}"
    with RunFolder.at(path, digest, run) as folder:
        for one in records:
            folder.log.append(one.model_dump(mode="json"))
        if finish:
            verdicts = {one.request_id: right(one) for one in records} if right else None
            further = {name: dict(verdicts or {}) for name in metrics}
            summary = summarise(RunContents(made, records, verdicts, lossless, further, engine))
            if change:
                content = summary.written()
                change(content)
                summary = RunSummary.model_validate(content)
            folder.finish(summary)
    return path
