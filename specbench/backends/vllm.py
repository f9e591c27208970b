"""Run vLLM: a worker process in an environment of its own, or a server that the user runs, by URL.

In the worker, vLLM's engine runs in the same process, so that every step (one target forward) is seen. An idle worker
polls a hundred times a second, so a run stops it by a signal between its segments.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from specbench.backends import protocol
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, Question, Served
from specbench.backends.vllm_options import MODES, Drafter, further, speculation
from specbench.backends.vllm_program import Program
from specbench.backends.vllm_server import VllmServer
from specbench.backends.weights import weights_of
from specbench.common import Child, EngineFault, one_line
from specbench.results import EngineFacts

_WORKER = Path(__file__).with_name("vllm_worker.py")
# The only VLLM_ variables in the worker: they keep the engine in its process and disable usage reports.
_OWN = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# As vLLM does when it binds threads: waiting threads spin for 5 milliseconds.
_OPENMP = {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}


class Backend(protocol.Backend):
    """vLLM with one request at a time and without its prefix cache, so that repeated prompts are prefilled again."""

    title = "vLLM"
    modes = MODES
    by_url = "can be"

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._child: Child | None = None
        self._server: VllmServer | None = None
        self._number = 0
        self._counters = EngineCounters()

    @classmethod
    def version(cls, options: Any) -> str:
        return Program(options.python, "vllm:ar").version

    def start(self) -> EngineFacts:
        if self.served.url is not None:
            self._server = VllmServer(self.mode, self.options, self.served)
            return self._server.connect()
        if isinstance(self.options, Drafter) and not self.options.model:
            raise EngineFault(f"it needs a drafter; give --set {self.served.label}.model=PATH")
        program = Program(self.options.python, self.served.label)
        folder, weights = weights_of(self.served, "hf")
        engine = self._engine()
        libraries = program.preloads() if self.served.model.model.device.type == "cpu" else []
        outside = {"OMP_NUM_THREADS": str(self.served.threads), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        # Its n-gram drafter resets numba's number of threads after each use, which also changes OpenMP's.
        outside["NUMBA_NUM_THREADS"] = str(self.served.threads)
        outside |= {"LD_PRELOAD": ":".join(libraries), **_OPENMP} if libraries else {}
        begun = time.perf_counter()
        # Isolated (-I): without our PYTHONPATH, and without the worker's folder, whose modules have names of packages.
        self._child = Child([program.python, "-I", str(_WORKER)], environment=outside, pipes=True)
        self._child.send(environment=_OWN, engine={"model": str(folder), **engine})
        _, ready = _heard(self._child, self.options.start_timeout, "start")
        if ready.get("ready") != program.version:
            raise EngineFault(f"its worker runs vLLM {ready.get('ready')}, but {program.version} is installed")
        for _ in self.ask(Question([self.served.model.pad_id], 1, frozenset())):
            pass
        return EngineFacts(
            engine="vllm",
            version=program.version,
            package=program.package,
            how="worker",
            command=_shown(engine, outside),
            dtype=self.served.dtype,
            weights=weights,
            counts="forwards",
            start_s=time.perf_counter() - begun,
        )

    def ask(self, question: Question) -> Iterator[Arrival]:
        return self._server.ask(question) if self._server is not None else self._ask(question)

    def _ask(self, question: Question) -> Iterator[Arrival]:
        child, steps = self._child, _Steps()
        assert child is not None, "it has been started"
        self._number, self._counters = self._number + 1, EngineCounters()
        child.send(
            ask=self._number,
            ids=list(question.ids),
            budget=question.budget,
            stop_ids=sorted(question.stop_ids),
            temperature=question.temperature,
            top_k=question.top_k,
            top_p=question.top_p,
            seed=question.seed,
        )
        try:
            while True:
                at_ns, reply = _heard(child, self.options.timeout, "decode")
                if "end" in reply:
                    break
                yield steps.take(at_ns, reply)
        except GeneratorExit:
            child.send(give_up=self._number)
            while "end" not in (reply := _heard(child, self.options.timeout, "give up a request")[1]):
                pass
            self._counters = steps.counters(reply, given_up=True)
            raise
        self._counters = steps.counters(reply)

    def counters(self) -> EngineCounters:
        return self._server.counters() if self._server is not None else self._counters

    def processes(self) -> Sequence[int]:
        return () if self._child is None or not self._child.running else (self._child.pid,)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()

    def _engine(self) -> dict[str, Any]:
        """Return the arguments of ``vllm.LLM`` without the model."""
        cpu = self.served.model.model.device.type == "cpu"
        return {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": self.served.dtype,
            "max_model_len": self.served.capacity,
            "max_num_seqs": 1,
            "enable_prefix_caching": False,
            "enforce_eager": self.options.enforce_eager,
            "kv_cache_memory_bytes": int(self.options.kv_cache_gib * (1 << 30)),
            "disable_log_stats": False,  # needed for its counters
            "seed": 0,
            **({} if cpu else {"async_scheduling": False}),  # one step at a time, as on a CPU
            **({} if self.mode == PLAIN else {"speculative_config": speculation(self.mode, self.options)}),
            **further(self.options),
        }


def _heard(child: Child, within_s: float, doing: str) -> tuple[int, dict[str, Any]]:
    """Return the arrival time and content of the worker's next line."""
    at_ns, found = child.next(within_s, doing)
    if "failed" in found:
        raise EngineFault(one_line(str(found["failed"]), 300))
    return at_ns, found


