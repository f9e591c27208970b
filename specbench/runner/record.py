"""A request while it is decoded, and its record afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.decoding import DRAFTED
from specbench.planning import Acceptance
from specbench.results import GpuTrace, RequestRecord, request_key
from specbench.runner.checked_decoder import CheckedDecoder
from specbench.runner.stop import Output, StopRule
from specbench.runner.trace import Verified, acceptance, spread_branches, token_trace

_SECOND = 1e-9  # seconds per nanosecond


@dataclass(frozen=True)
class Request:
    """One prompt to decode. ``repeat`` counts from 0, ``turn`` from 1. Temperature None uses the run's.

    ``prefix``: first ids whose KV is kept from the request before, the turn before of the same conversation.
    """

    prompt_id: str
    repeat: int
    ids: Sequence[int]
    rule: StopRule
    turn: int = 1
    category: str = ""
    temperature: float | None = None
    grown_from: str = ""
    prefix: int = 0


@dataclass(eq=False)
class Conversation:
    """Requests that are decoded one after the other in one slot.

    Attributes:
        waiting: those to come.
        slot: the slot that keeps the KV of the last prompt; None before the first request.
        hidden: with taps: the hidden states of the last prompt, which a draft head reads again.
        arrived: nanoseconds at which its request arrived under load; None in a closed loop.
        ahead: requests that were in the system then.
        recorded: whether its requests are measured; others only load the system.
    """

    waiting: deque[Request]
    slot: int | None = None
    hidden: Any = None
    arrived: int | None = None
    ahead: int | None = None
    recorded: bool = True

    @classmethod
    def split(cls, requests: Sequence[Request]) -> deque[Conversation]:
        """Requests that keep a prefix stay with the request before them."""
        found: deque[Conversation] = deque()
        for request in requests:
            if request.prefix:
                found[-1].waiting.append(request)
            else:
                found.append(cls(deque([request])))
        return found


@dataclass(eq=False)
class ActiveRequest:
    """A request in a slot. Times in nanoseconds.

    Attributes:
        first: when the prompt was read, and with it the first token known unless the method fills masked blocks.
        first_tokens: tokens known then.
        seen: when the first token was known, if that was later.
    """

    request: Request
    conversation: Conversation
    decoder: CheckedDecoder
    slot: int
    output: Output
    acceptance: Acceptance | None
    started: int
    first: int
    last: int
    first_tokens: int = 1
    seen: int | None = None
    gpu: GpuTrace | None = None
    busy_decode: float = 0
    accepted_lengths: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    together: bool = False  # whether a forward served other sequences, too
    drafted: list[int] = field(default_factory=list)  # with the option stop: the forwards, from 0, that verified drafts
    verified: list[Verified] = field(default_factory=list)
    spent: dict[str, list[float]] = field(default_factory=dict)

    def step(self, now: int, share: float, sequences: int, emitted: Sequence[int], made: Verified) -> None:
        """Count a forward that ended at ``now`` and served so many sequences; ``share``: this one's time of it."""
        if emitted and not self.output.ids:
            self.seen = now
        self.gaps.append(now - self.last)
        self.together = self.together or sequences > 1
        self.last = now
        self.busy_decode += share
        self.steps.append(share)
        self.accepted_lengths.append(self.output.extend(emitted))
        self.verified.append(made)

    @property
    def ended(self) -> bool:
        """Whether the stop rule has ended the answer."""
        return bool(self.output.reason)


def make_record(
    label: str, done: ActiveRequest, origin: int, number: int, peak: int | None, stops: bool = False
) -> RequestRecord:
    """The record of a finished request.

    Args:
        origin: start of its segment on the clock, in nanoseconds.
        number: number of its segment.
        peak: peak bytes of device memory; None on a CPU.
        stops: whether the row drafts only while that is faster.
    """
    request, output = done.request, done.output
    assert output.reason is not None
    kept = done.first_tokens + sum(done.accepted_lengths)
    assert kept == len(output.ids), "every kept token comes from the prefill or from one step"
    branches, measures = done.decoder.branches(), done.decoder.measures(len(output.ids), output.reason != "length")
    if stops:
        branches = [replace(branch, step=done.drafted[branch.step]) for branch in branches]
        measures[DRAFTED] = len(done.drafted) / max(1, len(done.accepted_lengths))
    arrived = done.started if done.conversation.arrived is None else done.conversation.arrived
    phases = {phase: [round(spent * _SECOND, 7) for spent in steps] for phase, steps in done.spent.items()}
    return RequestRecord(
        **answer_fields(label, request, output),
        first_tokens=done.first_tokens,
        accepted_lengths=done.accepted_lengths,
        tree_rows=sum(step.rows for step in done.verified),
        target_forwards=len(done.accepted_lengths),
        draft_forwards=done.decoder.draft_forwards(),
        **acceptance(done.verified),
        start_s=(done.started - origin) * _SECOND,
        segment=number,
        ttft_s=((done.first if done.seen is None else done.seen) - arrived) * _SECOND,
        decode_s=(done.last - done.first) * _SECOND,
        latency_s=(done.last - arrived) * _SECOND,
        waited_s=None if done.conversation.arrived is None else (done.started - arrived) * _SECOND,
        ahead=done.conversation.ahead,
        prefill_share_s=(done.first - done.started) * _SECOND,
        decode_share_s=done.busy_decode * _SECOND,
        step_s=[round(spent * _SECOND, 7) for spent in done.steps],
        gap_s=[round(wait * _SECOND, 7) for wait in done.gaps] if done.together else None,
        phases_s=phases or None,
        peak_memory_bytes=peak,
        branches=spread_branches(branches, len(done.accepted_lengths)) or None,
        measures=measures,
        gpu=done.gpu,
        tokens=token_trace(output, done.accepted_lengths, done.verified, done.first_tokens),
    )


def answer_fields(label: str, request: Request, output: Output) -> dict[str, Any]:
    """The fields of a record with the request and its answer, for any engine."""
    return {
        "request_id": request_key(label, request.prompt_id, request.repeat, request.turn),
        "method": label,
        "prompt_id": request.prompt_id,
        "grown_from": request.grown_from,
        "repeat": request.repeat,
        "turn": request.turn,
        "category": request.category,
        "prompt_tokens": len(request.ids),
        "prefix_tokens": request.prefix,
        "output_ids": output.ids,
        "text": output.text(),
        "finish_reason": output.reason,
        "output_tokens": len(output.ids),
        "overshoot_tokens": output.overshoot,
        "stop_tail_tokens": output.stop_tail(),
    }
