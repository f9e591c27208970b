"""The order in which a run decodes: methods interleaved at random, so that drift hits all alike (DESIGN §5)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from specbench.decoding import Method
from specbench.results import BASELINE, RequestRecord
from specbench.results.schema import request_key
from specbench.runner.loop import Request
from specbench.runner.prompts import Prepared
from specbench.runner.resolving import Resolved


class Turns:
    """Turns: what each method was asked, turn by turn; a turn after the first follows the answers before it.

    Args:
        prepared: the task.
        done: texts of the answers that are there already, by request key.
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
    """What is left of a run, stretch by stretch.

    One sequence at a time, the methods follow each other on every prompt and turn. With slots to fill, a method runs
    all prompts of a repeat in one go, or the slots would run empty at the end of every prompt; turns then follow each
    other for all prompts.

    Args:
        resolved: the run.
        prepared: its task.
        done: texts of the answers that are there already, by request key.
        repeats: which of the plan's repeats; default is all of them.
    """

    def __init__(
        self, resolved: Resolved, prepared: Prepared, done: Mapping[str, str], repeats: Sequence[int] | None = None
    ) -> None:
        self._plan, self._methods = resolved.plan, resolved.methods
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

    def stretches(self) -> Iterator[tuple[Method, list[Request]]]:
        """A method with the requests to decode without interruption; all have to be added before the next is taken.

        Requests of one stretch have one temperature.
        """
        seed, ids = self._plan.seed, list(self._prepared.prompts)
        groups = [[prompt_id] for prompt_id in ids] if self._plan.concurrency == 1 else [ids]
        for repeat in self._repeats:
            for group in groups:
                for turn in range(1, 1 + max(self._prepared.prompts[prompt_id].turns for prompt_id in group)):
                    methods = list(self._methods)
                    random.Random(f"{seed}/{repeat}/{group[0]}" + (f"/{turn}" if turn > 1 else "")).shuffle(methods)
                    for method in methods:
                        for requests in self._left(method, group, repeat, turn):
                            yield method, requests

    def _left(self, method: Method, group: Sequence[str], repeat: int, turn: int) -> list[list[Request]]:
        by_temperature: dict[float | None, list[Request]] = defaultdict(list)
        for prompt_id in group:
            if turn > self._prepared.prompts[prompt_id].turns:
                continue
            if request_key(method.label, prompt_id, repeat, turn) not in self._turns:
                request = self._turns.request(method.label, prompt_id, repeat, turn)
                by_temperature[request.temperature].append(request)
        return list(by_temperature.values())
