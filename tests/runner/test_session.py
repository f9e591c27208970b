"""A session wires model, engine and methods: what reaches the engine, what is shared, and what is free in the end."""

from __future__ import annotations

import gc
import weakref
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from support import decoders, models
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.planning.methods import plan_methods
from specbench.results.schema import SimulatedAcceptance
from specbench.runner.record import Request
from specbench.runner.session import Kernels, Session
from specbench.runner.setup import target
from specbench.runner.stop import StopRule

VOCAB, PROMPT = 64, [5, 6, 7, 8]


@pytest.fixture
def model() -> Any:
    return decoders.loaded(models.tiny_llama(VOCAB), name="tiny")


def requests(count: int, temperature: float | None = None, budget: int = 6) -> list[Request]:
    rule = StopRule(frozenset(), (), budget, str)
    return [Request(str(n), 0, [*PROMPT, n], rule, temperature=temperature) for n in range(count)]


class Prepares(decoders.Decoder):
    """Brings what ``make`` gives it."""

    @staticmethod
    def make(reported: Any) -> Any:
        return None

    @classmethod
    def prepare(cls, options: Any, target: Any) -> Any:
        return cls.make(target)


def bringing(make: Any, rows: int = 1) -> Any:
    return decoders.toy(rows, decoder=type("Brings", (Prepares,), {"make": staticmethod(make)}))


def test_it_decodes_what_plain_decoding_gives_at_the_temperature_of_the_request(model: Any) -> None:
    sampling = Sampling(temperature=0.0, seed=3)
    with Session(model, plan_methods(["jacobi"], ["n=4"]), sampling, capacity=32, slots=2) as session:
        for temperature in (None, 0.9, None):
            ar, jacobi = (
                {r.prompt_id: r.output_ids for r in session.decode(method, requests(3, temperature))}
                for method in session.methods
            )
            assert ar == jacobi
            assert session.engine.sampling == Sampling(temperature=temperature or 0.0, seed=3)
        assert session.sampling(0.9).seed == 3
        with pytest.raises(UsageError, check=wording):
            session.sampling(-1.0)


def test_drafts_repeat_with_seed_prompt_and_repeat(model: Any) -> None:
    def drawn(seed: int) -> list[list[int]]:
        methods = plan_methods(["jacobi"], ["n=6", "init=uniform"])
        with Session(model, methods, Sampling(seed=seed), capacity=64) as made:
            return [record.accepted_lengths for record in made.decode(made.methods[1], requests(4, budget=40))]

    assert drawn(1) == drawn(1)
    contexts = []
    with Session(model, plan_methods(["ar"], []), Sampling(seed=1), capacity=32) as session:
        contexts = [session._context("any", request).rng.random() for request in (*requests(2), *requests(1))]
    assert contexts[0] == contexts[2] != contexts[1]


def test_models_that_methods_bring_step_as_the_target_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    brought = MagicMock(notes=["flash-attn is left out"])

    def make(model: Any, **how: Any) -> Any:
        reported.append({"model": model, **how})
        return brought

    monkeypatch.setattr(target, "Engine", make)
    kernels = Kernels(backend="reference", graphs=False, compile=False, native=False)
    method = bringing(lambda reported: (reported.engine("draft", 3), reported.attention, reported.name))
    with Session(model, [method], Sampling(seed=4), capacity=32, slots=2, kernels=kernels, name="as typed") as session:
        assert session.methods[0].shared == (brought, "reference", "as typed")
        assert session.notes == brought.notes
        brought.close.assert_not_called()
    brought.close.assert_called_once()
    assert reported == [
        {
            "model": "draft", "slots": 2, "capacity": 32, "max_rows": 3, "sampling": Sampling(seed=4),
            "backend": "reference", "graphs": False, "compile": False, "native": False,
            "deterministic": False,
        }
    ]  # fmt: skip


def test_what_is_refused_leaves_the_model_free(model: Any) -> None:
    with pytest.raises(UsageError, check=wording):
        Session(model, [bringing(lambda reported: reported.load("tiny-draft"))], capacity=32)

    def refuse(reported: Any) -> Any:
        raise UsageError("no head for this model")

    with pytest.raises(UsageError, check=wording):
        Session(model, [bringing(refuse)], capacity=32)
    with pytest.raises(ValueError, check=wording):
        Session(model, [], capacity=32)
    with Session(model, plan_methods(["ar"], []), capacity=32) as session:  # an engine has its model for itself
        assert len(list(session.decode(session.methods[0], requests(1)))) == 1


def test_closed_it_holds_no_memory(model: Any) -> None:
    gc.collect()
    gc.disable()  # what waits for the collector keeps its cache next to the next one
    try:
        session = Session(model, plan_methods(["jacobi"], ["n=4"]), capacity=32)
        assert list(session.decode(session.methods[1], requests(2)))
        engine = weakref.ref(session.engine)
        session.close()
        del session
        assert engine() is None
    finally:
        gc.enable()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any]]]:
    """What engines are asked to capture."""
    seen: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(Engine, "prepare", lambda self, rows, **how: seen.append((rows, how)))
    return seen


def test_what_is_captured_is_what_the_steps_will_be(model: Any, captured: list[tuple[int, dict[str, Any]]]) -> None:
    methods = plan_methods(["msn", "jacobi"], ["jacobi.n=4"])
    simulated = {"jacobi": SimulatedAcceptance(mean=2.0, spread=0.0)}
    with Session(model, methods, capacity=64, simulated=simulated) as session:
        session.capture(40, temperature=0.5)
        assert session.engine.sampling.temperature == 0.5
        assert captured == [
            (
                m.max_rows,
                {
                    "top_k": m.top_k,
                    "taps": m.taps,
                    "probabilities": m.own_noise,
                    "acceptance": m.acceptance,
                    "forced": m.label == "jacobi",
                    "context": 40,
                },
            )
            for m in session.methods
        ]
        assert max(how["top_k"] for _, how in captured) > 0


def test_weights_in_training_decode_in_place_of_the_models_own(model: Any) -> None:
    other = models.tiny_llama(VOCAB)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    with Session(model, plan_methods(["ar"], []), capacity=32, weights=other) as session:
        assert session.engine.model is other
        assert session.model is model


def test_fewer_sequences_than_slots_are_stepped_together(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(model, plan_methods(["ar"], []), capacity=32, slots=3) as session:
        widths: list[int] = []
        step = session.engine.step

        def seen(trees: Any, **how: Any) -> Any:
            widths.append(len(trees))
            return step(trees, **how)

        monkeypatch.setattr(session.engine, "step", seen)
        assert len(list(session.decode(session.methods[0], requests(4), together=2))) == 4
        assert set(widths) == {2}
        widths.clear()
        assert len(list(session.decode(session.methods[0], requests(3)))) == 3
        assert set(widths) == {3}
