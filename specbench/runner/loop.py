"""The step loop, the clock and the counters: the only place that measures.

Clock: ``perf_counter_ns``. t0 is taken when the prompt's ids are handed to the engine, t_first when the first token's
id is on the host, t_last when the last kept id is. Every forward ends with a read of its tokens, so no device work is
pending when the clock is read. The clock stands still while the consumer of the records has control. The engine's time
is divided among the sequences that it serves. The runner's work between two steps (stop strings) is in no share, and
work that only simulates acceptance is not timed.

Under open-loop load t0 is the request's arrival, on the same clock: it stands still for arrivals, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from specbench.common import Activity, PluginFault, UsageError, heartbeat, plugins
from specbench.decoding import Context, Fill, FillResult, Method, StepResult, TokenTree, TypicalAcceptance
from specbench.engine import Phases
from specbench.hardware import GpuMeter
from specbench.planning import Acceptance
from specbench.results import RequestRecord
from specbench.runner.checked_decoder import CheckedDecoder, blame
from specbench.runner.governor import Governor
from specbench.runner.record import ActiveRequest, Conversation, Request, make_record
from specbench.runner.setup.arrivals import Due, OpenLoop, System
from specbench.runner.stop import Output
from specbench.runner.trace import filled, verified

Clock = Callable[[], int]  # nanoseconds
T = TypeVar("T")

_CELLS = heartbeat.SHARED


class SteppingEngine(Protocol):
    """What the runner needs of :class:`specbench.engine.Engine`."""

    def alloc(self) -> int: ...
    def free(self, slot: int) -> None: ...
    def rewind(self, slot: int, length: int) -> None: ...
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
        acceptance: TypicalAcceptance | None = None,
        phases: Phases | None = None,
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, StepResult]: ...
    def fill(
        self, passes: Mapping[int, Fill], *, entropy: bool = False, phases: Phases | None = None
    ) -> dict[int, FillResult]: ...


class Shared(Protocol):
    """What the runner needs of :class:`specbench.runner.setup.shared_state.SharedState`."""

    def take(self) -> None: ...
    def check(self, method: Method) -> None: ...


class Memory(Protocol):
    """What the runner needs of :class:`specbench.runner.session.PeakMemory`."""

    def reset(self) -> None: ...
    def peak(self) -> int: ...


class _Waiting:
    """Requests of a closed loop: each starts when a slot is free."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._conversations = Conversation.split(requests)
        self._left = deque(self._conversations)

    @property
    def left(self) -> bool:
        """Whether requests have not started."""
        return bool(self._left)

    def next(self, now: int) -> Conversation | None:
        """The next request to start; None if there is none."""
        return self._left.popleft() if self._left else None

    def wait_s(self, now: int) -> float:
        """Seconds until :meth:`next` has a request."""
        return 0.0

    def end(self, done: ActiveRequest) -> None:
        """A request has ended; the next turn of its conversation comes first, because it has a slot."""
        if done.conversation.waiting:
            self._left.appendleft(done.conversation)

    def kept(self) -> Iterable[Conversation]:
        """All conversations that may hold a slot."""
        return self._conversations


class _Arriving:
    """Requests of an open loop: each starts when it has arrived and a slot is free, in the order of arrival."""

    def __init__(self, schedule: Iterator[Due], measured: int, origin: int) -> None:
        self._schedule, self._measured, self._origin = schedule, measured, origin
        self._due = next(schedule)
        self._system = System()

    @property
    def left(self) -> bool:
        """Whether measured requests have not ended."""
        return self._measured > 0

    def next(self, now: int) -> Conversation | None:
        """The next request that has arrived; None if there is none."""
        at, due = self._origin + self._due.at_ns, self._due
        if at > now:
            return None
        self._due = next(self._schedule)
        return Conversation(deque([due.request]), arrived=at, ahead=self._system.arrive(at), recorded=due.measured)

    def wait_s(self, now: int) -> float:
        """Seconds until :meth:`next` has a request."""
        return max(0.0, (self._origin + self._due.at_ns - now) * 1e-9)

    def end(self, done: ActiveRequest) -> None:
        """A request has ended."""
        self._system.end(done.last)
        self._measured -= done.conversation.recorded

    def kept(self) -> Iterable[Conversation]:
        """All conversations that may hold a slot: none that is not active."""
        return ()


