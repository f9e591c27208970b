"""The order in which a run decodes: methods interleaved at random, so that drift hits all alike (DESIGN §5)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from specbench.analysis import blocks_of
from specbench.backends import Row
from specbench.decoding import Method
from specbench.planning import Resolved
from specbench.results import BASELINE, RequestRecord, request_key
from specbench.runner.prompts import Prepared
from specbench.runner.record import Request


class Turns:
    """Turns: what each method was asked; a turn after the first follows the answers before it.

    ``done`` holds the texts of the answers that are there already, by request key.
    """

    def __init__(self, prepared: Prepared, done: Mapping[str, str]) -> None:
        self._prepared = prepared
        self._texts = dict(done)

    def __contains__(self, key: str) -> bool:
        """Whether a request is answered."""
        return key in self._texts

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request; its text is the history of the next turn."""
        self._texts[record.request_id] = record.text

    def request(self, label: str, prompt_id: str, repeat: int, turn: int) -> Request:
        """A turn of a prompt as a method gets it, after the answers it was asked with."""
        speaker = BASELINE if self._prepared.prompts[prompt_id].forced else label
        answers = [self._texts[request_key(speaker, prompt_id, repeat, before)] for before in range(1, turn)]
        return self._prepared.request(prompt_id, repeat, answers)


class Order:
    """What is left of a run, segment by segment.

    The methods follow each other on every block of prompts and every turn, in an order that is drawn anew each time:
    what slows the machine for a minute hits all of them. With slots to fill a block holds several fillings of one
    temperature, see :func:`specbench.analysis.blocks.blocks_of`. ``done`` is as for :class:`Turns`.
    """

    def __init__(
        self, resolved: Resolved, prepared: Prepared, done: Mapping[str, str], repeats: Sequence[int] | None = None
    ) -> None:
        self._plan, self._methods = resolved.plan, resolved.everyone
        self._given_up: set[str] = set()
        self._prepared = prepared
        self._turns = Turns(prepared, done)
        self._repeats = range(resolved.plan.repeats) if repeats is None else repeats

    @property
    def total(self) -> int:
        """Requests of the whole run, finished ones included."""
        return len(self._methods) * len(self._repeats) * self._prepared.spec.requests

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request; its text is the history of the next turn."""
        self._turns.add(record)

    def give_up(self, label: str) -> None:
        """Asks a row nothing more: what it should have answered is not there."""
        self._given_up.add(label)

    def stretches(self) -> Iterator[tuple[Method | Row, list[Request]]]:
        """A method with the requests of one temperature to decode without interruption.

        All have to be added before the next is taken, unless the method is given up.
        """
        seed, blocks = self._plan.seed, self._blocks()
        for repeat in self._repeats:
            for block in blocks:
                for turn in range(1, 1 + max(self._prepared.prompts[prompt_id].turns for prompt_id in block)):
                    methods = list(self._methods)
                    random.Random(f"{seed}/{repeat}/{block[0]}" + (f"/{turn}" if turn > 1 else "")).shuffle(methods)
                    for method in methods:
                        if requests := self._left(method.label, block, repeat, turn):
                            yield method, requests

    def _blocks(self) -> list[tuple[str, ...]]:
        concurrency, prompts = self._plan.concurrency, self._prepared.prompts
        if concurrency == 1:
            return blocks_of(list(prompts), concurrency)
        by_temperature: dict[float | None, list[str]] = defaultdict(list)  # only these can share a step
        for prompt_id, prompt in prompts.items():
            by_temperature[prompt.temperature].append(prompt_id)
        return [block for ids in by_temperature.values() for block in blocks_of(ids, concurrency)]

    def _left(self, label: str, block: Sequence[str], repeat: int, turn: int) -> list[Request]:
        """What of a block's turn is not answered yet; of a row that was given up nothing."""
        if label in self._given_up:
            return []
        return [
            self._turns.request(label, prompt_id, repeat, turn)
            for prompt_id in block
            if turn <= self._prepared.prompts[prompt_id].turns
            and request_key(label, prompt_id, repeat, turn) not in self._turns
        ]
