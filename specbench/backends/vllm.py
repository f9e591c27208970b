"""Run vLLM: a worker process in an environment of its own, or a server that the user runs, by URL.

In the worker, vLLM's engine runs in the same process, so that every step (one target forward) is seen. An idle worker
polls a hundred times a second, so a run stops it by a signal between its segments.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, Question, Served, Several
from specbench.backends.vllm_options import MODES, Drafter, further, speculation
from specbench.backends.vllm_server import VllmServer
from specbench.backends.weights import drafter, weights_of
from specbench.backends.workers.program import Program
from specbench.backends.workers.worker_requests import WorkerBackend
from specbench.common import EngineFault
from specbench.results import EngineFacts

# The only VLLM_ variables in the worker: they keep the engine in its process and disable usage reports.
_OWN = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# Libraries that it needs preloaded on a CPU.
_PRELOADED = ("lib/python*/site-packages/vllm/libs/libtcmalloc*.so*", "lib/libiomp5.so")
# As vLLM does when it binds threads: waiting threads spin for 5 milliseconds.
_OPENMP = {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}


class Backend(WorkerBackend):
    """vLLM without its prefix cache, so that repeated prompts are prefilled again."""

    title = "vLLM"
    modes = MODES
    by_url = "can be"

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._server: VllmServer | None = None

    @classmethod
    def version(cls, options: Any) -> str:
        return Program("vllm", options.python, "vllm:ar").version

    def start(self) -> EngineFacts:
        if self.served.url is not None:
            self._server = VllmServer(self.mode, self.options, self.served)
            return self._server.connect()
        if (
            isinstance(self.options, Drafter)
            and not self.options.model
            and getattr(self.options, "method", "") != "mtp"
        ):
            raise EngineFault(f"it needs a drafter; give --set {self.served.label}.model=PATH")
        program = Program("vllm", self.options.python, self.served.label)
        folder, weights = weights_of(self.served, "hf")
        engine = self._engine()
        cpu = self.served.model.model.device.type == "cpu"
        libraries = program.files(*_PRELOADED) if cpu else []
        outside = {"OMP_NUM_THREADS": str(self.served.threads), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        # Its n-gram drafter resets numba's number of threads after each use, which also changes OpenMP's.
        outside["NUMBA_NUM_THREADS"] = str(self.served.threads)
        outside |= {"LD_PRELOAD": ":".join(libraries), **_OPENMP} if libraries else {}
        begun = time.perf_counter()
        ready = self._launch(
            program.python, "vllm_worker.py", outside, ("VLLM_",), {"model": str(folder), **engine}, _OWN
        )
        if ready.get("ready") != program.version:
            raise EngineFault(f"its worker runs vLLM {ready.get('ready')}, but {program.version} is installed")
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
        return self._server.ask(question) if self._server is not None else super().ask(question)

    def counters(self) -> EngineCounters:
        return self._server.counters() if self._server is not None else super().counters()

    def several(self) -> Several:
        return self._server.several() if self._server is not None else super().several()

    def _engine(self) -> dict[str, Any]:
        """Return the arguments of ``vllm.LLM`` without the model."""
        cpu = self.served.model.model.device.type == "cpu"
        return {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": self.served.dtype,
            "max_model_len": self.served.capacity,
            "max_num_seqs": self.served.together,
            "enable_prefix_caching": False,
            "enforce_eager": self.options.enforce_eager,
            "kv_cache_memory_bytes": int(self.options.kv_cache_gib * (1 << 30)),
            "disable_log_stats": False,  # needed for its counters
            "seed": 0,
            **({} if cpu else {"async_scheduling": False}),  # one step at a time, as on a CPU
            **({} if self.mode == PLAIN else {"speculative_config": self._speculation()}),
            **further(self.options),
        }

    def _speculation(self) -> dict[str, Any] | None:
        found = speculation(self.mode, self.options, self.served.model)
        if found and found["method"] == "draft_model" and not Path(found["model"]).is_dir():
            model = drafter(found["model"], self.served)
            found["model"] = str(weights_of(replace(self.served, model=model), "hf")[0])
        return found


def _shown(engine: Mapping[str, Any], outside: Mapping[str, str]) -> list[str]:
    """Return all settings that affect decoding, without folders of this machine."""
    parts = [f"{name}={value}" for name, value in {**outside, **_OWN}.items()]
    parts += [f"{name}={json.dumps(value)}" for name, value in engine.items()]
    return [re.sub(r"[^\s=:\"]*/", "", part) for part in parts]
