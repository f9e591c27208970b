"""Run llama.cpp's ``llama-server``: started here on the run's weights, or a server of the user by URL.

Each row has its own server. A request ends when its budget is used up or the run closes its connection.
``llama_stream`` has the requests, ``llama_options`` the server's command-line options.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specbench.backends import protocol
from specbench.backends.http_several import HttpSeveral
from specbench.backends.llama.llama_options import MODES, draft_file, flags
from specbench.backends.llama.llama_program import Program
from specbench.backends.llama.llama_stream import Steps
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, EngineOptions, Question, Served, Several
from specbench.backends.reply import asked
from specbench.backends.streaming import Lost, Server
from specbench.backends.weights import weights_of
from specbench.common import Child, EngineFault, one_line
from specbench.results import EngineFacts, ServedWeights

_POLL_S = 0.002
_IDLE_S = 60.0  # limit for the step that is running when a request is given up
_DYING_S = 2.0  # limit between the end of its connections and of the process


class Backend(protocol.Backend):
    """llama.cpp's server, with only the run's samplers."""

    title = "llama.cpp"
    modes = MODES
    by_url = "can be"
    answers_several = True
    # The exported file's vocabulary has no stop token. A server by URL may stop at one, which must be a stop token of
    # the run too.
    knows_stop_ids = False

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self.weights_of = weights_of  # replaced to serve a file that is not the model's own weights
        self._child: Child | None = None
        self._server: Server | None = None
        self._steps: Steps | None = None

    @classmethod
    def version(cls, options: Any) -> str:
        """Return the output of ``llama-server --version``."""
        return Program(options.server).version()

    def start(self) -> EngineFacts:
        """Start a server on the run's weights or connect to one, and send it a first request."""
        return self._start_here() if self.served.url is None else self._connect(self.served.url)

    def _start_here(self) -> EngineFacts:
        program = Program(self.options.server)
        version = program.version()
        arguments = program.arguments(flags(self.mode, self.options, self.served), self.options.server_args)
        # The file has a vocabulary of placeholders: none is a stop token, and each has a complete text.
        file, weights = self.weights_of(self.served, "gguf")
        drafter = draft_file(self.options, self.served)
        files = ["--model", str(file), *(["--spec-draft-model", str(drafter)] if drafter else [])]
        port = _free_port()
        begun = time.perf_counter()
        self._child = Child([program.path, *files, "--port", str(port), *arguments])
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
            raise EngineFault(f"{', '.join(own)} cannot be set for a running server; remove it, or the server's URL")
        self._server = Server(url, self.options.timeout)
        props, slots = self._get("/props"), self._slots()
        if slots[0].get("speculative") is not (self.mode != PLAIN):
            does = "speculates" if self.mode == PLAIN else "does not speculate"
            raise EngineFault(f"its server {does}; give the URL of a server that is started for {self.mode}")
        if len(slots) < self.served.together:
            raise EngineFault(f"it has {len(slots)} slots and {self.served.together} are needed; raise its --parallel")
        room = slots[0].get("n_ctx")
        if not isinstance(room, int) or room < self.served.capacity:
            raise EngineFault(
                f"its context has {room} tokens and {self.served.capacity} are needed; raise its --ctx-size"
            )
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
        assert self._server is not None, "it has been started"
        self._steps = steps = self._reply(question)
        try:
            yield from asked(self._server, steps)
        except GeneratorExit:
            if not steps.finished:  # it notices the closed connection only when it sends the next token
                self._wait_until_idle()
            raise
        except Lost as error:
            raise self._fault(error) from error

    def counters(self) -> EngineCounters:
        return EngineCounters() if self._steps is None else self._steps.counters()

    def several(self) -> Several:
        return _Requests(self)

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
            except EngineFault:  # not listening yet, or still loading
                pass
            if self._child is not None and not self._child.running:
                raise self._child.died()
            if time.monotonic() > until:
                raise EngineFault(f"it was not ready within {seconds:g} s")
            time.sleep(_POLL_S)

    def _answer_once(self) -> None:
        """Send a first request to check that the server's answers have the needed fields."""
        for _ in self.ask(Question(ids=(0, 1), budget=1, stop_ids=frozenset())):
            pass
        self._steps = None

    def _get(self, path: str) -> dict[str, Any]:
        assert self._server is not None, "it has been started"
        found = self._server.json(path)
        if not isinstance(found, dict):
            raise EngineFault(f"its {path} is not a JSON object, so it is not a llama-server")
        return found

    def _slots(self) -> Sequence[Mapping[str, Any]]:
        assert self._server is not None, "it has been started"
        found = self._server.json("/slots")
        if not isinstance(found, list) or not found or not all(isinstance(slot, dict) for slot in found):
            raise EngineFault("its /slots is not a list of slots; start it without --no-slots")
        return found

    def _reply(self, question: Question) -> Steps:
        return Steps(question, drafts=self.mode != PLAIN)

    def _wait_until_idle(self) -> None:
        self._wait_for(lambda: not any(slot.get("is_processing") for slot in self._slots()), _IDLE_S)

    def _fault(self, error: Lost) -> EngineFault:
        """Return why a connection was lost: the end of the server's process if it was started here."""
        return error if self._child is None else self._child.died(_DYING_S)


class _Requests(HttpSeveral):
    """Requests of a backend whose server is started, each in a slot of the server."""

    def __init__(self, backend: Backend) -> None:
        assert backend._server is not None, "it has been started"
        super().__init__(backend._server, backend._reply, backend._wait_until_idle)
        self._fault = backend._fault

    def submit(self, question: Question) -> int:
        try:
            return super().submit(question)
        except Lost as error:
            raise self._fault(error) from error

    def poll(self, seconds: float) -> Sequence[tuple[int, Arrival | None]]:
        try:
            return super().poll(seconds)
        except Lost as error:
            raise self._fault(error) from error


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
