"""The only place that measures: the step loop, the clock and the count (DESIGN §5, definitions of peers §C-d).

Clock: ``perf_counter_ns``. t0 is taken when the prompt's ids are handed to the engine, t_first when the first token's
id is on the host, t_last when the last kept id is. Every forward ends with a read of its tokens, so no device work is
pending when the clock is read. The clock stands still while the consumer of the records has control. The engine's time
is shared out over the sequences it serves; what the runner does between two steps (stop strings) is in no share, and
what it does only to simulate acceptance is on no clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from specbench.common import Activity, EnvironmentRefused, PluginFault, UsageError, heartbeat, plugins
from specbench.decoding import BadTree, Context, Decoder, Method, StepResult, TokenTree
from specbench.engine import Phases
from specbench.hardware import GpuMeter
from specbench.planning import Acceptance
from specbench.results import GpuTrace, RequestRecord, request_key
from specbench.runner.returned import checked_branches, checked_forwards, checked_guesses, checked_measures, wrong_tree
from specbench.runner.stop import Output, StopRule
from specbench.runner.trace import Verified, spread_branches, token_trace, verified

Clock = Callable[[], int]  # nanoseconds
T = TypeVar("T")

_CELLS = heartbeat.SHARED


class SteppingEngine(Protocol):
    """What the runner needs of :class:`specbench.engine.Engine`."""

    def alloc(self) -> int: ...
    def free(self, slot: int) -> None: ...
    def finite(self, slot: int) -> bool: ...
    def settle(self) -> None: ...
    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        tree: TokenTree | None = None,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
    ) -> StepResult: ...
    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        phases: Phases | None = None,
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, StepResult]: ...


class Shared(Protocol):
    """What the runner needs of :class:`specbench.runner.setup.shared_state.SharedState`."""

    def take(self) -> None: ...
    def check(self, method: Method) -> None: ...


class Memory(Protocol):
    """What the runner needs of :class:`specbench.runner.session.PeakMemory`."""

    def reset(self) -> None: ...
    def peak(self) -> int: ...


@dataclass(frozen=True)
class Request:
    """One prompt to decode; ``repeat`` counts from 0, ``turn`` of its conversation from 1. Temperature None is the
    run's.
    """

    prompt_id: str
    repeat: int
    ids: Sequence[int]
    rule: StopRule
    turn: int = 1
    category: str = ""
    temperature: float | None = None


@dataclass(eq=False)
class _Sequence:
    """A request in a slot. Times in nanoseconds."""

    request: Request
    decoder: Decoder
    slot: int
    output: Output
    acceptance: Acceptance | None
    started: int
    gpu: GpuTrace | None = None
    first: int = 0
    last: int = 0
    busy_prefill: int = 0
    busy_decode: float = 0
    accepted_lengths: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    spent: dict[str, list[float]] = field(default_factory=dict)


class Runner:
    """Decodes requests with any method and returns what was measured.

    Args:
        context: makes the context of a decoder from (method label, request).
        trace: split each step's time into phases; this waits for the device at every mark.
        gpu: asked when a request begins and ends, off the clock; None is no GPU.
        simulate: what decides the acceptance of a request by (method label, request); None is the target.
        memory: of the engine's GPU, asked off the clock; None is a CPU.
        shared: what methods share and may not change, compared off the clock before each record is handed over.
    """

    def __init__(
        self,
        engine: SteppingEngine,
        context: Callable[[str, Request], Context],
        concurrency: int = 1,
        clock: Clock = time.perf_counter_ns,
        trace: bool = False,
        gpu: GpuMeter | None = None,
        simulate: Callable[[str, Request], Acceptance | None] = lambda label, request: None,
        memory: Memory | None = None,
        shared: Shared | None = None,
    ) -> None:
        self._engine = engine
        self._context = context
        self._concurrency = concurrency
        self._clock = clock
        self._trace = trace
        self._gpu = gpu
        self._simulate = simulate
        self._memory = memory
        self._shared = shared
        self._away = 0
        self._at = Activity.OURS

    def segment(
        self, method: Method, requests: Sequence[Request], number: int = 0
    ) -> Generator[RequestRecord, None, None]:
        """Decodes ``requests`` without interruption, ``concurrency`` at a time; yields each as it ends.

        Args:
            number: stored with each record; times of one segment share a clock.

        Raises:
            PluginFault: a decoder raised, took too long, or returned what is not allowed, or changed what all methods
                share.
            EnvironmentRefused: a forward took too long.
            UsageError: the model came to what is no number.
        """
        self._at = Activity.OURS
        heartbeat.record(who=method.who, row=method.label)
        try:  # around all of it: on the clock a decoder's call costs two stores more
            yield from self._segment(method, requests, number)
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt):
                raise
            blamed = self._blamed(raised, method)
            if blamed is raised:
                raise
            raise blamed from raised
        finally:
            _CELLS[heartbeat.AT] = Activity.OURS
            heartbeat.record(row="")

    def _blamed(self, raised: BaseException, method: Method) -> BaseException:
        """What is raised for what came up while a method decoded: also what it has spoilt for the others."""
        spoils_all = isinstance(raised, PluginFault) and raised.spoils_all
        given_up = isinstance(raised, GeneratorExit) and self._at == Activity.OURS  # the caller takes no more records
        if self._shared and not spoils_all and not given_up:
            try:
                self._shared.check(method)
            except PluginFault as fault:
                if fault.spoils_all:
                    return fault
        return _blamed(raised, method, self._at)

    def _segment(
        self, method: Method, requests: Sequence[Request], number: int
    ) -> Generator[RequestRecord, None, None]:
        if self._gpu:
            self._gpu.reset()
        if self._memory:
            self._memory.reset()
        if self._shared:
            self._shared.take()
        waiting, most = deque(requests), method.max_rows
        wanted: dict[str, Any] = {"top_k": method.top_k, "taps": method.taps}
        active: list[_Sequence] = []
        origin = self._now()
        try:
            while waiting or active:
                while waiting and len(active) < self._concurrency:
                    sequence = self._start(method, waiting.popleft(), wanted)
                    active.append(sequence)
                    if sequence.output.reason:
                        break
                ended = [sequence for sequence in active if sequence.output.reason]
                if not ended:
                    self._step(active, wanted, most)
                    ended = [sequence for sequence in active if sequence.output.reason]
                if self._gpu:  # of all of them before the consumer has control: the GPU rests then
                    for sequence in ended:
                        sequence.gpu = self._aside(partial(self._gpu.end, sequence.slot))
                for sequence in ended:
                    self._assert_finite(sequence, method)
                    active.remove(sequence)
                    self._leave(sequence)
                    handed_over = self._clock()
                    peak = self._memory.peak() if self._memory else None
                    _CELLS[heartbeat.AT] = Activity.MEASURES
                    record = _record(method.label, sequence, origin, number, peak)
                    _CELLS[heartbeat.AT] = Activity.OURS
                    if self._shared:
                        self._shared.check(method)
                    yield record
                    if self._shared:
                        self._shared.take()
                    self._away += self._clock() - handed_over
        except BaseException:
            self._at = Activity(_CELLS[heartbeat.AT])
            raise
        finally:  # the consumer stopped early or something failed: leave no slot occupied
            for sequence in active:
                with plugins.ignoring_faults():  # what went wrong first is reported
                    self._leave(sequence)

    def _assert_finite(self, sequence: _Sequence, method: Method) -> None:
        """Refuse an answer of a model that overflows in its precision: it has a speed and no meaning."""
        if not self._aside(partial(self._engine.finite, sequence.slot)):
            raise UsageError(
                f"{method.label}: the model came to NaN or infinity on {sequence.request.prompt_id}, so its answer "
                "means nothing; take a wider --dtype, or weights that are whole"
            )

    def _leave(self, sequence: _Sequence) -> None:
        _CELLS[heartbeat.AT] = Activity.END
        try:
            sequence.decoder.end()
        finally:
            self._engine.free(sequence.slot)
        _CELLS[heartbeat.AT] = Activity.OURS

    def _now(self) -> int:
        return self._clock() - self._away

    def _aside(self, work: Callable[[], T]) -> T:
        """Does what belongs to no measurement while the clock stands still."""
        before = self._clock()
        done = work()
        self._away += self._clock() - before
        return done

    def _start(self, method: Method, request: Request, wanted: Mapping[str, Any]) -> _Sequence:
        slot = self._engine.alloc()
        try:
            decoder = method.new(replace(self._context(method.label, request), slot=slot))
        except BaseException:
            self._engine.free(slot)
            raise
        try:
            acceptance = self._simulate(method.label, request)
            if self._gpu:
                self._aside(partial(self._gpu.begin, slot))
            started = self._now()
            _CELLS[heartbeat.BEATS] += 1
            _CELLS[heartbeat.AT] = Activity.BEGIN
            tree = checked_guesses(decoder.begin(tuple(request.ids)))  # a copy: another method gets the same prompt
            _CELLS[heartbeat.AT] = Activity.FORWARD
            result = self._engine.prefill(slot, request.ids, tree, **wanted)
            emitted = tuple(result.emitted)
            _CELLS[heartbeat.AT] = Activity.OBSERVE
            decoder.observe(result)
            _CELLS[heartbeat.AT] = Activity.OURS
            now = self._now()
            sequence = _Sequence(request, decoder, slot, Output(request.rule), acceptance, started, first=now, last=now)
            sequence.busy_prefill = now - started
            sequence.output.extend(emitted)
        except BaseException:
            at = _CELLS[heartbeat.AT]
            with plugins.ignoring_faults():
                decoder.end()
            self._engine.free(slot)
            _CELLS[heartbeat.AT] = at
            raise
        return sequence

    def _step(self, active: Sequence[_Sequence], wanted: Mapping[str, Any], most: int) -> None:
        before = self._now()
        phases = Phases(self._now, self._engine.settle) if self._trace else None
        _CELLS[heartbeat.BEATS] += 1
        _CELLS[heartbeat.AT] = Activity.DRAFT
        trees = {}
        for sequence in active:
            tree = trees[sequence.slot] = sequence.decoder.draft()
            if type(tree) is not TokenTree or len(tree.tokens) > most or tree.tokens[0] != sequence.output.ids[-1]:
                raise wrong_tree(tree, most, sequence.output.ids[-1])
        if phases:
            phases.mark("draft")
        _CELLS[heartbeat.AT] = Activity.FORWARD
        results = self._engine.step(trees, **wanted, phases=phases, **self._forced(active, trees))
        # What a decoder does to the lists that it gets is nobody's answer.
        decided = [(results[sequence.slot].emitted[:], results[sequence.slot].path[:]) for sequence in active]
        _CELLS[heartbeat.AT] = Activity.OBSERVE
        for sequence in active:
            sequence.decoder.observe(results[sequence.slot])
        _CELLS[heartbeat.AT] = Activity.OURS
        if phases:
            phases.mark("observe")
            for sequence in active:
                for phase, spent in phases.spent.items():
                    sequence.spent.setdefault(phase, []).append(spent / len(active))
        now = self._now()
        share = (now - before) / len(active)
        for sequence, (emitted, path) in zip(active, decided, strict=True):
            sequence.last = now
            sequence.busy_decode += share
            sequence.steps.append(share)
            sequence.accepted_lengths.append(sequence.output.extend(emitted))
            sequence.verified.append(verified(trees[sequence.slot], path, whole=self._trace))

    def _forced(self, active: Sequence[_Sequence], trees: Mapping[int, TokenTree]) -> dict[str, Any]:
        """The ``forced`` of a step where acceptance is simulated; off the clock, for no decoder and no engine does this
        work.
        """
        simulated = [(one.slot, one.acceptance) for one in active if one.acceptance]
        if not simulated:
            return {}
        return {"forced": self._aside(lambda: {slot: lots.forced(trees[slot]) for slot, lots in simulated})}


def _blamed(raised: BaseException, method: Method, at: Activity) -> BaseException:
    """What is raised for what came up while a method decoded, by where it came up."""
    theirs = at not in (Activity.OURS, Activity.FORWARD) or isinstance(raised, (BadTree, PluginFault, SystemExit))
    if isinstance(raised, plugins.StepTimeout) and not theirs:
        return EnvironmentRefused(
            f"{method.label}: a step {raised}; what was finished is kept, --step-timeout allows more"
        )
    if not theirs or isinstance(raised, EnvironmentRefused):  # of memory mostly, whoever asked for it
        return raised
    return plugins.fault(
        raised, method.who, heartbeat.WORDS[at] if at != Activity.FORWARD else "in draft", method.label
    )


def _record(label: str, sequence: _Sequence, origin: int, number: int, peak: int | None) -> RequestRecord:
    request, output = sequence.request, sequence.output
    assert output.reason is not None
    assert 1 + sum(sequence.accepted_lengths) == len(output.ids), (
        "every kept token comes from the prefill or from one step"
    )
    second = 1e-9
    return RequestRecord(
        **answered(label, request, output),
        accepted_lengths=sequence.accepted_lengths,
        tree_rows=sum(step.rows for step in sequence.verified),
        target_forwards=len(sequence.accepted_lengths),
        draft_forwards=checked_forwards(sequence.decoder),
        start_s=(sequence.started - origin) * second,
        segment=number,
        ttft_s=(sequence.first - sequence.started) * second,
        decode_s=(sequence.last - sequence.first) * second,
        latency_s=(sequence.last - sequence.started) * second,
        prefill_share_s=sequence.busy_prefill * second,
        decode_share_s=sequence.busy_decode * second,
        step_s=[round(spent * second, 7) for spent in sequence.steps],
        phases_s={phase: [round(spent * second, 7) for spent in steps] for phase, steps in sequence.spent.items()}
        or None,
        peak_memory_bytes=peak,
        branches=spread_branches(checked_branches(sequence.decoder), len(sequence.accepted_lengths)) or None,
        measures=checked_measures(sequence.decoder, len(output.ids), output.reason != "length"),
        gpu=sequence.gpu,
        tokens=token_trace(output, sequence.accepted_lengths, sequence.verified),
    )


def answered(label: str, request: Request, output: Output) -> dict[str, Any]:
    """The fields of a record that say what was asked and what came of it, by whatever engine."""
    return {
        "request_id": request_key(label, request.prompt_id, request.repeat, request.turn),
        "method": label,
        "prompt_id": request.prompt_id,
        "repeat": request.repeat,
        "turn": request.turn,
        "category": request.category,
        "prompt_tokens": len(request.ids),
        "output_ids": output.ids,
        "text": output.text(),
        "finish_reason": output.reason,
        "output_tokens": len(output.ids),
        "overshoot_tokens": output.overshoot,
        "stop_tail_tokens": output.stop_tail(),
    }
