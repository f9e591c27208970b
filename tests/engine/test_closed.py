"""A closed engine frees its memory at once, without Python's collector, whatever drafts for it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.models import supported

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.engine.layers import code
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.models import load
from specbench.planning.methods import plan_methods
from specbench.runner import Session
from specbench.runner.session import Kernels

CAPACITY = 60


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def memory(found: list[weakref.ref[Any]]) -> list[Any]:
    """Objects that are still there."""
    return [alive for each in found if (alive := each()) is not None]


@pytest.mark.parametrize("captured", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused layers", "own layers"])
def test_close_frees_cache_and_graphs(captured: bool, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fused:
        monkeypatch.setitem(code.OF_DEVICE, "cpu", FusedLayers)
    engine = Engine(supported("llama"), capacity=CAPACITY, max_rows=2, graphs=captured)
    engine.prepare(2, context=3)
    held: list[weakref.ref[Any]] = [weakref.ref(engine.cache)]
    if engine._graphs is not None:
        held += [weakref.ref(each) for each in (engine._graphs, *engine._graphs.graphs.values())]
    assert len(memory(held)) == (4 if captured else 1)
    engine.close()
    assert memory(held) == []
    whole = weakref.ref(engine)
    del engine
    assert whole() is None


METHODS = {
    "jetspec": "jetspec.head=random",
    "eagle3": "eagle3.head=random",
    "eagle": "eagle.head=random",
    "mtp": "mtp.head=random",
    "sps": "sps.draft=config:tiny",
}
CACHES = {
    "jetspec": lambda shared: shared.rounds._passes._cache,
    "eagle3": lambda shared: shared.rounds._passes._cache,
    "eagle": lambda shared: shared.rounds._passes._cache,
    "mtp": lambda shared: shared.rounds._passes._cache,
    "sps": lambda shared: shared.engine.cache,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("captured", [True, None], ids=["graphs", "eager"])
def test_a_closed_session_frees_what_drafts(name: str, captured: bool | None) -> None:
    model = load("config:tiny", dtype="float32", device="cpu")

    def opened() -> tuple[Session, list[weakref.ref[Any]]]:
        session = Session(
            model, plan_methods([name], [METHODS[name]]), capacity=CAPACITY, kernels=Kernels(graphs=captured),
            drafts=lambda _: load("config:tiny", dtype="float32", device="cpu"),
        )  # fmt: skip
        session.capture(4)
        drafting = CACHES[name](session.methods[-1].shared)
        return session, [weakref.ref(session.engine.cache), weakref.ref(drafting), weakref.ref(session.engine)]

    session, held = opened()
    assert len(memory(held)) == 3
    session.close()
    assert memory(held[:2]) == []
    del session
    assert memory(held) == []


def test_what_an_engine_is_used_for_is_freed_with_it() -> None:
    engine = Engine(supported("llama"), capacity=CAPACITY)
    ended: list[int] = []
    engine.at_close(lambda: ended.append(1))
    engine.detach()
    engine.attach()
    assert ended == [], "it goes on"
    engine.close()
    engine.close()
    assert ended == [1]
