"""Measure a vLLM server that the user runs, by URL, with its counters read between requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from specbench.backends.completions import Completion, Completions
from specbench.backends.http_several import HttpSeveral
from specbench.backends.openai import version_of
from specbench.backends.protocol import Arrival, EngineCounters, EngineOptions, Question, Served
from specbench.backends.servers.prometheus import counters
from specbench.backends.streaming import Server
from specbench.common import EngineFault, one_line
from specbench.results import EngineFacts, ServedWeights

_SPECULATION = "vllm:spec_decode_num_"
_COUNTERS = {
    f"{_SPECULATION}drafts_total": "drafts",
    f"{_SPECULATION}draft_tokens_total": "draft_tokens",
    f"{_SPECULATION}accepted_tokens_total": "accepted_tokens",
    "vllm:generation_tokens_total": "tokens",
    "vllm:inter_token_latency_seconds_count": "steps",  # one per step after the first token
    "vllm:num_requests_running": "running",
}
_OF_A_SERVER = {*EngineOptions.model_fields, "model", "api_key_env"}
_SETTLING_S, _POLL_S = 2.0, 0.01


class VllmServer:
    """Connection of one row. Arguments as for a backend."""

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        assert served.url is not None
        wrong = sorted(options.model_fields_set - _OF_A_SERVER)
        if wrong:
            raise EngineFault(f"{', '.join(wrong)} cannot be set for a running server; remove it, or the server's URL")
        self._mode, self._options, self._served = mode, options, served
        self._server = Server(served.url, options.timeout, options.api_key_env)
        self._completions = Completions(self._server, options.model, served.model)
        self._before: Mapping[str, float] = {}
        self._latest: EngineCounters | None = None

    def connect(self) -> EngineFacts:
        """Send a first request and return the server's facts."""
        begun = time.perf_counter()
        self._completions.probe()
        if not self._completions.ids:
            raise EngineFault("its server sends no token ids; use openai:ar or openai:spec, which accept text")
        self._before = self._settled()
        return EngineFacts(
            engine="vllm",
            version=version_of(self._server),
            how="url",
            dtype=self._served.dtype,
            weights=ServedWeights(format="unknown", verified=False),
            counts="total" if self._before else "nothing",
            start_s=time.perf_counter() - begun,
        )

    def ask(self, question: Question) -> Iterator[Arrival]:
        """Yield the answer's tokens as they arrive."""
        self._latest = (
            None  # the last counters are the starting point: reading them here would take time of the request
        )
        return self._completions.ask(question)

    def several(self) -> HttpSeveral:
        """Requests that the server answers at the same time, each with its own counters if the server sends them."""
        return HttpSeveral(self._server, partial(_Counted, self._completions))

    def counters(self) -> EngineCounters:
        """Return the counters of the last request, or empty ones if other requests are included.

        An aborted answer has further steps whose tokens were not read, so its forwards are its events, one per step.
        """
        if self._latest is None:
            self._latest = self._counted()
        return self._latest

    def _counted(self) -> EngineCounters:
        last = self._completions.last
        sent, whole, arrivals = (last.sent, last.finished, last.arrivals) if last else (0, False, 0)
        before, after = self._before, self._settled()
        self._before = after
        here = {name: after[name] - before.get(name, 0.0) for name in after if name != "running"}
        if not here or after.get("running") or (whole and here.get("tokens") != sent):
            return EngineCounters()
        steps = int(here.get("steps", 0)) if whole else max(0, arrivals - 1)
        if not {"drafts", "draft_tokens", "accepted_tokens"} <= here.keys():
            return EngineCounters(forwards=steps)
        drafts, accepted = here["drafts"], here["accepted_tokens"]
        own = {"mean_acceptance_length": 1 + accepted / drafts} if drafts else {}
        return EngineCounters(steps, int(here["draft_tokens"]), int(accepted), own=own)

    def _settled(self) -> Mapping[str, float]:
        """Return the counters after all requests have ended."""
        until = time.monotonic() + _SETTLING_S
        while (found := counters(self._server, _COUNTERS)).get("running") and time.monotonic() < until:
            time.sleep(_POLL_S)
        return found


class _Counted(Completion):
    """An answer with the counters of its request alone, in the event after its end.

    vLLM sends them if it was started with ``--per-request-spec-decode-metrics summary``. Each event is a forward.
    """

    _metrics: Any = None

    def _request(self) -> dict[str, Any]:
        return {**super()._request(), "stream_options": {"include_usage": True}}

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        yield from super().take(at_ns, event)
        self.finished = isinstance(event, dict) and not event.get("choices") and event.get("usage") is not None
        if self.finished and isinstance(metrics := event.get("metrics"), dict):
            self._metrics = metrics.get("speculative_decoding")

    def counters(self) -> EngineCounters:
        forwards, found = max(0, self.arrivals - 1), self._metrics
        if not isinstance(found, dict):
            return EngineCounters(forwards)
        drafted, accepted, histogram = (
            found.get(name) for name in ("num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram")
        )
        counts = histogram if isinstance(histogram, list) else [None]
        if any(type(each) is not int or each < 0 for each in (drafted, accepted, *counts)):
            raise EngineFault(f"its counters of a request are invalid: {one_line(str(found), 80)}")
        return EngineCounters(forwards, drafted, accepted, histogram)
