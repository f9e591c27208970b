"""Measure any OpenAI-compatible server by its URL; the user has to know what it decodes with.

Only its tokens and their arrival times are known, not its forwards, weights or settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from pydantic import field_validator

from specbench.backends import protocol
from specbench.backends.completions import Completion, Completions
from specbench.backends.http_several import HttpSeveral
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, EngineOptions, Mode, Question, Served
from specbench.backends.streaming import Server
from specbench.common import EngineFault, keys, one_line, option
from specbench.results import EngineFacts, ServedWeights

_RECORDED = "imitated: a server of our tests"


class OpenAIOptions(EngineOptions):
    """Options of both modes."""

    model: str = option("", help="name of the model on the server; default is its only model")
    api_key_env: str = option("", help="name of the environment variable with the API key, if the server needs one")

    _named = field_validator("api_key_env")(keys.named)


class Backend(protocol.Backend):
    """A server by its URL; its support of token ids is found out when the run connects."""

    title = "OpenAI-compatible"
    modes: ClassVar = {
        PLAIN: Mode("a server that you know to decode plainly", OpenAIOptions, tried=_RECORDED),
        "spec": Mode("a server that you know to speculate", OpenAIOptions, tried=_RECORDED),
    }
    by_url = "has to be"
    answers_several = True

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._completions: Completions | None = None

    def start(self) -> EngineFacts:
        begun = time.perf_counter()
        assert self.served.url is not None, "make_row requires it"
        server = Server(self.served.url, self.options.timeout, self.options.api_key_env)
        self._completions = Completions(server, self.options.model, self.served.model)
        self._completions.probe()
        self.knows_stop_ids = self._completions.ids
        return EngineFacts(
            engine="openai",
            version=version_of(server),
            how="url",
            dtype=self.served.dtype,
            weights=ServedWeights(format="unknown", verified=False),
            ids=self._completions.ids,
            counts="nothing",
            start_s=time.perf_counter() - begun,
        )

    def ask(self, question: Question) -> Iterator[Arrival]:
        assert self._completions is not None, "it has been started"
        return self._completions.ask(question)

    def counters(self) -> EngineCounters:
        last = self._completions.last if self._completions else None
        return last.counters() if last else EngineCounters()

    def several(self) -> HttpSeveral:
        assert self._completions is not None, "it has been started"
        return HttpSeveral(self._completions.server, partial(Completion, self._completions))

    def close(self) -> None:
        self._completions = None


def version_of(server: Server) -> str:
    """Return a server's version from ``/version``, which vLLM and similar servers have, or "unknown"."""
    try:
        return one_line(server.scrub(str(server.json("/version")["version"])), 80)
    except (EngineFault, KeyError, TypeError):
        return "unknown"
