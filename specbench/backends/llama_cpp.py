"""llama.cpp: ``llama-server`` on the run's weights, started here, or one of the user's by URL.

One server a row, one request at a time, which ends where the budget is used up or the run closes it. What it is asked
with is in :func:`_body`, what it is started with in :mod:`specbench.backends.llama_options`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from specbench.backends import protocol
from specbench.backends.llama_options import MODES, TIMES, flags
from specbench.backends.llama_program import Program
from specbench.backends.llama_stream import DRAFTED, Steps
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, EngineOptions, Question, Served
from specbench.backends.streaming import Lost, Server
from specbench.backends.weights import weights_of
from specbench.common import Child, EngineFault, one_line
from specbench.results import EngineFacts, ServedWeights

_LOOK_S = 0.002
_IDLE_S = 60.0  # for the step that runs when a request is given up
_DYING_S = 2.0  # from the end of its connections to its own


class Backend(protocol.Backend):
    """llama.cpp's server: a request at a time, greedy or by the run's sampling, with no other sampler of its own."""

    title = "llama.cpp"
    modes = MODES
    by_url = "can be"
    # No token of the exported file's vocabulary ends an answer. By URL one may: it is an end where the run has it too.
    told_stop_ids = False

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._child: Child | None = None
        self._server: Server | None = None
        self._steps: Steps | None = None

    @classmethod
    def version(cls, options: Any) -> str:
        """What it says of itself by ``--version``."""
        return Program(options.server).version()

    def start(self) -> EngineFacts:
        """Starts it on the run's weights, or connects to it, and has it answer once."""
        return self._start_here() if self.served.url is None else self._connect(self.served.url)

    def _start_here(self) -> EngineFacts:
        program = Program(self.options.server)
        version = program.version()
        arguments = program.arguments(flags(self.mode, self.options, self.served), self.options.server_args)
        # A vocabulary of placeholders: none of them ends an answer, and each has its text at once.
        file, weights = weights_of(self.served, "gguf")
        port = _free_port()
        begun = time.perf_counter()
        self._child = Child([program.path, "--model", str(file), "--port", str(port), *arguments])
        self._server = Server(f"http://127.0.0.1:{port}", self.options.timeout)
        self._wait_for(lambda: self._get("/health").get("status") == "ok", self.options.start_timeout)
        self._answer_once()
        return EngineFacts(
            engine="llama.cpp",
            version=version,
            how="server",
            command=["llama-server", *(re.sub(r"[^\s=]*/", "", part) for part in arguments)],
            dtype=self.served.dtype,
            weights=weights,
            counts="forwards",
            start_s=time.perf_counter() - begun,
        )

    def _connect(self, url: str) -> EngineFacts:
        begun = time.perf_counter()
        own = sorted(self.options.model_fields_set - EngineOptions.model_fields.keys())
        if own:
            raise EngineFault(f"a server that runs has its own settings; leave {', '.join(own)} away, or its URL")
        self._server = Server(url, self.options.timeout)
        props, slots = self._get("/props"), self._slots()
        if slots[0].get("speculative") is not (self.mode != PLAIN):
            does = "speculates" if self.mode == PLAIN else "does not speculate"
            raise EngineFault(f"its server {does}; give {self.mode} the URL of one that is started so")
        room = slots[0].get("n_ctx")
        if not isinstance(room, int) or room < self.served.capacity:
            raise EngineFault(f"it has room for {room} tokens of {self.served.capacity}; raise its --ctx-size")
        self._answer_once()
        return EngineFacts(
            engine="llama.cpp",
            version=one_line(str(props.get("build_info", "unknown")), 80),
            how="url",
            dtype=self.served.dtype,
            weights=ServedWeights(format="gguf", verified=False),
            counts="forwards",
            start_s=time.perf_counter() - begun,
        )

    def ask(self, question: Question) -> Iterator[Arrival]:
        self._steps = steps = Steps(question, drafts=self.mode != PLAIN)
        assert self._server is not None, "it has been started"
        events = self._server.events("/completion", _body(question, drafts=self.mode != PLAIN))
        try:
            with closing(events):
                yield from steps.of(events)
        except GeneratorExit:
            if not steps.finished:  # it hears of the closed connection when it has the next token
                self._wait_for(lambda: not any(slot.get("is_processing") for slot in self._slots()), _IDLE_S)
            raise
        except Lost as error:
            raise self._fault(error) from error

    def told(self) -> EngineCounters:
        if self._steps is None:
            return EngineCounters()
        timings, verified = self._steps.timings, self._steps.verified
        own = {key: float(timings[key]) for key in TIMES if isinstance(timings.get(key), (int, float))}
        if self.mode == PLAIN:
            return EngineCounters(own=own)
        drafted, accepted = (timings.get(key, 0) for key in DRAFTED)
        if verified:
            own |= {"mean_len": 1 + accepted / verified, "draft_acceptance": accepted / drafted}
        return EngineCounters(draft_tokens=drafted, accepted_tokens=accepted, own=own)

    def processes(self) -> Sequence[int]:
        return () if self._child is None or not self._child.running else (self._child.pid,)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()

    def _wait_for(self, done: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                if done():
                    return
            except EngineFault:  # it does not listen yet, or loads
                pass
            if self._child is not None and not self._child.running:
                raise self._child.died()
            if time.monotonic() > until:
                raise EngineFault(f"it was not ready within {seconds:g} s")
            time.sleep(_LOOK_S)

    def _answer_once(self) -> None:
        """A first answer, which says whether it sends what is needed; what it says of it is of no request."""
        for _ in self.ask(Question(ids=(0, 1), budget=1, stop_ids=frozenset())):
            pass
        self._steps = None

    def _get(self, path: str) -> dict[str, Any]:
        assert self._server is not None, "it has been started"
        found = self._server.json(path)
        if not isinstance(found, dict):
            raise EngineFault(f"its {path} is no JSON object; it is no llama-server")
        return found

    def _slots(self) -> Sequence[Mapping[str, Any]]:
        assert self._server is not None, "it has been started"
        found = self._server.json("/slots")
        if not isinstance(found, list) or not found or not all(isinstance(slot, dict) for slot in found):
            raise EngineFault("its /slots is no list; start it without --no-slots")
        return found

    def _fault(self, error: Lost) -> EngineFault:
        """Why a connection was lost: the end of its process, where that is what it was."""
        return error if self._child is None else self._child.died(_DYING_S)


def _body(question: Question, *, drafts: bool) -> dict[str, Any]:
    """A request whose samplers are those named, in an order that gives what temperature, top-k, top-p gives."""
    greedy = question.temperature == 0
    return {
        "prompt": list(question.ids),
        "n_predict": question.budget,
        "stream": True,
        "return_tokens": True,
        "timings_per_token": drafts,  # which it needs time for, and nobody needs where each token is a forward
        "cache_prompt": False,
        "ignore_eos": False,  # true would forbid tokens, where a vocabulary has some that end an answer
        "samplers": ["top_k"] if greedy else ["top_k", "temperature", "top_p"],
        "top_k": 1 if greedy else question.top_k,
        "top_p": question.top_p,
        "temperature": question.temperature,
        "dynatemp_range": 0,
        "mirostat": 0,
        "seed": question.seed & 0xFFFFFFFF,
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
