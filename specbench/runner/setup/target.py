"""The target as methods see it: facts of the model and its engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from specbench.common import SpecbenchError, UsageError, plugins
from specbench.decoding import Target
from specbench.engine import Engine
from specbench.models import LoadedModel


def no_draft_models(name: str) -> Any:
    """Refuse to load a draft model."""
    raise UsageError(f"{name} is a draft model, which cannot be used here; use a method without one")


def target_of(
    loaded: LoadedModel,
    engine: Engine,
    *,
    name: str | None = None,
    load: Callable[[str], Any] = no_draft_models,
    kernels: Mapping[str, Any] | None = None,
    note: Callable[[Mapping[str, Any]], None] = lambda facts: None,
    warn: Callable[[str], None] = lambda line: None,
    measured: Callable[..., Any] = lambda name, take, by_rows=False: take(),
) -> Target:
    """The target of an engine, as methods see it.

    ``load`` returns draft models by name, ``measured`` times by name; ``note`` takes facts for the record, ``warn`` a
    line for the user. ``kernels`` also apply to draft models.
    """
    kernels = kernels or {}
    kept: dict[Hashable, Any] = {}

    def once(key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def step_seconds(most: int, context: int = 0) -> list[tuple[int, float]]:
        count, context = engine.slots, context or engine.calibration_context
        name = f"steps of up to {most} rows {f'of {count} sequences ' if count > 1 else ''}after {context} tokens"
        return [tuple(each) for each in measured(name, lambda: engine.step_seconds(most, count, context), True)]

    def engine_like_it(model: Any, max_rows: int) -> Engine:
        sampling = engine.sampling.of_drafts
        made = Engine(
            model, slots=engine.slots, capacity=engine.capacity, max_rows=max_rows, sampling=sampling, **kernels
        )
        engine.at_close(made.close)
        for line in made.notes:
            warn(line)
        return made

    return Target(
        model=engine.model,
        name=name or loaded.spec.name,
        tokenizer=loaded.tokenizer,
        slots=engine.slots,
        capacity=engine.capacity,
        sampling=lambda: engine.sampling,
        step_seconds=step_seconds,
        capture=engine.capture,
        follow=lambda work: engine.follow(_blaming(work)),
        at_close=engine.at_close,
        load=load,
        engine=engine_like_it,
        attention=engine.attentions.asked,
        native=kernels.get("native"),
        products=engine.products,
        note=note,
        warn=warn,
        measured=measured,
        mask_token=loaded.mask_token,
        once=once,
    )


def _blaming(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """Work of a method that the engine calls inside a step: its exceptions are the method's faults."""

    def follow(running: Any) -> None:
        try:
            work(running)
        except (SpecbenchError, KeyboardInterrupt):
            raise
        except BaseException as raised:
            raise plugins.fault(raised, where="after a step") from raised

    return follow
