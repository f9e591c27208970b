"""A model on its engine, with its methods, their clock, GPU meter and warm-up.

Everything that decodes uses a session: runs, sweeps, checks, the local judge, training answers, held-out prompts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch

from specbench.common import EnvironmentRefused, PluginFault, UsageError
from specbench.decoding import Context, Method, Target
from specbench.engine import Engine, Sampling, TreesTooLarge
from specbench.hardware import GpuMeter, Nvml, environment
from specbench.models import LoadedModel, load
from specbench.planning import Acceptance, Plan, Resolved, how_to_shrink
from specbench.results import MEMORY, SWITCH, RequestRecord, SimulatedAcceptance, StoredTimes
from specbench.runner.checked_decoder import check_wishes
from specbench.runner.grades.grade_run import grade
from specbench.runner.loop import Runner
from specbench.runner.prompts import Prepared
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import OpenLoop
from specbench.runner.setup.calibration import Calibration
from specbench.runner.setup.layer_backend import native_of
from specbench.runner.setup.request_state import States
from specbench.runner.setup.sampling import sampling_of
from specbench.runner.setup.shared_state import SharedState
from specbench.runner.setup.target import no_draft_models, target_of
from specbench.runner.setup.warm_up import warm_up_ids
from specbench.runner.stop import StopRule

_WARM_UP_TOKENS = 24


@dataclass(frozen=True)
class Kernels:
    """How an engine steps: its arguments of these names, see :class:`specbench.engine.Engine`."""

    backend: str = "auto"
    graphs: bool | None = None
    compile: bool = False
    native: bool | None = None
    deterministic: bool = False

    @classmethod
    def of(cls, plan: Plan, device: str = "cpu") -> Kernels:
        """The options of a plan for a kind of device."""
        return cls(plan.attention, SWITCH[plan.graphs], plan.compile, native_of(plan, device), plan.deterministic)


class Session:
    """A session. Close it when done, or use it as a context manager.

    Args:
        methods: their draft models and heads are loaded here.
        sampling: sampling of requests without their own temperature; its seed is also used for drafts.
        capacity: tokens of the longest sequence, its answer included.
        name: the user's name of the model; default is its own name.
        weights: the causal LM to decode with if it is not the model's own, as in training.
        drafts: loads draft models by name; without it a method that needs one is refused.
        simulated: method label -> simulated acceptance.
        metered: read the GPU while requests run.
        calibration: times for automatic settings; by default they are measured and not stored.

    Attributes:
        methods: with their draft models and heads.
        calibration: times for automatic settings.
    """

    def __init__(
        self,
        model: LoadedModel,
        methods: Sequence[Method],
        sampling: Sampling | None = None,
        *,
        capacity: int,
        slots: int = 1,
        kernels: Kernels | None = None,
        name: str | None = None,
        weights: Any = None,
        drafts: Callable[[str], LoadedModel] = no_draft_models,
        trace: bool = False,
        simulated: Mapping[str, SimulatedAcceptance] | None = None,
        metered: bool = False,
        calibration: Calibration | None = None,
    ) -> None:
        self.model = model
        self.calibration = calibration or Calibration({})
        self._sampling = sampling or Sampling()
        self._trace = trace
        self._simulated = simulated or {}
        self._runners: dict[int, Runner] = {}
        self._gpu: Nvml | None = None
        kernels = kernels or Kernels()
        if not methods:
            raise ValueError("a session needs a method")
        self._heads: list[Mapping[str, Any]] = []  # facts about draft heads
        self.notes: list[str] = []
        widest = max(methods, key=_cells)
        try:
            self.engine = Engine(
                model.model if weights is None else weights,
                slots=slots,
                capacity=capacity,
                max_rows=_cells(widest),
                sampling=self._sampling,
                **vars(kernels),
            )
        except TreesTooLarge as error:
            raise EnvironmentRefused(f"{widest.label}: {error}; {how_to_shrink(widest)}") from error
        self.notes += self.engine.notes
        try:
            self._gpu = open_gpu(self.engine.device) if metered else None
            self._target: Target | None = target_of(
                model,
                self.engine,
                name=name,
                load=drafts,
                kernels=vars(kernels),
                measured=self._measured,
                note=self._heads.append,
                warn=lambda line: None if line in self.notes else self.notes.append(line),
            )
            self._plain, self.calibrated = tuple(methods), set[str]()
            self._shared = SharedState(self.engine.model)
            self._faulty: dict[str, PluginFault] = {}
            self._drafts_in: dict[str, int] = defaultdict(int)  # bytes, by label
            self.methods = self._ready(self._target)
            self._states = States(self.methods)
        except BaseException:
            self.close()
            raise

    def _measured(self, what: str, take: Callable[[], Any], by_rows: bool = False) -> Any:
        self.calibrated.add(self._preparing)
        return self.calibration.once(what, take, by_rows)

    def _ready(self, target: Target) -> tuple[Method, ...]:
        """Prepare the methods.

        A method that changed shared state, or asks for outputs that the target does not have, is refused when it should
        decode."""
        made = []
        for method in self._plain:
            self._preparing = method.label
            self._shared.take()
            try:
                made.append(method.ready(target))
            finally:
                try:
                    self._shared.check(method, random_numbers=False)
                except PluginFault as fault:
                    if fault.spoils_all:
                        raise
                    self._faulty[method.label] = fault
            try:
                self._drafts_in[method.label] = made[-1].memory_bytes
                check_wishes(made[-1], self.model)
            except PluginFault as fault:
                fault.row = method.label
                self._faulty.setdefault(method.label, fault)
        return tuple(made)

    def _assert_sound(self, method: Method) -> None:
        if method.label in self._faulty:
            raise self._faulty[method.label]

    def calibrate(self, known: Mapping[str, StoredTimes]) -> None:
        """Choose automatic settings from the times that a run began with, if they differ from this session's."""
        if self.calibration.take(known) and self._target is not None:
            self.methods = self._ready(self._target)
            self._states = States(self.methods)

    def warm_up(
        self,
        prepared: Prepared,
        methods: Sequence[Method] | None = None,
        tokens: int = _WARM_UP_TOKENS,
    ) -> None:
        """Capture every graph, then run every method on warm-up text as long as the longest prompt."""
        longest, methods = prepared.longest, self.methods if methods is None else methods
        requests = self.warm_up_requests(prepared, longest, tokens)
        warm: set[str] = set()
        for temperature in prepared.temperatures:
            self.capture(longest, methods, temperature)
            for method in methods:
                # A method's models may have graphs of their own for each kind of sampling.
                if method.label not in warm or method.shared is not None:
                    warm.add(method.label)
                    for _ in self.decode(method, [replace(request, temperature=temperature) for request in requests]):
                        pass
        self._states.empty()

    def warm_up_requests(self, prepared: Prepared, length: int, tokens: int) -> list[Request]:
        """A warm-up prompt of up to ``length`` tokens for each slot, answered by up to ``tokens`` tokens."""
        text = warm_up_ids(self.model, min(length, prepared.longest), prepared.ids)
        room = prepared.longest + prepared.budget - len(text)
        rule = StopRule(frozenset(), (), max(1, min(tokens, room)), self.model.decode)
        return [Request(f"warm-up/{slot}", 0, text, rule) for slot in range(self.engine.slots)]

    def capture(self, context: int, methods: Sequence[Method] | None = None, temperature: float | None = None) -> None:
        """Capture the graphs of the methods' steps for prompts of at most ``context`` tokens, if steps are captured."""
        self.engine.sampling = self.sampling(temperature)
        for method in self.methods if methods is None else methods:
            self._assert_sound(method)
            if method.fills:  # their few shapes are captured while they warm up
                continue
            self.engine.prepare(
                method.max_rows,
                top_k=method.top_k,
                taps=method.taps,
                probabilities=method.own_noise,
                acceptance=method.acceptance,
                forced=method.label in self._simulated,
                context=context,
            )

    def sampling(self, temperature: float | None = None) -> Sampling:
        """The sampling for a temperature that a task prescribes; None is the session's own."""
        try:
            return self._sampling if temperature is None else replace(self._sampling, temperature=temperature)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def decode(
        self,
        method: Method,
        requests: Sequence[Request],
        number: int = 0,
        together: int | None = None,
        load: OpenLoop | None = None,
    ) -> Iterator[RequestRecord]:
        """Decode requests of one temperature without interruption; yield each as it ends.

        ``number`` is stored with each record; times of one segment share a clock. ``together`` defaults to all slots.
        ``load``: when the requests arrive.
        """
        self._assert_sound(method)
        self.engine.sampling = self.sampling(requests[0].temperature)
        try:
            for record in self._runner(together or self.engine.slots).segment(method, requests, number, load):
                yield self._states.placed(record)
        except TreesTooLarge as error:
            raise EnvironmentRefused(f"{method.label}: {error}; {how_to_shrink(method)}") from error

    def grade(
        self,
        prepared: Prepared,
        records: Sequence[RequestRecord],
        methods: Sequence[Method] | None = None,
        **others: Any,
    ) -> Mapping[str, dict[str, Any]]:
        """Losslessness of each method's answers; ``others`` go to :func:`specbench.runner.grades.grade_run.grade`."""
        methods = self.methods if methods is None else methods
        return grade(self.engine, methods, prepared, records, self.sampling, **others)

    def report(self) -> dict[str, Any]:
        """The engine's choices, the cost of its captures, and the memory of each method."""
        weights, cache = self.model.spec.weight_bytes, self.engine.cache.nbytes
        memory = {
            method.label: {"weight_bytes": weights, "cache_bytes": cache, "draft_bytes": self._drafts_in[method.label]}
            for method in self.methods
        }
        found = {**self.engine.report(), MEMORY: memory}
        if self.calibrated:
            found["calibrated"] = sorted(self.calibrated)
        if self._heads:
            found["heads"] = self._heads
        return found

    def close(self) -> None:
        """Free the memory of the engine and of draft models and heads at once."""
        # They and the target refer to this session; without these cycles its memory is freed at once.
        self._runners.clear()
        self._target = None
        self.methods, self._states = (), States(())
        self.engine.close()
        if self._gpu:
            self._gpu.close()
            self._gpu = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _runner(self, together: int) -> Runner:
        if together not in self._runners:
            meter = GpuMeter(self._gpu.look) if self._gpu else None
            self._runners[together] = Runner(
                self.engine,
                self._context,
                together,
                trace=self._trace,
                gpu=meter,
                simulate=self._acceptance,
                memory=peak_memory(self.engine.device),
                shared=self._shared,
            )
        return self._runners[together]

    def _context(self, label: str, request: Request) -> Context:
        """Random drafts depend on (seed, prompt, repeat, turn): reproducible, and the same for equal methods."""
        turn = f"/{request.turn}" if request.turn > 1 else ""
        rng = random.Random(f"{self._sampling.seed}/{request.prompt_id}/{request.repeat}{turn}")
        return Context(
            self.model.vocab_size, self.model.pad_id, rng, state=self._states.of(label, request),
            budget=request.rule.budget, stops=request.rule.stop_ids,
        )  # fmt: skip

    def _acceptance(self, label: str, request: Request) -> Acceptance | None:
        asked = self._simulated.get(label)
        seed = f"{self._sampling.seed}/{label}/{request.prompt_id}/{request.repeat}/{request.turn}"
        return Acceptance.of(asked, seed, self.model.vocab_size, self.model.stop_ids) if asked else None


