"""A prompt to ``/v1/completions`` of an OpenAI-compatible server, its tokens back.

Token ids go in and come out where the server takes and gives them (``prompt`` as a list, ``return_token_ids``). Else
text goes in and comes out, and a tokenizer reads it anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from specbench.backends.protocol import Arrival, Question
from specbench.backends.streaming import Refused, Server
from specbench.common import EngineFault, one_line

if TYPE_CHECKING:
    from specbench.models import LoadedModel

_PATH = "/v1/completions"
# Events with text, for a token of the budget and for an answer beside: text may come to no tokens at all.
_MOST_A_TOKEN, _MOST_BESIDE = 16, 1000
_TAKES_NO_IDS = {400, 415, 422, 500}  # what servers say to a list, or to a field that they do not know


class Completions:
    """One server and one of its models.

    Args:
        name: of the model there; "" takes its only one.

    Attributes:
        ids: whether token ids go in and come out; known after :meth:`probe`.
        sent: tokens of the answer asked for last, as far as it came; of text, its events.
        arrivals: events with tokens of that answer.
        finish: how it says that it ended, of the words that the run has too.
    """

    def __init__(self, server: Server, name: str, model: LoadedModel) -> None:
        self._server, self._model = server, model
        self._name = name or self._only_model()
        self.ids = True
        self.sent, self.arrivals, self.whole = 0, 0, False
        self.finish: Literal["stop", "length"] | None = None

    def probe(self) -> None:
        """Has it answer a short prompt, with ids if it can."""
        ids = list(self._model.tokenizer("Hello", add_special_tokens=False)["input_ids"])
        question = Question(ids=ids, budget=1, stop_ids=frozenset())
        try:
            self.ids = any(arrival.ids for arrival in self.ask(question, loose=True))
        except Refused as error:
            if error.status not in _TAKES_NO_IDS:
                raise
            self.ids = False
        if not self.ids and not any(arrival.text for arrival in self.ask(question)):
            raise EngineFault("it answers a prompt with nothing")

    def ask(self, question: Question, loose: bool = False) -> Iterator[Arrival]:
        """Yields what arrives; closing it closes the connection.

        Args:
            loose: text in place of ids is no fault.

        Raises:
            EngineFault: see :meth:`Server.events`; or no ids, or those of another prompt.
        """
        self.sent, self.arrivals, self.whole, self.finish = 0, 0, False, None
        with closing(self._server.events(_PATH, self._body(question))) as events:
            heard: float | None = None
            for at_ns, event in events:
                heard = heard or time.monotonic()
                choice = self._choice(event)
                if choice is None:
                    self._not_too_long_since(heard)
                    continue
                arrival = self._arrival(at_ns, choice, question, loose)
                if arrival.ids or arrival.text:
                    self.sent += len(arrival.ids) or 1
                    self.arrivals += 1
                    if self.arrivals > _MOST_A_TOKEN * question.budget + _MOST_BESIDE:
                        raise EngineFault(f"it goes on and on behind a budget of {question.budget} tokens")
                    yield arrival
                    heard = time.monotonic()
                else:
                    self._not_too_long_since(heard)
                if choice.get("finish_reason") is not None:
                    self.whole = True
                    self.finish = "length" if choice["finish_reason"] == "length" else "stop"
                    if not self.ids and self.finish == "stop":
                        yield Arrival(at_ns, (), self._end_in_text(question))  # it ends by a token and sends no text

    def _not_too_long_since(self, heard: float) -> None:
        """Events without tokens keep a connection awake; without end they would keep a run waiting too."""
        if time.monotonic() - heard > self._server.timeout:
            raise EngineFault(f"it stalled: no token came for {self._server.timeout:g} s, though events did")

    def _body(self, question: Question) -> dict[str, Any]:
        drawn: dict[str, Any] = {"temperature": question.temperature}
        if question.temperature > 0:
            drawn |= {"top_p": question.top_p, "seed": question.seed}
            if question.top_k:
                drawn["top_k"] = question.top_k
        body = {"model": self._name, "max_tokens": question.budget, "stream": True, **drawn}
        if not self.ids:
            return {**body, "prompt": self._model.tokenizer.decode(list(question.ids), skip_special_tokens=False)}
        own = {"return_token_ids": True, "stop_token_ids": sorted(question.stop_ids), "ignore_eos": True}
        return {**body, "prompt": list(question.ids), **own}

    def _choice(self, event: Any) -> dict[str, Any] | None:
        """What an event says of the answer; None where it is about something else, such as the number of tokens."""
        try:
            choices = event["choices"]
            found: dict[str, Any] | None = choices[0] if choices else None
            if found is None or isinstance(found, dict):
                return found
        except (KeyError, IndexError, TypeError):
            pass
        start = one_line(self._server.scrub(str(event)), 60)
        raise EngineFault(f"it sent an event that is no completion: {start}")

    def _arrival(self, at_ns: int, choice: dict[str, Any], question: Question, loose: bool) -> Arrival:
        text, ids, prompt = choice.get("text") or "", choice.get("token_ids"), choice.get("prompt_token_ids")
        if not isinstance(text, str) or not isinstance(ids, (list, type(None))):
            raise EngineFault("it sent an event whose text is none, or whose token_ids are no list")
        if not self.ids:
            return Arrival(at_ns, (), text)
        if prompt is not None and prompt != list(question.ids):
            raise EngineFault("its server decodes from another prompt than it was given; its template changes it")
        if text and not ids and not loose:
            raise EngineFault("it sent text and no token ids, though it had sent some before")
        return Arrival(at_ns, tuple(ids or ()), text)

    def _end_in_text(self, question: Question) -> str:
        """The text of a token that ends an answer; "" where the run has none."""
        own = self._model.tokenizer.eos_token_id
        ends = [own] if own in question.stop_ids else sorted(question.stop_ids)[:1]
        return str(self._model.tokenizer.decode(ends, skip_special_tokens=False)) if ends else ""

    def _only_model(self) -> str:
        try:
            names = [str(each["id"]) for each in self._server.json("/v1/models")["data"]]
        except (KeyError, TypeError):
            raise EngineFault("its /v1/models lists no models; name one by the option model") from None
        if len(names) != 1:
            shown = one_line(self._server.scrub(", ".join(names)), 120) or "none"
            raise EngineFault(f"it serves {len(names)} models ({shown}); name one by the option model")
        return names[0]
