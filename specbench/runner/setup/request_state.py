"""The states that requests of a stateful row pass on, starting empty, and the order of the requests."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.decoding import Method
from specbench.results import RequestRecord
from specbench.runner.record import Request


@dataclass
class _Row:
    """The state of a row in one repeat; each repeat starts empty."""

    repeat: int
    state: Any
    begun: int = 0


class States:
    """The states of a session's rows."""

    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = {method.label: method for method in methods if method.stateful}
        self._rows: dict[str, _Row] = {}
        self._places: dict[tuple[str, str, int, int], int] = {}

    def empty(self) -> None:
        """Reset all states, as after the warm-up."""
        self._rows.clear()
        self._places.clear()

    def of(self, label: str, request: Request) -> Any:
        """The state that a request starts with; None for a stateless row."""
        if label not in self._methods:
            return None
        row = self._rows.get(label)
        if row is None or row.repeat != request.repeat:
            row = self._rows[label] = _Row(request.repeat, self._methods[label].new_state())
        row.begun += 1
        self._places[label, request.prompt_id, request.repeat, request.turn] = row.begun
        return row.state

    def placed(self, record: RequestRecord) -> RequestRecord:
        """A record, with its place if its row has a state."""
        key = record.method, record.prompt_id, record.repeat, record.turn
        return record.model_copy(update={"place": self._places[key]}) if key in self._places else record


def cut_conversations(
    records: Iterable[RequestRecord], turns: Mapping[str, int], but: Container[str]
) -> dict[str, list[RequestRecord]]:
    """Label -> records of conversations without their last turns, whose KV is lost; ``turns`` by prompt id."""
    conversations: dict[tuple[str, str, int], list[RequestRecord]] = {}
    for record in records:
        conversations.setdefault((record.method, record.prompt_id, record.repeat), []).append(record)
    found: dict[str, list[RequestRecord]] = {}
    for (label, prompt_id, _), theirs in conversations.items():
        if label not in but and len(theirs) < turns[prompt_id]:
            found.setdefault(label, []).extend(theirs)
    return found


def torn_blocks(
    records: Iterable[RequestRecord], blocks: Sequence[Sequence[str]], turns: Mapping[str, int], but: Container[str]
) -> dict[str, list[RequestRecord]]:
    """Label -> records of blocks that were interrupted under load; the rest would arrive on an empty system."""
    block_of = {prompt_id: at for at, block in enumerate(blocks) for prompt_id in block}
    segments: dict[tuple[str, int, int, int], list[RequestRecord]] = {}
    for record in records:
        key = record.method, record.repeat, record.turn, block_of[record.prompt_id]
        segments.setdefault(key, []).append(record)
    found: dict[str, list[RequestRecord]] = {}
    for (label, _, turn, at), theirs in segments.items():
        if label not in but and len(theirs) < sum(turns[prompt_id] >= turn for prompt_id in blocks[at]):
            found.setdefault(label, []).extend(theirs)
    return found


def broken_off(
    records: Iterable[RequestRecord], stateful: Collection[str], requests: int
) -> Mapping[str, list[RequestRecord]]:
    """Label -> records of stateful rows that stopped within a repeat; they are decoded again, because the state is
    lost.
    """
    repeats: dict[tuple[str, int], list[RequestRecord]] = {}
    for record in records:
        if record.method in stateful:
            repeats.setdefault((record.method, record.repeat), []).append(record)
    found: dict[str, list[RequestRecord]] = {}
    for (label, _), theirs in repeats.items():
        if len(theirs) < requests:
            found.setdefault(label, []).extend(theirs)
    return found
