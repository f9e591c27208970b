"""Read the JSON file of ``vllm bench serve --save-result [--save-detailed]``.

Written from vllm/benchmarks/serve.py of vLLM 0.32.0, ``main_async`` and ``benchmark``. The file does not have the
version, unless it was given as ``--metadata version=...``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from specbench.common import damaged, validate
from specbench.results.imports.foreign import TODO, Foreign, Measured, ToolFile, build, facts
from specbench.results.schema import Count, Figure

#: The tool's names of our times.
_TIMES = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "latency_s": "e2el"}
_FIGURES = ("request_throughput", "request_goodput", "total_token_throughput")
_LOAD = ("backend", "request_rate", "burstiness", "max_concurrency", "ramp_up_strategy", "ramp_up_start_rps",
         "ramp_up_end_rps")  # fmt: skip


class _Result(Foreign):
    """The fields that are read; the lists have an entry per request and are there with ``--save-detailed``."""

    model_id: str
    date: str = ""
    version: str = ""
    tokenizer_id: str | None = None
    num_prompts: Count
    request_rate: Figure | Literal["inf"]
    completed: Count
    failed: Count | None = None
    total_output_tokens: Count
    output_throughput: Figure
    input_lens: tuple[Count, ...] = ()
    output_lens: tuple[Count, ...] = ()
    ttfts: tuple[Figure, ...] = ()
    itls: tuple[list[Figure], ...] = ()
    latencies: tuple[Figure, ...] = ()
    start_times: tuple[Figure, ...] = ()
    errors: tuple[str, ...] = ()


def is_mine(content: Mapping[str, Any]) -> bool:
    """Whether an object is a result of ``vllm bench serve``."""
    return "endpoint_type" in content and "num_prompts" in content


def read(file: ToolFile, label: str) -> list[Measured]:
    """A row per result: a file of ``--append-result`` has several."""
    several = len(file.objects) > 1
    return [_read(file, each, f"{label}@{at}" if several else label) for at, each in enumerate(file.objects, 1)]


def _read(file: ToolFile, content: Mapping[str, Any], label: str) -> Measured:
    result = validate(_Result, content, file.path, TODO)
    row = {
        "label": label,
        "tool": "vllm bench serve",
        "version": result.version,
        "files": {file.path.name: file.sha256},
        "model": result.model_id,
        "begun": result.date,
        "load": facts({name: content.get(name) for name in _LOAD}),
        "completed": result.completed,
        "failed": result.num_prompts - result.completed if result.failed is None else result.failed,
        "output_tokens": result.total_output_tokens,
        "output_tok_s": result.output_throughput,
        "times": {name: times for name, theirs in _TIMES.items() if (times := _times(content, theirs, file))},
        "figures": {
            name: value
            for name, value in content.items()
            if value is not None and (name in _FIGURES or name.startswith("spec_decode_"))
        },
    }
    return build(row, list(_requests(result, file)), file.path)


def _times(content: Mapping[str, Any], name: str, file: ToolFile) -> dict[str, float]:
    named = {"mean": f"mean_{name}_ms", "p50": f"median_{name}_ms"}
    named |= {level: f"{level}_{name}_ms" for level in ("p90", "p95", "p99")}
    return {level: 1e-3 * _number(content, key, file) for level, key in named.items() if content.get(key) is not None}


def _number(content: Mapping[str, Any], key: str, file: ToolFile) -> float:
    found = content[key]
    if not isinstance(found, int | float):
        raise damaged(file.path, f"field '{key}': not a number", TODO)
    return found


def _requests(result: _Result, file: ToolFile) -> Iterator[dict[str, Any]]:
    """The requests in the order of the prompts; the detailed lists must have an entry for each."""
    if not result.ttfts:
        return
    lists: dict[str, Sequence[Any]] = {
        "input_lens": result.input_lens, "output_lens": result.output_lens, "ttfts": result.ttfts, "itls": result.itls,
        "latencies": result.latencies, "start_times": result.start_times, "errors": result.errors,
    }  # fmt: skip
    if wrong := next((name for name, values in lists.items() if len(values) != len(result.ttfts)), None):
        raise damaged(file.path, f"field '{wrong}': not one entry for each request", TODO)
    first = min(result.start_times, default=0.0)
    for at, (prompt, output, ttft, gaps, latency, start, error) in enumerate(zip(*lists.values(), strict=True)):
        sent = {"prompt": str(at), "prompt_tokens": prompt, "start_s": start - first}
        if error or not latency:
            yield {**sent, "state": "failed"}
            continue
        streamed = {"ttft_s": ttft, "decode_s": max(0.0, latency - ttft), "gaps_s": gaps} if ttft else {}
        yield {**sent, "output_tokens": output, "latency_s": latency, **streamed}