class Runner:
    """Decode requests with any method and return what was measured.

    Args:
        context: makes the context of a decoder from (method label, request).
        trace: split each step's time into phases; this waits for the device at every mark.
        gpu: read when a request begins and ends, untimed; None without a GPU.
        simulate: decides the acceptance of a request from (method label, request); None lets the target decide.
        memory: of the engine's GPU, read untimed; None on a CPU.
        shared: state that methods share and must not change, compared untimed before each record is handed over.
        sleep: waits for some seconds of ``clock``.
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
        sleep: Callable[[float], None] = time.sleep,
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
        self._sleep = sleep
        self._away = 0
        self._at = Activity.OURS
        self._governors: dict[str, Governor] = {}  # by method label

    def segment(
        self, method: Method, requests: Sequence[Request], number: int = 0, load: OpenLoop | None = None
    ) -> Generator[RequestRecord, None, None]:
        """Decode ``requests`` without interruption, ``concurrency`` at a time; yield each as it ends.

        Args:
            number: stored with each record; times of one segment share a clock.
            load: when they arrive; by default each starts when a slot is free.

        Raises:
            PluginFault: a decoder raised, took too long, returned something invalid, or changed what all methods
                share.
            EnvironmentRefused: a forward took too long.
            UsageError: the model produced NaN or infinity.
        """
        self._at = Activity.OURS
        heartbeat.record(who=method.who, row=method.label)
        try:
            yield from self._segment(method, requests, number, load)
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
        """The error for an exception while a method decoded, including damage to the shared state."""
        spoils_all = isinstance(raised, PluginFault) and raised.spoils_all
        given_up = isinstance(raised, GeneratorExit) and self._at == Activity.OURS  # the caller takes no more records
        if self._shared and not spoils_all and not given_up:
            try:
                self._shared.check(method)
            except PluginFault as fault:
                if fault.spoils_all:
                    return fault
        return blame(raised, method, self._at)

    def _segment(
        self, method: Method, requests: Sequence[Request], number: int, load: OpenLoop | None
    ) -> Generator[RequestRecord, None, None]:
        for meter in (self._gpu, self._memory):
            if meter:
                meter.reset()
        if self._shared:
            self._shared.take()
        active = list[ActiveRequest]()
        governor = self._governors.setdefault(method.label, Governor()) if method.stops else None
        wanted: dict[str, Any] = {"top_k": method.top_k, "taps": method.taps}
        of_steps = {**wanted, "acceptance": method.acceptance}
        step = (
            partial(self._fill, entropy=method.entropy)
            if method.fills
            else partial(self._step, wanted=of_steps, governor=governor)
        )
        origin = self._now()
        queue = _Arriving(load.schedule(requests), len(requests), origin) if load else _Waiting(requests)
        try:
            while queue.left or active:
                while len(active) < self._concurrency and (conversation := queue.next(self._now())):
                    active.append(self._start(method, conversation, wanted))
                    if active[-1].ended:
                        break
                if not active:
                    self._sleep(queue.wait_s(self._now()))
                    continue
                if not any(each.ended for each in active):
                    step(active)
                ended = [each for each in active if each.ended]
                if self._gpu:  # before the consumer has control, because the GPU rests then
                    for each in ended:
                        each.gpu = self._off_clock(partial(self._gpu.end, each.slot))
                for each in ended:
                    queue.end(each)
                    yield from self._finish(method, each, active, origin, number)
                if load and not queue.left:  # further requests only kept the system busy
                    break
        except BaseException:
            self._at = Activity(_CELLS[heartbeat.AT])
            raise
        finally:  # the consumer stopped early or something failed: leave no slot occupied
            for each in active:
                with plugins.ignoring_faults():  # the first fault is reported
                    self._leave(each)
            for conversation in queue.kept():
                self._release(conversation)

    def _start(self, method: Method, conversation: Conversation, wanted: Mapping[str, Any]) -> ActiveRequest:
        """Prefill the next request of a conversation in its slot, or in a free one, up to its first token."""
        request = conversation.waiting.popleft()
        slot = self._engine.alloc() if conversation.slot is None else conversation.slot
        conversation.slot = slot
        if request.prefix:
            self._engine.rewind(slot, request.prefix)
        made = method.new(replace(self._context(method.label, request), slot=slot))
        decoder = CheckedDecoder(made, method.max_rows)
        try:
            acceptance = self._simulate(method.label, request)
            if self._gpu:
                self._off_clock(partial(self._gpu.begin, slot))
            started = self._now()
            _CELLS[heartbeat.BEATS] += 1
            if method.fills:
                text = decoder.read(request.ids)
                _CELLS[heartbeat.AT] = Activity.FORWARD
                emitted = tuple(decoder.take(self._engine.fill({slot: text}, entropy=method.entropy)[slot]))
                hidden = None
            else:
                tree = decoder.begin(request.ids)
                _CELLS[heartbeat.AT] = Activity.FORWARD
                result = self._engine.prefill(slot, request.ids[request.prefix :], tree, **wanted)
                if request.prefix and result.hidden is not None:
                    result = replace(result, hidden=torch.cat([conversation.hidden[: request.prefix], result.hidden]))
                emitted, hidden = tuple(result.emitted), result.hidden
                decoder.observe(result)
            _CELLS[heartbeat.AT] = Activity.OURS
            now = self._now()
            if conversation.waiting and hidden is not None:
                conversation.hidden = self._off_clock(hidden.clone)
            active = ActiveRequest(
                request, conversation, decoder, slot, Output(request.rule), acceptance, started, now, now
            )
            active.first_tokens = active.output.extend(emitted)
        except BaseException:
            at = _CELLS[heartbeat.AT]
            with plugins.ignoring_faults():
                decoder.end()
            _CELLS[heartbeat.AT] = at
            raise
        return active

    def _step(self, active: Sequence[ActiveRequest], wanted: Mapping[str, Any], governor: Governor | None) -> None:
        """One forward over the trees of all active requests; its time is shared equally among them."""
        before = self._now()
        phases = Phases(self._now, self._engine.settle) if self._trace else None
        _CELLS[heartbeat.BEATS] += 1
        drafts = governor is None or governor.drafts(len(active))
        trees = {
            each.slot: each.decoder.draft(each.output.ids[-1]) if drafts else each.decoder.rest(each.output.ids[-1])
            for each in active
        }
        if phases:
            phases.mark("draft")
        _CELLS[heartbeat.AT] = Activity.FORWARD
        results = self._engine.step(trees, **wanted, phases=phases, **self._forced(active, trees))
        # Copies, because a decoder may change the lists that it gets.
        decided = [(results[each.slot].emitted[:], results[each.slot].path[:]) for each in active]
        for each in active:
            each.decoder.observe(results[each.slot])
        _CELLS[heartbeat.AT] = Activity.OURS
        self._split(active, phases)
        now = self._now()
        if governor is not None:
            governor.saw(len(active), drafts, sum(len(emitted) for emitted, _ in decided), now - before)
        share = (now - before) / len(active)
        for each, (emitted, path) in zip(active, decided, strict=True):
            if governor is not None and drafts:
                each.drafted.append(len(each.accepted_lengths))
            each.step(now, share, len(active), emitted, verified(trees[each.slot], path, whole=self._trace))

    def _fill(self, active: Sequence[ActiveRequest], entropy: bool) -> None:
        """One pass over masked positions of all active requests; its time is shared equally among them."""
        before = self._now()
        phases = Phases(self._now, self._engine.settle) if self._trace else None
        _CELLS[heartbeat.BEATS] += 1
        passes = {each.slot: each.decoder.fill() for each in active}
        if phases:
            phases.mark("draft")
        _CELLS[heartbeat.AT] = Activity.FORWARD
        results = self._engine.fill(passes, entropy=entropy, phases=phases)
        decided = [each.decoder.take(results[each.slot]) for each in active]
        _CELLS[heartbeat.AT] = Activity.OURS
        self._split(active, phases)
        now = self._now()
        share = (now - before) / len(active)
        for each, emitted in zip(active, decided, strict=True):
            each.step(now, share, len(active), emitted, filled(len(passes[each.slot]), len(emitted)))

    def _split(self, active: Sequence[ActiveRequest], phases: Phases | None) -> None:
        """End the last phase of a traced step, and share the times of its phases equally among the requests."""
        if phases:
            phases.mark("observe")
            for each in active:
                for phase, spent in phases.spent.items():
                    each.spent.setdefault(phase, []).append(spent / len(active))

    def _forced(self, active: Sequence[ActiveRequest], trees: Mapping[int, TokenTree]) -> dict[str, Any]:
        """The step's ``forced`` for simulated acceptance; untimed, since no real decoder does this work."""
        simulated = [(each.slot, each.acceptance) for each in active if each.acceptance]
        if not simulated:
            return {}
        return {"forced": self._off_clock(lambda: {slot: drawn.forced(trees[slot]) for slot, drawn in simulated})}

    def _finish(
        self, method: Method, done: ActiveRequest, active: list[ActiveRequest], origin: int, number: int
    ) -> Generator[RequestRecord, None, None]:
        """Free a request's slot and hand its record over, while the clock stands still."""
        if not self._off_clock(partial(self._engine.finite, done.slot)):
            raise UsageError(
                f"{method.label}: the model produced NaN or infinity on {done.request.prompt_id}, so its answer "
                "means nothing; use a wider --dtype, or undamaged weights"
            )
        active.remove(done)
        self._leave(done)
        if not done.conversation.recorded:
            return
        handed_over = self._clock()
        record = make_record(
            method.label, done, origin, number, self._memory.peak() if self._memory else None, method.stops
        )
        if self._shared:
            self._shared.check(method)
        yield record
        if self._shared:
            self._shared.take()
        self._away += self._clock() - handed_over

    def _leave(self, done: ActiveRequest) -> None:
        try:
            done.decoder.end()
        finally:
            if not done.conversation.waiting:
                self._release(done.conversation)

    def _release(self, conversation: Conversation) -> None:
        if conversation.slot is not None:
            self._engine.free(conversation.slot)
            conversation.slot = None

    def _now(self) -> int:
        return self._clock() - self._away

    def _off_clock(self, work: Callable[[], T]) -> T:
        """Run work that must not be measured while the clock stands still."""
        before = self._clock()
        done = work()
        self._away += self._clock() - before
        return done
