"""Worker process that runs vLLM: it reads prompts from stdin and writes answers to stdout, one JSON object per line.

Run as a file by the interpreter of vLLM's environment, which has no specbench. The first input line has the settings.
Each ``ask`` is answered by a line for every engine step that produced tokens, and by one ``end``, also if it is
aborted.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Any

_SPECULATION, _STEPS = "vllm:spec_decode_num_", "vllm:inter_token_latency_seconds"


class Asks:
    """Input lines, read without a thread, which would compete with the engine's own threads."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""

    def next(self) -> dict[str, Any] | None:
        """Wait for the next line; return None at the end of the input."""
        while b"\n" not in self._rest:
            if not (read := os.read(self._fd, 1 << 20)):
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def waiting(self) -> bool:
        """Return whether there is input to read, its end included."""
        return b"\n" in self._rest or bool(select.select([self._fd], [], [], 0)[0])


class Replies:
    """Output lines."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)

    def send(self, **line: Any) -> None:
        """Write a line without buffering."""
        self._file.write(json.dumps(line).encode() + b"\n")


def start(settings: Mapping[str, Any]) -> Any:
    """Start the engine."""
    from vllm import LLM

    return LLM(**settings)


def counters(llm: Any) -> dict[str, int]:
    """Return vLLM's counters since its start: those of speculation, and decode steps (after first tokens)."""
    found: dict[str, int] = {}
    for metric in llm.get_metrics():
        if metric.name == _STEPS:
            found["decode_steps"] = found.get("decode_steps", 0) + metric.count
        elif metric.name.startswith(_SPECULATION) and hasattr(metric, "value"):
            name = metric.name.removeprefix(_SPECULATION)
            found[name] = found.get(name, 0) + metric.value
        elif metric.name == f"{_SPECULATION}accepted_tokens_per_pos":
            for at, value in enumerate(metric.values, 1):
                found[f"accepted_at_{at}"] = found.get(f"accepted_at_{at}", 0) + value
    return found


def answer(llm: Any, ask: Mapping[str, Any], asks: Asks, replies: Replies) -> None:
    """Answer one prompt step by step, until it has ended or further input arrives."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    before = counters(llm)
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
    number, engine = str(ask["ask"]), llm.llm_engine
    engine.add_request(number, {"prompt_token_ids": ask["ids"]}, sampling)
    while engine.has_unfinished_requests() and not asks.waiting():
        steps = engine.step()
        stamp = time.monotonic_ns()
        ids = [token for step in steps for token in step.outputs[0].token_ids]
        if ids:
            replies.send(ids=ids, ns=stamp)
    if engine.has_unfinished_requests():
        engine.abort_request([number])
        engine.step()  # frees the request's memory
    after = counters(llm)
    replies.send(end=ask["ask"], counters={name: value - before.get(name, 0) for name, value in after.items()})


def main() -> None:
    """Start the engine, then answer until stdin ends."""
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # send prints of libraries to stderr, so that they do not mix with replies
    asks = Asks(0)
    first = asks.next()
    if first is None:
        return
    # Remove VLLM_ variables of the user's environment, so that only recorded settings affect vLLM.
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ.update(first["environment"])
    os.chdir("/")  # vLLM starts interpreters with -m, which search the working directory for modules first
    try:
        llm = start(first["engine"])
        import torch
        import vllm

        replies.send(ready=vllm.__version__, torch=torch.__version__, threads=torch.get_num_threads())
        while (ask := asks.next()) is not None:
            if "ask" in ask:  # otherwise an abort of an answer that had already ended
                answer(llm, ask, asks, replies)
    except Exception as error:
        replies.send(failed=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
    sys.stdout.flush()
