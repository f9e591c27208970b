"""Compare the engine with transformers' own ``generate``, once per model, machine and version of the code.

All rows of a run use one engine, so comparing rows cannot show the engine's own mistakes. This check can: it compares a
few tokens after one prompt of the run, untimed.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.common import EnvironmentRefused, SpecbenchError, cache_folder, one_line, write_json_atomic
from specbench.hardware import environment
from specbench.planning import Plan
from specbench.runner.prompts import Prepared
from specbench.runner.session import Session

_TOKENS = 16
#: Most parameters × tokens on a CPU; more would take longer than the run's own warm-up.
_MOST_WORK = 1e11
# Two scores are a tie if they are within rounding of each other, in standard deviations of all scores.
_TIE = 4.0


@dataclass(frozen=True)
class GenerateCheck:
    """The check's outcome, for ``run.json``.

    Attributes:
        tie: index of the token that differs by a numeric tie; later tokens are not compared.
        skipped: why nothing was compared; empty if the comparison was made.
    """

    tokens: int = 0
    prompt: str = ""
    tie: int | None = None
    skipped: str = ""

    def written(self) -> dict[str, Any]:
        """The outcome as JSON, without fields that do not apply."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def check_generate(
    plan: Plan, session: Session, prepared: Prepared, captured: environment.Environment
) -> GenerateCheck:
    """Compare greedy tokens, unless that was done before on this machine.

    Raises EnvironmentRefused if they differ and it is not a tie.
    """
    if plan.simulate:
        return GenerateCheck(skipped="acceptance is simulated, so that the text means nothing")
    engine = session.engine
    request = min(map(prepared.request, prepared.prompts), key=lambda request: len(request.ids))
    count = min(_TOKENS, prepared.budget)
    if engine.device.type == "cpu" and session.model.spec.parameters * (len(request.ids) + count) > _MOST_WORK:
        return GenerateCheck(skipped="it would take this CPU too long")
    of = {
        "model": session.model.spec.fingerprint,
        "dtype": session.model.spec.dtype,
        "machine": environment.fingerprint(captured),
        "engine": [plan.attention, plan.compile, engine.code.linears],
    }
    folder = cache_folder("generate-checks")
    place = (
        folder / f"{hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:24]}.json" if folder else None
    )
    known = _stored(place)
    # Uncommitted code may change without a trace, so earlier results do not count.
    if known is not None and not captured.git_dirty:
        return known
    found = _compared(session, request.ids, count, request.prompt_id)
    if place is not None and not found.skipped:
        with suppress(OSError, SpecbenchError):  # no cache if it cannot be written
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(place, found.written())
    return found


def _stored(place: Path | None) -> GenerateCheck | None:
    try:
        found = GenerateCheck(**json.loads(place.read_bytes())) if place else None
    except (OSError, ValueError, TypeError):  # missing or damaged: compare again
        return None
    return found


def _compared(session: Session, ids: Any, count: int, prompt: str) -> GenerateCheck:
    engine, name = session.engine, session.model.spec.name
    ours = engine.greedy(ids, count)
    try:
        with engine.detached():
            theirs = _generated(engine.model, ids, count, session.model.pad_id)
    except (torch.OutOfMemoryError, MemoryError):
        return GenerateCheck(skipped="no memory for transformers' own generate")
    except Exception as error:  # a model's own code may raise anything
        return GenerateCheck(
            skipped=f"its own generate does not run ({one_line(f'{type(error).__name__}: {error}', 160)})"
        )
    at = next((at for at, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return GenerateCheck(tokens=count, prompt=prompt)
    with engine.detached(), torch.inference_mode():
        text = torch.tensor([[*ids, *ours[:at]]], device=engine.device)
        scores = engine.model(input_ids=text, use_cache=False).logits[0, -1].float()
    gap = float(scores[theirs[at]] - scores[ours[at]])
    if abs(gap) <= _TIE * engine.rounding * float(scores.std()):
        return GenerateCheck(tokens=count, prompt=prompt, tie=at)
    raise EnvironmentRefused(
        f"cannot measure {name}: after prompt {one_line(prompt, 80)} its token {at} is {ours[at]} by this engine and "
        f"{theirs[at]} by transformers' own generate, and no rounding explains it; use another model, and report this"
    )


def _generated(model: Any, ids: Any, count: int, pad: int) -> list[int]:
    """transformers' greedy continuation, without the model's own penalties, filters and stop tokens."""
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=pad)
    try:
        with torch.inference_mode():
            given = torch.tensor([[*ids]], device=model.device)
            found = model.generate(given, attention_mask=torch.ones_like(given))
    finally:
        model.generation_config = own
    return [int(token) for token in found[0, len(ids) :]]
