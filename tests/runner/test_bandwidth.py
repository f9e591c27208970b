"""Memory is read before, between and after stretches: on no request's clock, and not where it says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.decoders import Clock, ToyEngine, runner, toy
from support.models import plan, prepared

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.hardware.roofline import AttentionLayers, Experts, ModelShape, step_cost
from specbench.models.loader import load
from specbench.planning.methods import plan_methods
from specbench.results.bandwidth import BANDWIDTH, ForwardBytes
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import SimulatedAcceptance
from specbench.runner import monitor, run_task
from specbench.runner.monitor import MemoryReader, forward_bytes, memory_reader
from specbench.runner.record import Request
from specbench.runner.session import Session

S = 1_000_000_000  # one second of a toy's clock
METHODS = (toy(label="ar"), toy(label="mine"))
PROMPTS = [Prompt(f"p{number}", "one", True) for number in range(3)]
FORWARDS = {"ar": ForwardBytes(contexts=[0], nbytes=[1e9])}


class World(run_task.Silent):
    """A session, a probe and what hears of both, on one clock; ``speeds`` are GB/s by reading, ``fails`` the failing
    one.
    """

    methods = METHODS

    def __init__(self, step_s: float = 1.0, fails: int | None = None, speeds: Sequence[float] = ()) -> None:
        self.speeds = speeds
        self.clock = Clock()
        self.toy = ToyEngine(self.clock, fixed=round(step_s * S))
        self.engine, self.did, self.notes, self.busy, self.fails = self, list[str](), list[str](), False, fails
        self.taken = 0
        self.open = False
        self.phases = list[str]()

    def pad_as(self, steps: Any, products: Any) -> None: ...
    def warm_up(self, prepared: Any, methods: Any = None) -> None:
        self.did.append("warm")

    def report(self) -> dict[str, Any]:
        return {}

    def decode(
        self, method: Method, requests: Sequence[Request], number: int, load: Any = None
    ) -> Iterator[RequestRecord]:
        self.did.append(f"{number} {method.label}")
        self.busy = True
        yield from runner(self.toy).segment(method, requests, number)
        self.busy = False

    # What a probe does: a reading takes half an hour here, which no request may notice.
    def opened(self, say: Callable[[str], None]) -> World:
        say("building")
        if self.fails == 0:
            raise EnvironmentRefused("no C++ compiler was found")
        self.open = True
        return self

    def read(self, threads: int) -> float:
        assert self.open
        assert not self.busy, "inside a stretch"
        assert self.toy.occupied == 0
        self.taken += 1
        if self.taken == self.fails:
            raise EnvironmentRefused("no 2 threads for a bandwidth probe")
        self.did.append("read")
        self.clock.now += 1800 * S
        return 1e9 * (self.speeds[min(self.taken, len(self.speeds)) - 1] if self.speeds else self.taken)

    def close(self) -> None:
        self.open = False

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def decoded(
    world: World, folder: RunFolder, before: bool = False, reads: bool = True, patience: float = 0.0
) -> list[RequestRecord]:
    """A run that reads memory."""
    made: Any = [plan(METHODS), [world], prepared(PROMPTS), folder, world, before]
    if reads:
        reader = MemoryReader(FORWARDS, folder, world, patience, world.opened, lambda: world.clock.now / S)
        made.append(reader)
    found: list[RequestRecord] = run_task._decode(*made)
    if reads:
        reader.close()
        assert not world.open
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "ar-prompts", "0" * 64, {}) as made:
        yield made


def kept(folder: RunFolder) -> list[tuple[int, int, float]]:
    found = folder.read(BANDWIDTH)
    assert found is not None
    return [(one.segment, one.threads, one.bytes_per_s / 1e9) for one in found.readings]


def stretches(did: Sequence[str]) -> list[list[str]]:
    """Stretches between two readings."""
    found: list[list[str]] = [[]]
    for one in did:
        if one == "read":
            found.append([])
        else:
            found[-1].append(one.partition(" ")[0])
    return found


def test_it_is_read_before_the_first_stretch_after_the_last_and_between_only_four_seconds_apart(
    folder: RunFolder,
) -> None:
    # A stretch is a prefill and nine steps of 0.15 s each: 1.5 s, so that three are more than four seconds.
    world = World(step_s=0.15)
    decoded(world, folder)
    assert stretches(world.did) == [["warm"], ["0", "1", "2"], ["3", "4", "5"], []]
    assert kept(folder) == [(0, 1, 1.0), (3, 1, 2.0), (6, 1, 3.0)]


#: Seconds of a reading of a toy's probe.
ROUND = 1800


def test_a_stretch_waits_until_memory_gives_again_what_it_gave(folder: RunFolder) -> None:
    """The readings that stay are those next to what was timed, and how long was waited is on record."""
    world = World(step_s=1.0, speeds=[80, 80, 50, 40, 79, 81])
    decoded(world, folder, patience=5 * ROUND)
    assert world.did[:8] == ["warm", "read", "0 ar", "read", "1 mine", "read", "read", "read"]
    assert world.did.count("read") == 7 + 2
    assert [speed for *_, speed in kept(folder)] == [80, 80, 79, 81, 81, 81, 81]
    assert [segment for segment, *_ in kept(folder)] == [*range(7)]
    found = folder.read(BANDWIDTH)
    assert found is not None
    assert found.waited_s == 2 * ROUND
    assert world.phases.count("waiting for memory bandwidth") == 1, "a line for each wait, not for each reading"
    low, high = found.figures().low_bytes_per_s, found.figures().high_bytes_per_s
    assert (low, high) == (79e9, 81e9)


def test_patience_is_for_all_of_a_run(folder: RunFolder) -> None:
    world = World(step_s=1.0, speeds=[80, 50])
    decoded(world, folder, patience=3 * ROUND)
    assert world.did.count("read") == 7 + 3
    assert [speed for *_, speed in kept(folder)] == [80, *[50] * 6]
    again = World(step_s=1.0, speeds=[50])
    reader = MemoryReader(FORWARDS, folder, again, 3 * ROUND, again.opened, lambda: again.clock.now / S)
    reader.before(7)
    assert again.did == ["read"], "a run that goes on has waited before"


def test_no_request_pays_for_a_reading(tmp_path: Path) -> None:
    found = []
    for reads in (True, False):
        with RunFolder.create(tmp_path, f"ar-{reads}", "0" * 64, {}) as made:
            found.append(decoded(World(), made, reads=reads))
    assert found[0] == found[1]
    assert {record.latency_s for record in found[0]} == {10.0}
    assert {record.start_s for record in found[0]} == {0.0}


def test_a_resumed_run_keeps_what_was_read_before_and_a_finished_one_reads_nothing(folder: RunFolder) -> None:
    class Killed(Exception):
        pass

    class Broken(World):
        def request(self, record: RequestRecord) -> None:
            if record.segment == 3:
                raise Killed

    with pytest.raises(Killed):
        decoded(Broken(), folder)
    assert [segment for segment, *_ in kept(folder)] == [0, 1, 2, 3], "each is on disk when it is taken"
    world = World()
    decoded(world, folder, before=True)
    assert [(segment, speed) for segment, _, speed in kept(folder)] == [
        (0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, 1.0), (5, 2.0), (6, 3.0)
    ]  # fmt: skip
    again = World()
    decoded(again, folder, before=True)
    assert again.did == []
    assert len(kept(folder)) == 7


@pytest.mark.parametrize(
    ("fails", "why", "readings"),
    [(0, "no C++ compiler was found", 0), (1, "no 2 threads for a bandwidth probe", 0),
     (3, "no 2 threads for a bandwidth probe", 2)],
)  # fmt: skip
def test_where_it_cannot_be_read_the_run_goes_on_and_says_why_once(
    folder: RunFolder, fails: int, why: str, readings: int
) -> None:
    world = World(fails=fails)
    assert len(decoded(world, folder)) == 6
    assert world.notes == [f"memory bandwidth is not read: {why}"]
    found = folder.read(BANDWIDTH)
    assert found is not None
    assert (found.refused, len(found.readings)) == (why, readings)
    better = MemoryReader(FORWARDS, folder, world, 0.0, World().opened, lambda: 0.0)
    better.before(9)
    found = folder.read(BANDWIDTH)
    assert found is not None
    assert (found.refused, len(found.readings)) == ("", readings + 1)


def session(weight_bytes: int = monitor.LEAST_WEIGHTS, device: str = "cpu") -> Any:
    model = SimpleNamespace(spec=SimpleNamespace(weight_bytes=weight_bytes))
    engine = SimpleNamespace(device=torch.device(device), capacity=100, model=None, detached=nullcontext)
    return SimpleNamespace(model=model, engine=engine, methods=METHODS)


LOT = {"mine": SimulatedAcceptance(mean=4, spread=1)}


@pytest.mark.parametrize(
    ("sessions", "simulated", "reads"),
    [
        ([session()], {}, True),
        ([session(), session()], {}, True),
        ([session(monitor.LEAST_WEIGHTS - 1)], {}, False),
        ([session(), session(1)], {}, False),
        ([session(device="cuda")], {}, False),
        ([session()], LOT, False),
    ],
)
def test_only_uncached_weights_on_a_cpu_without_simulation(
    sessions: Any, simulated: Any, reads: bool, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "shape_of", lambda engine: SHAPE)
    assert (memory_reader(sessions, simulated, folder, run_task.Silent()) is not None) == reads
    assert folder.read(BANDWIDTH) is None, "nothing is read before the first stretch"


def test_a_model_of_unknown_shape_has_readings_and_no_share(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(engine: Any) -> Any:
        raise UsageError("this model has experts")

    monkeypatch.setattr(monitor, "shape_of", unknown)
    monkeypatch.setattr(monitor, "BandwidthProbe", lambda say: World().opened(say))
    reader = memory_reader([session()], {}, folder, run_task.Silent())
    assert reader is not None
    reader.before(0)
    reader.close()
    found = folder.read(BANDWIDTH)
    assert found is not None
    assert (found.forwards, len(found.readings)) == ({}, 1)


SHAPE = ModelShape(
    matmul=1000, head=100, embedding=0, embedding_width=10, tied=True, small=3,
    attention=(
        AttentionLayers(layers=1, query_heads=2, kv_heads=1, key_size=5, value_size=5, window=9),
        AttentionLayers(layers=2, query_heads=2, kv_heads=1, key_size=5, value_size=5),
    ),
    weight_bytes=4, cache_bytes=4,
)  # fmt: skip


@pytest.mark.parametrize("capacity", [4, 8, 9, 200])
def test_a_forward_reads_what_a_step_of_one_row_does_at_every_context(capacity: int) -> None:
    found = forward_bytes(SHAPE, capacity)
    for context in range(capacity + 1):
        assert found.read(context) == pytest.approx(step_cost(SHAPE, 1, context).bytes)


def test_several_rows_add_their_experts() -> None:
    experts = Experts(count=8, active=2, elements=50, routed={1: 2.0, 2: 3.0, 4: 5.0})
    found = forward_bytes(SHAPE.model_copy(update={"experts": experts}), 100)
    assert found.read(0) == forward_bytes(SHAPE, 100).read(0) + 2 * 50 * 4
    assert [found.read(0, rows) - found.read(0) for rows in (2, 3, 4)] == [200, 400, 600]


def test_every_row_of_a_run_is_known_by_the_model_that_decodes_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(monitor, "BandwidthProbe", lambda say: World().opened(say))
    model = load("config:tiny", dtype="float32", device="cpu")
    with Session(model, plan_methods(["jacobi"], []), capacity=64) as opened:
        reader = memory_reader([opened], {}, folder, run_task.Silent())
        assert reader is not None
        reader.before(0)
        reader.close()
    found = folder.read(BANDWIDTH)
    assert found is not None
    assert found.forwards.keys() == {"ar", "jacobi"}
    # All of its weights, of the embedding table only the row, and nothing of a cache that is empty.
    assert 0 < found.forwards["ar"].read(0) <= 1.01 * model.spec.weight_bytes