def _cells(method: Method) -> int:
    """Cells that a step of a method may need after the text, as rows of a tree. A pass over masked positions may be
    followed by as many empty cells, see :class:`specbench.engine.attention.interface.Visibility`."""
    return 2 * method.max_rows if method.fills else method.max_rows


def session_of(
    resolved: Resolved,
    model: LoadedModel,
    capacity: int,
    methods: Sequence[Method] | None = None,
    *,
    metered: bool = False,
) -> Session:
    """The session of a run, by default with all of its methods. ``capacity``: tokens of the longest sequence with its
    answer.
    """

    plan = resolved.plan
    kernels = Kernels.of(plan, model.model.device.type)
    captured = environment.capture(str(model.model.device))
    of = {
        "model": model.spec.fingerprint,
        "dtype": model.spec.dtype,
        "machine": environment.fingerprint(captured),
        "threads": plan.threads,  # the requested number: the number left in a resumed run differs
        "slots": plan.concurrency,
        "kernels": vars(kernels),
    }

    def draft_model(spec: str) -> LoadedModel:
        return load(
            spec, dtype=model.spec.dtype, device=str(model.model.device), trust_remote_code=plan.trust_remote_code
        )

    session = Session(
        model,
        resolved.methods if methods is None else methods,
        sampling_of(resolved.sampling, model),
        capacity=capacity,
        slots=plan.concurrency,
        kernels=kernels,
        name=plan.model,
        drafts=draft_model,
        trace=plan.trace,
        simulated=resolved.simulated,
        metered=metered,
        calibration=Calibration.here(of),
    )
    if plan.keep_prefix and session.engine.cache.recurrent is not None:
        session.close()
        raise UsageError(
            f"cannot keep prefixes with {model.spec.name}: the states of its recurrent layers cannot go back to the "
            "end of a prefix; remove --keep-prefix"
        )
    return session


def open_gpu(device: torch.device) -> Nvml | None:
    """The GPU to read while requests run; None on a CPU, or if NVML has no such GPU."""
    if device.type != "cuda":
        return None
    return Nvml.open(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))


class PeakMemory:
    """Peak memory of one GPU from torch's allocator: tensors, weights and cache, without the allocator's reserve."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Reset the peak to the current memory."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Peak bytes since :meth:`reset`."""
        return torch.cuda.max_memory_allocated(self._device)


def peak_memory(device: torch.device) -> PeakMemory | None:
    """The meter of a device; None on a CPU, where torch does not count memory."""
    return PeakMemory(device) if device.type == "cuda" else None
