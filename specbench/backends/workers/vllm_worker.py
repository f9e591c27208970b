"""vLLM in a worker process; :mod:`specbench.backends.workers.worker` loads this file in vLLM's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPECULATION, _STEPS = "vllm:spec_decode_num_", "vllm:inter_token_latency_seconds"
_PER_REQUEST = "per_request_spec_decode_metrics"  # not in versions before July 2026


class Engine:
    """``vllm.LLM``, stepped from outside."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from vllm import LLM, EngineArgs

        per_request = "speculative_config" in settings and hasattr(EngineArgs, _PER_REQUEST)
        self._llm = LLM(**settings, **({_PER_REQUEST: "summary"} if per_request else {}))
        self._engine: Any = self._llm.llm_engine
        self._inside: dict[int, Any] = {}  # number -> the request in vLLM's scheduler; None if it cannot be found

    def versions(self) -> Mapping[str, Any]:
        """Return versions and the number of threads."""
        import torch
        import vllm

        return {"ready": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}

    def counters(self) -> dict[str, int]:
        """Return vLLM's counters since its start: those of speculation, and decode steps (after first tokens)."""
        found: dict[str, int] = {}
        for metric in self._llm.get_metrics():
            if metric.name == _STEPS:
                found["decode_steps"] = found.get("decode_steps", 0) + metric.count
            elif metric.name.startswith(_SPECULATION) and hasattr(metric, "value"):
                name = metric.name.removeprefix(_SPECULATION)
                found[name] = found.get(name, 0) + metric.value
            elif metric.name == f"{_SPECULATION}accepted_tokens_per_pos":
                for at, value in enumerate(metric.values, 1):
                    found[f"accepted_at_{at}"] = found.get(f"accepted_at_{at}", 0) + value
        return found

    def add(self, number: int, ask: Mapping[str, Any]) -> None:
        """Add a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=ask["budget"],
            stop_token_ids=ask["stop_ids"],
            ignore_eos=True,  # ignore the model's own end token: stop_token_ids has all stop tokens
            temperature=ask["temperature"],
            top_k=ask["top_k"],
            top_p=ask["top_p"],
            seed=ask["seed"],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name = self._engine.add_request(str(number), {"prompt_token_ids": ask["ids"]}, sampling)
        # A request's counters are in its output only at its end, which an aborted one does not have.
        core = getattr(getattr(self._engine, "engine_core", None), "engine_core", None)
        self._inside[number] = getattr(getattr(core, "scheduler", None), "requests", {}).get(name)

    def step(self) -> list[tuple[int, Any, int | None, bool, Mapping[str, int]]]:
        """Run a step; an output of a request that was aborted meanwhile is left out."""
        found: list[tuple[int, Any, int | None, bool, Mapping[str, int]]] = []
        for output in self._engine.step():
            number, one = int(output.request_id), output.outputs[0]
            if number not in self._inside:
                continue
            counted = getattr(self._inside[number], "spec_decode_metrics", None)
            if output.finished:
                counted = getattr(one, "spec_decode_metrics", None) or counted
                del self._inside[number]
            drafted = None if counted is None else counted.num_draft_tokens
            found.append((number, list(one.token_ids), drafted, output.finished, _counters(counted)))
        return found

    def give_up(self, number: int) -> None:
        """Abort a request."""
        self._engine.abort_request([str(number)])
        del self._inside[number]
        if not self._inside:
            self._engine.step()  # frees the request's memory


def _counters(counted: Any) -> dict[str, int]:
    """Return a request's own counters under the names of the sums of all requests; empty if there are none."""
    if counted is None:
        return {}
    least = [sum(counted.histogram[at:]) for at in range(len(counted.histogram))]  # drafts by least accepted tokens
    return {
        "drafts": least[0],
        "draft_tokens": counted.num_draft_tokens,
        "accepted_tokens": sum(least[1:]),
        **{f"accepted_at_{at}": drafts for at, drafts in enumerate(least[1:], 1)},
    }
