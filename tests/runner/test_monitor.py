"""The machine is looked at before, between and after stretches, on no request's clock, and it stays in the folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.asserting import known
from support.decoders import Clock, ToyEngine, runner, toy
from support.models import plan, prepared

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.hardware.monitor import MachineSample
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord
from specbench.results.watch import WATCH
from specbench.runner import run_task
from specbench.runner.monitor import Monitor, Watcher

S = 1_000_000_000  # one second of a toy's clock
METHODS = (toy(label="ar"), toy(label="mine"))
PROMPTS = [Prompt(f"p{number}", "one", True) for number in range(3)]


class World:
    """A session whose stretches take ten steps, and a machine on which another process takes half a core of two.

    A look takes ``look_s`` here, which no request may notice.
    """

    methods = METHODS

    def __init__(self, step_s: float, look_s: float = 0.0) -> None:
        self.clock, self.look_s, self.looks, self.busy = Clock(), look_s, 0, False
        self.toy = ToyEngine(self.clock, fixed=round(step_s * S))
        self.engine = self

    def pad_as(self, steps: Any, products: Any) -> None: ...
    def warm_up(self, prepared: Any, methods: Any = None) -> None: ...

    def report(self) -> dict[str, Any]:
        return {}

    def decode(self, method: Method, requests: Sequence[Any], number: int, load: Any = None) -> Iterator[RequestRecord]:
        self.busy = True
        yield from runner(self.toy).segment(method, requests, number)
        self.busy = False

    @property
    def now(self) -> float:
        return self.clock.now / S

    def look(self) -> MachineSample:
        assert not self.busy, "inside a stretch"
        self.looks += 1
        self.clock.now += round(self.look_s * S)
        return MachineSample(self.now, 2, 2, 1.5 * self.now, 2.0 * self.now, 0.25 * self.now, 2300.0, 7, 1.0)


def decoded(world: World, folder: RunFolder, before: bool = False) -> list[RequestRecord]:
    """A run that is watched."""
    monitor = Monitor(Watcher(folder, world.look, lambda: world.now), None)
    made: Any = [plan(METHODS), [world], prepared(PROMPTS), folder, run_task.Silent(), before, monitor]
    found: list[RequestRecord] = run_task._decode(*made)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "ar-prompts", "0" * 64, {}) as made:
        yield made


def kept(folder: RunFolder) -> list[tuple[int, float]]:
    return [(look.segment, round(look.seconds, 2)) for look in known(folder.read(WATCH)).looks]


def test_looks_are_four_seconds_apart_and_one_is_after_the_last_stretch(folder: RunFolder) -> None:
    # A stretch takes 1.5 s: three of them are more than four seconds.
    world = World(step_s=0.15)
    decoded(world, folder)
    assert kept(folder) == [(3, 4.5), (6, 4.5)]
    assert world.looks == 3
    watch = known(folder.read(WATCH))
    assert (watch.others_share(), watch.stolen_share()) == (pytest.approx(0.25), pytest.approx(0.125))
    assert (watch.slowed(), watch.seconds) == (0, 9.0)
    assert watch.looks[0].own_cores == pytest.approx(1.5)


def test_in_a_long_run_looks_are_further_apart(folder: RunFolder) -> None:
    world = World(1.0)
    watcher = Watcher(folder, world.look, lambda: world.now)
    for segment in range(3_000):
        watcher.before(segment)
        world.clock.now += S
    found = known(folder.read(WATCH)).looks
    assert len(found) < 320
    assert found[0].seconds == 4.0
    assert found[-1].seconds > 25
    assert max(look.seconds for look in found) < 32


def test_no_request_pays_for_a_look(tmp_path: Path) -> None:
    found = []
    for look_s in (0.0, 1800.0):
        with RunFolder.create(tmp_path, f"ar-{look_s}", "0" * 64, {}) as made:
            found.append(decoded(World(1.0, look_s), made))
    assert found[0] == found[1]
    assert {record.latency_s for record in found[0]} == {10.0}


def test_a_resumed_run_adds_to_what_was_seen_and_does_not_count_the_time_between(folder: RunFolder) -> None:
    class Killed(Exception):
        pass

    world = World(1.0)
    decode = world.decode

    def dying(method: Method, requests: Sequence[Any], number: int, load: Any = None) -> Iterator[RequestRecord]:
        if number == 3:
            raise Killed
        return decode(method, requests, number)

    world.decode = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        decoded(world, folder)
    assert kept(folder) == [(1, 10.0), (2, 10.0), (3, 10.0)], "each is on disk when it is taken"
    later = World(1.0)
    later.clock.now = 5000 * S
    decoded(later, folder, before=True)
    assert kept(folder)[3:] == [(4, 10.0), (5, 10.0), (6, 10.0)]
    again = World(1.0)
    decoded(again, folder, before=True)
    assert again.looks == 0
