"""vLLM in a process of its own environment. Prompts come in on stdin, answers go out on stdout, a JSON a line.

Run as a file by that environment's interpreter, which has no specbench. The first line in says how to start. Each
``ask`` is answered by a line for every engine step that brought tokens, and by one ``end``, also when given up.
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
    """The lines that come in, read without a thread: one would take turns with the engine's own."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""

    def next(self) -> dict[str, Any] | None:
        """Waits for the next line; None when there will be none, for whoever asks has gone."""
        while b"\n" not in self._rest:
            if not (read := os.read(self._fd, 1 << 20)):
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def waiting(self) -> bool:
        """Whether there is something to read, an end included."""
        return b"\n" in self._rest or bool(select.select([self._fd], [], [], 0)[0])


class Replies:
    """The lines that go out."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)

    def send(self, **line: Any) -> None:
        """Writes a line, at once."""
        self._file.write(json.dumps(line).encode() + b"\n")


def start(settings: Mapping[str, Any]) -> Any:
    """The engine."""
    from vllm import LLM

    return LLM(**settings)


def counters(llm: Any) -> dict[str, int]:
    """vLLM's counters since its start: of speculation by the ends of their names, and its steps behind first tokens."""
    found: dict[str, int] = {}
    for metric in llm.get_metrics():
        if metric.name == _STEPS:
            found["decode_steps"] = found.get("decode_steps", 0) + metric.count
        elif metric.name.startswith(_SPECULATION) and hasattr(metric, "value"):
            name = metric.name.removeprefix(_SPECULATION)
            found[name] = found.get(name, 0) + metric.value
    return found


def answer(llm: Any, ask: Mapping[str, Any], asks: Asks, replies: Replies) -> None:
    """Answers one prompt, step by step, until it has ended or something else comes in."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    before = counters(llm)
    sampling = SamplingParams(
        max_tokens=ask["budget"],
        stop_token_ids=ask["stop_ids"],
        ignore_eos=True,  # the model's own: those that end an answer are said above
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
        engine.step()  # lets go of what it held for it
    after = counters(llm)
    replies.send(end=ask["ask"], counters={name: value - before.get(name, 0) for name, value in after.items()})


def main() -> None:
    """Starts, then answers until stdin ends."""
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # what any library prints goes where errors go, and into no reply
    asks = Asks(0)
    first = asks.next()
    if first is None:
        return
    # Of what decides how vLLM works only what is recorded: no variable of its own that happens to be set.
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ.update(first["environment"])
    os.chdir("/")  # it starts interpreters with -m, which look for modules in the current folder first
    try:
        llm = start(first["engine"])
        import torch
        import vllm

        replies.send(ready=vllm.__version__, torch=torch.__version__, threads=torch.get_num_threads())
        while (ask := asks.next()) is not None:
            if "ask" in ask:  # else the end of an answer that had ended already
                answer(llm, ask, asks, replies)
    except Exception as error:
        replies.send(failed=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
    sys.stdout.flush()