class _Steps:
    """Steps of one answer: when each ended in the worker, and when it arrived here."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._shares: list[float] = []

    def take(self, at_ns: int, reply: Mapping[str, Any]) -> Arrival:
        ids, stamp = reply.get("ids"), reply.get("ns")
        if not isinstance(ids, list) or not ids or not isinstance(stamp, int):
            raise EngineFault(f"its worker wrote a step without tokens: {one_line(repr(reply), 80)}")
        if self._at and at_ns > self._at[-1]:
            self._shares.append((at_ns - stamp) / (at_ns - self._at[-1]))
        self._at.append(at_ns)
        return Arrival(at_ns, ids)

    def counters(self, reply: Mapping[str, Any], given_up: bool = False) -> EngineCounters:
        """Return vLLM's counters; those of an aborted request include steps whose tokens were not read."""
        counted = reply.get("counters")
        if not isinstance(counted, dict) or not all(type(value) is int for value in counted.values()):
            raise EngineFault(f"its worker wrote invalid counters: {one_line(repr(counted), 80)}")
        own: dict[str, float] = {}
        if self._shares:
            own["pipe_share"] = sum(self._shares) / len(self._shares)
        if not {"drafts", "draft_tokens", "accepted_tokens"} <= counted.keys():
            return EngineCounters(own=own)
        if counted["drafts"]:
            own["mean_acceptance_length"] = 1 + counted["accepted_tokens"] / counted["drafts"]
        if "decode_steps" in counted and not given_up:
            own["forwards_by_counters"] = counted["decode_steps"]
        return EngineCounters(
            draft_tokens=counted["draft_tokens"],
            accepted_tokens=counted["accepted_tokens"],
            histogram=_histogram(counted),
            own=own,
        )


def _histogram(counted: Mapping[str, int]) -> list[int] | None:
    """Drafts by accepted tokens, from vLLM's counter of each position; None if it has none."""
    positions = list(takewhile(bool, (counted.get(f"accepted_at_{at}") for at in count(1))))
    least = [counted["drafts"], *(each or 0 for each in positions), 0]
    return [more - less for more, less in pairwise(least)] if "accepted_at_1" in counted else None


def _shown(engine: Mapping[str, Any], outside: Mapping[str, str]) -> list[str]:
    """Return all settings that affect decoding, without folders of this machine."""
    parts = [f"{name}={value}" for name, value in {**outside, **_OWN}.items()]
    parts += [f"{name}={json.dumps(value)}" for name, value in engine.items()]
    return [re.sub(r"[^\s=:\"]*/", "", part) for part in parts]
