"""Client for ``/v1/completions`` of OpenAI-compatible servers.

It sends and receives token ids if the server supports them (``prompt`` as a list, ``return_token_ids``). Otherwise it
sends and receives text, which is tokenised again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from specbench.backends.protocol import Arrival, EngineCounters, Question
from specbench.backends.reply import Reply, asked
from specbench.backends.streaming import Refused, Server
from specbench.common import EngineFault, one_line

if TYPE_CHECKING:
    from specbench.models import LoadedModel

_PATH = "/v1/completions"
# Most text events per token of the budget, and in addition per answer: some events' text is less than a token.
_MOST_PER_TOKEN, _MOST_PER_ANSWER = 16, 1000
_TAKES_NO_IDS = {400, 415, 422, 500}  # HTTP statuses with which servers refuse a list, or an unknown field


class Completions:
    """One server and one of its models.

    Args:
        name: the model's name on the server; "" is its only model.

    Attributes:
        ids: whether the server takes and sends token ids; known after :meth:`probe`.
        last: the answer to the last question of :meth:`ask`.
    """

    def __init__(self, server: Server, name: str, model: LoadedModel) -> None:
        self.server, self.model = server, model
        self.name = name or self._only_model()
        self.ids = True
        self.last: Completion | None = None

    def probe(self) -> None:
        """Send a short prompt to find out whether the server supports token ids."""
        ids = list(self.model.tokenizer("Hello", add_special_tokens=False)["input_ids"])
        question = Question(ids=ids, budget=1, stop_ids=frozenset())
        try:
            self.ids = any(arrival.ids for arrival in self.ask(question, loose=True))
        except Refused as error:
            if error.status not in _TAKES_NO_IDS:
                raise
            self.ids = False
        if not self.ids and not any(arrival.text for arrival in self.ask(question)):
            raise EngineFault("its answer to a prompt is empty")

    def ask(self, question: Question, loose: bool = False) -> Iterator[Arrival]:
        """Yield the answer's tokens as they arrive; closing the iterator closes the connection.

        Args:
            loose: accept text instead of ids.

        Raises:
            EngineFault: see :meth:`Server.events`; or ids are missing, or the server has changed the prompt.
        """
        self.last = Completion(self, question, loose)
        return asked(self.server, self.last)

    def _only_model(self) -> str:
        try:
            names = [str(each["id"]) for each in self.server.json("/v1/models")["data"]]
        except (KeyError, TypeError):
            raise EngineFault("its /v1/models lists no models; name one with the option model") from None
        if len(names) != 1:
            shown = one_line(self.server.scrub(", ".join(names)), 120) or "none"
            raise EngineFault(f"it serves {len(names)} models ({shown}); name one with the option model")
        return names[0]


class Completion(Reply):
    """One answer.

    Attributes:
        sent: number of tokens received; of text, number of events.
        arrivals: number of events with tokens.
        finish: the server's reason why the answer ended, in the run's words.
    """

    path = _PATH

    def __init__(self, completions: Completions, question: Question, loose: bool = False) -> None:
        self._of, self._question, self._loose = completions, question, loose
        self._heard: float | None = None
        self.body = self._request()
        self.sent, self.arrivals = 0, 0
        self.finish: Literal["stop", "length"] | None = None

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        question = self._question
        self._heard = self._heard or time.monotonic()
        choice = self._choice(event)
        if choice is None:
            self._not_too_long_since(self._heard)
            return
        arrival = self._arrival(at_ns, choice)
        if arrival.ids or arrival.text:
            self.sent += len(arrival.ids) or 1
            self.arrivals += 1
            if self.arrivals > _MOST_PER_TOKEN * question.budget + _MOST_PER_ANSWER:
                raise EngineFault(f"it does not stop after its budget of {question.budget} tokens")
            yield arrival
            self._heard = time.monotonic()
        else:
            self._not_too_long_since(self._heard)
        if choice.get("finish_reason") is not None:
            self.finished = True
            self.finish = "length" if choice["finish_reason"] == "length" else "stop"
            if not self._of.ids and self.finish == "stop":
                yield Arrival(at_ns, (), self._end_in_text())  # the end token has no text

    def counters(self) -> EngineCounters:
        return EngineCounters(finish=self.finish)

    def _not_too_long_since(self, heard: float) -> None:
        """Raise an EngineFault if only events without tokens, which keep a connection open, arrive for too long."""
        timeout = self._of.server.timeout
        if time.monotonic() - heard > timeout:
            raise EngineFault(f"it stalled: events came but no token for {timeout:g} s")

    def _request(self) -> dict[str, Any]:
        question = self._question
        sampling: dict[str, Any] = {"temperature": question.temperature}
        if question.temperature > 0:
            sampling |= {"top_p": question.top_p, "seed": question.seed}
            if question.top_k:
                sampling["top_k"] = question.top_k
        body = {"model": self._of.name, "max_tokens": question.budget, "stream": True, **sampling}
        if not self._of.ids:
            return {**body, "prompt": self._of.model.tokenizer.decode(list(question.ids), skip_special_tokens=False)}
        own = {"return_token_ids": True, "stop_token_ids": sorted(question.stop_ids), "ignore_eos": True}
        return {**body, "prompt": list(question.ids), **own}

    def _choice(self, event: Any) -> dict[str, Any] | None:
        """Return an event's part of the answer; None for other events, such as token counts."""
        try:
            choices = event["choices"]
            found: dict[str, Any] | None = choices[0] if choices else None
            if found is None or isinstance(found, dict):
                return found
        except (KeyError, IndexError, TypeError):
            pass
        start = one_line(self._of.server.scrub(str(event)), 60)
        raise EngineFault(f"it sent an event that is not a completion: {start}")

    def _arrival(self, at_ns: int, choice: dict[str, Any]) -> Arrival:
        text, ids, prompt = choice.get("text") or "", choice.get("token_ids"), choice.get("prompt_token_ids")
        if not isinstance(text, str) or not isinstance(ids, (list, type(None))):
            raise EngineFault("it sent an event whose text is not a string or whose token_ids are not a list")
        if not self._of.ids:
            return Arrival(at_ns, (), text)
        if prompt is not None and prompt != list(self._question.ids):
            raise EngineFault("it changes the prompt before decoding, for example by a template")
        if text and not ids and not self._loose:
            raise EngineFault("it sent text without token ids, although it had sent ids before")
        return Arrival(at_ns, tuple(ids or ()), text)

    def _end_in_text(self) -> str:
        """Return the text of a stop token; "" if the run has none."""
        tokenizer = self._of.model.tokenizer
        ends = (
            [own] if (own := tokenizer.eos_token_id) in self._question.stop_ids else sorted(self._question.stop_ids)[:1]
        )
        return str(tokenizer.decode(ends, skip_special_tokens=False)) if ends else ""
