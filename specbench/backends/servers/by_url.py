"""What rows of engines that run as a server of the user share: connection, token ids, and counts of forwards."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from specbench.backends import protocol
from specbench.backends.http_several import HttpSeveral
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, EngineOptions, Question, Served, Several
from specbench.backends.reply import Reply, asked
from specbench.backends.streaming import Server
from specbench.common import EngineFault, keys, one_line, option
from specbench.results import EngineFacts, ServedWeights


class UrlOptions(EngineOptions):
    """Options of a server's row; all else is set where the server is started."""

    api_key_env: str = option("", help="name of the environment variable with the API key, if the server needs one")

    _named = field_validator("api_key_env")(keys.named)


class IdReply(Reply):
    """An answer whose events have token ids. Subclasses set ``path`` and ``body``, and take events.

    Args:
        drafts: whether the server speculates; else each token is a target forward.
        timeout: most seconds of events without tokens.

    Attributes:
        sent: number of tokens so far.
        steps: least number of target forwards so far: each arrival has one of its own.
    """

    def __init__(self, question: Question, *, drafts: bool, timeout: float) -> None:
        self.sent = self.steps = 0
        self.first_sent = self.first_steps = 0  # those of the first arrival
        self._question, self._drafts, self._timeout = question, drafts, timeout
        self._heard_ns = 0

    def arrival(self, at_ns: int, ids: Any, steps: int = 0) -> Iterator[Arrival]:
        """Check and yield the tokens of an event, if it has any.

        Args:
            steps: target forwards so far by the server; 0 if it does not report them.
        """
        if not isinstance(ids, list) or any(type(each) is not int or each < 0 for each in ids):
            raise EngineFault("it sent an event without a list of token ids")
        if not ids:
            self._heard_ns = self._heard_ns or at_ns
            if at_ns - self._heard_ns > self._timeout * 1e9:
                raise EngineFault(f"it stalled: events came but no token for {self._timeout:g} s")
            return
        self.sent += len(ids)
        self.steps = max(self.steps + 1, steps)
        if not self.first_sent:
            self.first_sent, self.first_steps = self.sent, self.steps
        if self.sent > self._question.budget:
            raise EngineFault(f"it generated more than its budget of {self._question.budget} tokens")
        yield Arrival(at_ns, tuple(ids))
        self._heard_ns = time.perf_counter_ns()

    def counters(self) -> EngineCounters:
        """Return the forwards after the first arrival, None if they are unknown."""
        return EngineCounters(None if self._drafts else self.sent - self.first_sent)

    def check_prompt(self, tokens: Any) -> None:
        """Check the number of prompt tokens that the server reports."""
        if tokens != len(self._question.ids):
            read = one_line(str(tokens), 20)
            raise EngineFault(f"it read {read} of the prompt's {len(self._question.ids)} tokens")

    def end(self, reason: Any) -> None:
        """End the answer if the server gives a reason: a stop token, or the full budget."""
        if reason is None:
            return
        found = reason if isinstance(reason, dict) else {"type": reason}
        kind = found.get("type")
        if kind not in ("stop", "length") or (kind == "length" and self.sent < self._question.budget):
            why = one_line(str(found.get("message") or kind), 80)
            raise EngineFault(f"it ended an answer after {self.sent} tokens ({why})")
        self.finished = True


class Backend(protocol.Backend):
    """A server by its URL that exchanges token ids, in the mode that it was started with."""

    #: Part of a row's name before the colon.
    name: ClassVar[str]
    by_url = "has to be"
    answers_several = True
    counts: Literal["total", "nothing"] = "total"

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._reply: IdReply | None = None

    def start(self) -> EngineFacts:
        begun = time.perf_counter()
        assert self.served.url is not None, "make_row requires it"
        self.server = Server(self.served.url, self.options.timeout, self.options.api_key_env)
        about = self.connect()
        for _ in self.ask(Question(ids=(0, 1), budget=2, stop_ids=frozenset())):
            pass
        self.answered()
        return EngineFacts(
            engine=self.name,
            how="url",
            dtype=self.served.dtype,
            counts=self.counts,
            start_s=time.perf_counter() - begun,
            **{"version": "unknown", "weights": ServedWeights(format="unknown", verified=False), **about},
        )

    @abstractmethod
    def connect(self) -> Mapping[str, Any]:
        """Check that the server goes with the row, and return facts about it."""

    def answered(self) -> None:
        """Check what is known of the server after its first answer; ``counts`` may change here."""

    @abstractmethod
    def reply(self, question: Question) -> IdReply:
        """Return the request for a prompt."""

    def ask(self, question: Question) -> Iterator[Arrival]:
        self._reply = self.reply(question)
        return asked(self.server, self._reply)

    def several(self) -> Several:
        return HttpSeveral(self.server, self.reply)

    def counters(self) -> EngineCounters:
        return EngineCounters() if self._reply is None else self._reply.counters()

    def close(self) -> None:
        """The server is the user's."""

    def check_speculation(self, speculates: bool) -> None:
        """Raise an EngineFault if the row is a speculating one and the server is not, or the other way around."""
        if speculates is not (self.mode != PLAIN):
            does = "speculates" if speculates else "does not speculate"
            raise EngineFault(f"its server {does}; give the URL of a server that is started for {self.mode}")


def sampling_of(question: Question, *, no_top_k: int) -> dict[str, Any]:
    """Return a request's sampling with the names that servers share; greedy is top_k 1, without dividing by 0.

    Args:
        no_top_k: the server's value for sampling from all tokens.
    """
    if question.temperature == 0:
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": question.temperature, "top_k": question.top_k or no_top_k, "top_p": question.top_p}


def whole_number(content: Mapping[str, Any], key: str) -> int:
    """Return a count in a server's answer; 0 if it has none."""
    found = content.get(key) or 0
    if type(found) is not int or found < 0:
        raise EngineFault(f"its {key} is not a count: {one_line(str(found), 20)}")
    return found
