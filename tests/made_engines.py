"""Engines of the tests' own: one that hands over what it is told to, and one that fails in a way it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

from specbench.backends.hf import Backend as Generate
from specbench.backends.protocol import Arrival, Backend, EngineOptions, Mode, Question, Served, Told
from specbench.backends.rows import Row
from specbench.common.errors import EngineFault
from specbench.results.engines import EngineFacts, ServedWeights

MS = 1_000_000


def facts(**other: Any) -> EngineFacts:
    """Of an engine that counts each forward, unless said otherwise."""
    said: dict[str, Any] = {"engine": "made", "version": "1", "how": "server", "dtype": "float32", "start_s": 0.0}
    weights = ServedWeights(format="hf", verified=True)
    return EngineFacts.model_validate({**said, "weights": weights, "counts": "forwards", **other})


@dataclass
class Script:
    """What a scripted engine sends, and what it is asked.

    Attributes:
        chunks: token ids of each arrival, or text; one arrives every ten milliseconds from ``begins`` on.
        stops: whether it is told the ids that end an answer.
        closed: requests that were given up before their end.
    """

    chunks: Sequence[Sequence[int] | str]
    told: Told = field(default_factory=Told)
    facts: EngineFacts = field(default_factory=facts)
    stops: bool = True
    begins: int = 100 * MS
    asked: list[Question] = field(default_factory=list)
    closed: int = 0


def scripted(script: Script) -> type[Backend]:
    """An engine that goes by a script."""

    class Scripted(Backend):
        title = "scripted"
        modes: ClassVar = {"ar": Mode("plain"), "spec": Mode("drafting")}
        told_stop_ids = script.stops

        def start(self) -> EngineFacts:
            return script.facts

        def ask(self, question: Question) -> Iterator[Arrival]:
            script.asked.append(question)
            try:
                for at, chunk in enumerate(script.chunks):
                    words = isinstance(chunk, str)
                    yield Arrival(script.begins + at * 10 * MS, () if words else chunk, chunk if words else "")  # type: ignore[arg-type]
            except GeneratorExit:
                script.closed += 1
                raise

        def told(self) -> Told:
            return script.told

        def close(self) -> None:
            """There is nothing to end."""

    return Scripted


def row(script: Script, mode: str = "ar") -> Row:
    """Its row."""
    return Row(f"made:{mode}", f"made:{mode}", EngineOptions(), scripted(script))


def served(vocab_size: int = 50) -> Served:
    """With a model whose tokens are letters."""

    def decode(ids: Sequence[int]) -> str:
        return "".join(chr(97 + one % 26) for one in ids)

    def encode(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in text]}

    model: Any = SimpleNamespace(vocab_size=vocab_size, decode=decode, tokenizer=encode)
    return Served("made:ar", model, "float32", 1, 64)


def failing(where: str, how: Callable[[], None] = lambda: None) -> type[Backend]:
    """transformers' ``generate`` with a fault at one place.

    Args:
        where: "installed", "start", "asked" or "third": at its third request behind those it is warmed up by.
        how: done there; else it is a fault of one sentence.
    """

    class Failing(Generate):
        requests = 0

        def _fail(self, here: str) -> None:
            if here == where:
                how()
                raise EngineFault(f"it broke ({here})")

        @classmethod
        def version(cls, options: Any) -> str:
            if where == "installed":
                raise EngineFault("it is not installed; make engines installs it")
            return super().version(options)

        def start(self) -> EngineFacts:
            self._fail("start")
            return super().start()

        def ask(self, question: Question) -> Iterator[Arrival]:
            self.requests += 1
            self._fail("asked")
            if self.requests > 5:  # one at its start, two to warm up, two that are timed
                self._fail("third")
            yield from super().ask(question)

    return Failing


class AtAnyPrecision(Generate):
    """transformers' ``generate`` that says it has the precision it was asked for, and decodes in the run's."""

    def start(self) -> EngineFacts:
        asked, own = self.served, str(self.served.model.model.dtype).removeprefix("torch.")
        self.served = replace(asked, dtype=own)
        return super().start().model_copy(update={"dtype": asked.dtype})
