"""The order of a run's requests: methods are interleaved at random, so that drift affects all alike."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from specbench.analysis import LOADED, blocks_of
from specbench.backends import Row
from specbench.decoding import Method
from specbench.planning import Resolved
from specbench.results import BASELINE, RequestRecord, request_key
from specbench.runner.prompts import Prepared
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import OpenLoop, open_loop


class Turns:
    """The turns of each method; a turn after the first follows the answers before it.

    ``done``: texts of existing answers by request key.
    """

    def __init__(self, prepared: Prepared, done: Mapping[str, str]) -> None:
        self._prepared = prepared
        self._texts = dict(done)

    def __contains__(self, key: str) -> bool:
        """Whether a request has an answer."""
        return key in self._texts

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request; its text is the history of the next turn."""
        self._texts[record.request_id] = record.text

    def request(self, label: str, prompt_id: str, repeat: int, turn: int) -> Request:
        """A turn of a prompt for a method, with the answers so far in its history."""
        prompt = self._prepared.prompts[prompt_id]
        if prompt.recorded:
            return self._prepared.request(prompt_id, repeat, [""] * (turn - 1))
        speaker = BASELINE if prompt.forced else label
        answers = [self._texts[request_key(speaker, prompt_id, repeat, before)] for before in range(1, turn)]
        return self._prepared.request(prompt_id, repeat, answers)


def keep_prefixes(requests: Sequence[Request]) -> list[Request]:
    """The requests with the number of first ids that each shares with the turn before it, which may be kept.

    The last id is always computed again, because it gives the answer's first token.
    """
    found = [*requests[:1]]
    for before, request in pairwise(requests):
        same = (before.prompt_id, before.repeat, before.turn + 1) == (request.prompt_id, request.repeat, request.turn)
        pairs = zip(before.ids, request.ids[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) if same else 0
        found.append(replace(request, prefix=shared))
    return found


class Order:
    """The remaining segments of a run.

    For every block of prompts and every turn the methods follow each other in a new random order, so that a slow minute
    affects all of them. Where prefixes are kept, each method decodes all turns of a block without interruption. With
    several slots, a block contains several fillings of one temperature, see
    :func:`specbench.analysis.blocks.blocks_of`. Under load the requests of a block arrive one after the other.
    ``done`` is as for :class:`Turns`.
    """

    def __init__(
        self, resolved: Resolved, prepared: Prepared, done: Mapping[str, str], repeats: Sequence[int] | None = None
    ) -> None:
        self._plan, self._methods, self._arrivals = resolved.plan, resolved.everyone, resolved.arrivals
        self._given_up: set[str] = set()
        self._prepared = prepared
        self._turns = Turns(prepared, done)
        self._repeats = range(resolved.passes) if repeats is None else repeats

    @property
    def total(self) -> int:
        """Number of requests of the whole run, including finished ones."""
        return len(self._methods) * len(self._repeats) * self._prepared.spec.requests

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request; its text is the history of the next turn."""
        self._turns.add(record)

    def give_up(self, label: str) -> None:
        """Give up a row: it gets no more requests."""
        self._given_up.add(label)

    def stretches(self) -> Iterator[tuple[Method | Row, list[Request]]]:
        """The next method with requests of one temperature to decode without interruption.

        All their records must be added before the next segment is taken, unless the method is given up.
        """
        seed, blocks = self._plan.seed, self.blocks()
        for repeat in self._repeats:
            for block in blocks:
                every = range(1, 1 + max(self._prepared.prompts[prompt_id].turns for prompt_id in block))
                for turns in [every] if self._plan.keep_prefix else [range(turn, turn + 1) for turn in every]:
                    methods = list(self._methods)
                    turn = turns[0]
                    random.Random(f"{seed}/{repeat}/{block[0]}" + (f"/{turn}" if turn > 1 else "")).shuffle(methods)
                    for method in methods:
                        if requests := self._left(method.label, block, repeat, turns):
                            yield method, keep_prefixes(requests) if self._plan.keep_prefix else requests

    def load(self, requests: Sequence[Request]) -> OpenLoop | None:
        """How the requests of a segment arrive; None in a closed loop.

        Prompts that the run does not measure come before and after them, or else prompts of other blocks.
        """
        if self._arrivals is None:
            return None
        first, ids = requests[0], list(self._prepared.prompts)
        at, inside = ids.index(first.prompt_id), {request.prompt_id for request in requests}
        if not (
            later := [name for name, each in self._prepared.spare.items() if each.temperature == first.temperature]
        ):
            same = [name for name in ids if self._prepared.prompts[name].temperature == first.temperature]
            later = [name for name in (*ids[at:], *ids[:at]) if name in same and name not in inside] or same
        others = [self._prepared.request(name, first.repeat, []) for name in later]
        seed = f"{self._plan.seed}/arrivals/{first.repeat}/{first.prompt_id}/{first.turn}"
        return open_loop(self._arrivals, requests, others, self._plan.concurrency, seed, at)

    def blocks(self) -> list[tuple[str, ...]]:
        """The prompts that are decoded without interruption by each method."""
        concurrency, prompts = self._plan.concurrency, self._prepared.prompts
        least = LOADED if self._arrivals else 1
        if concurrency == 1:
            return blocks_of(list(prompts), concurrency, least)
        # Only requests of one temperature can share a step.
        by_temperature: dict[float | None, list[str]] = defaultdict(list)
        for prompt_id, prompt in prompts.items():
            by_temperature[prompt.temperature].append(prompt_id)
        return [block for ids in by_temperature.values() for block in blocks_of(ids, concurrency, least)]

    def _left(self, label: str, block: Sequence[str], repeat: int, turns: range) -> list[Request]:
        """The unanswered requests of a block in some turns; none for a row that was given up."""
        if label in self._given_up:
            return []
        return [
            self._turns.request(label, prompt_id, repeat, turn)
            for prompt_id in block
            for turn in turns
            if turn <= self._prepared.prompts[prompt_id].turns
            and request_key(label, prompt_id, repeat, turn) not in self._turns
        ]
