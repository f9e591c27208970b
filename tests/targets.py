"""What a run tells its methods of their target, for the engines of the tests; draft models are near copies of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from specbench.decoding.protocol import Target
from specbench.engine.engine import Engine
from specbench.models.loader import ByteTokenizer, LoadedModel
from specbench.results.schema import ModelSpec

Load = Callable[[str], LoadedModel]


def loaded(model: Any, name: str = "draft", tokenizer: Any = None) -> LoadedModel:
    """A model as the loader returns it."""
    dtype = str(model.dtype).removeprefix("torch.")
    spec = ModelSpec(
        name=name, source=name, revision=None, fingerprint=f"of {name}", dtype=dtype, device="cpu",
        parameters=1, weight_bytes=4, dummy=True, template=None,
    )  # fmt: skip
    return LoadedModel(model, tokenizer or ByteTokenizer(), frozenset(), 0, None, spec)


def copied(engine: Engine, noise: float = 0.0) -> Any:
    """A copy of an engine's model, its weights off by ``noise`` of their spread: what it says, mostly."""
    engine.detach()  # the copy would serve it too
    try:
        twin = copy.deepcopy(engine.model)
    finally:
        engine.attach()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in twin.parameters():
            if noise and parameter.dim() > 1:
                parameter += noise * parameter.std() * torch.randn_like(parameter)
    return twin


def eager(work: Callable[[], None]) -> Callable[[], None]:
    """Captures nothing."""
    work()
    return work


def alone(
    model: Any, *, slots: int = 1, capacity: int, capture: Callable[..., Any] = eager, attention: str = "auto"
) -> Target:
    """What a head is told of a target that no engine runs: its passes are tested alone."""

    def none(*_: Any) -> Any:
        raise AssertionError("a head's passes need neither step times nor other models")

    return Target(
        model=model,
        name="target",
        tokenizer=ByteTokenizer(),
        slots=slots,
        capacity=capacity,
        sampling=none,
        step_seconds=none,
        capture=capture,
        load=none,
        engine=none,
        attention=attention,
    )


def target(engine: Engine, load: Load | None = None, tokenizer: Any = None) -> Target:
    """What a method is told of ``engine``.

    Args:
        engine: the target's.
        load: draft models by name; default is a near copy of the target under any name.
        tokenizer: the target's; default is that of dummy weights.

    Step times are made up, so that what depends on them repeats.
    """

    def engine_like_it(model: Any, max_rows: int) -> Engine:
        made = Engine(model, slots=engine.slots, capacity=engine.capacity, max_rows=max_rows, sampling=engine.sampling)
        engine.at_close(made.close)
        return made

    return Target(
        model=engine.model,
        name="target",
        tokenizer=tokenizer or ByteTokenizer(),
        slots=engine.slots,
        capacity=engine.capacity,
        sampling=lambda: engine.sampling,
        step_seconds=lambda rows: [(at, 1 + at / 64) for at in (1, 2, 4, 8, 16, 32, 64, 128, 512)],
        capture=engine.capture,
        follow=engine.follow,
        at_close=engine.at_close,
        load=load or (lambda name: loaded(copied(engine, 0.05), name)),
        engine=engine_like_it,
    )
