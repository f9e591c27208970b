"""Predict what a sweep or a run takes: memory, hours and downloads."""

from __future__ import annotations

import os
import re
from typing import Any

from specbench.common import SpecbenchError
from specbench.models import names
from specbench.planning import PROMPT_TOKENS, Plan, Resolved, dry_run, resolve
from specbench.sweeps.running import expanded, predict
from specbench.sweeps.sweep_plan import SweepPlan

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
_BYTES = 2  # of a weight in a published checkpoint


def forecast(plan: SweepPlan | Plan) -> dict[str, Any]:
    """Predict, JSON-ready: ``memory_bytes``, ``hours``, ``prompts`` and ``fetch``; None for what is not known here.

    Hours assume that every answer uses its token budget at one token per forward, so they are an upper end for methods
    that accept drafts; ``steps`` says what the step times are from.
    """
    if isinstance(plan, Plan):
        resolved = resolve(plan)
        content = dry_run(resolved, resolved.methods, [plan.concurrency])
    else:
        resolved, content = expanded(plan, insist=True)[0], predict(plan)
    (task,) = resolved.tasks
    missing = _weights(resolved)
    try:
        prompts = sum(prompt.turns for prompt in task.instance.prompts(True))
        prompts = min(prompts, plan.limit or prompts)
    except SpecbenchError:
        prompts = plan.limit
        missing.append(f"data of {task.card.name}")
    cells = content["cells"]
    held = [c["weight_bytes"] + c["cache_bytes"] + c["step_bytes"] for c in cells if c["weight_bytes"] is not None]
    steps = [c["step_s"] for c in cells]
    known = prompts is not None and None not in steps
    tokens = (prompts or 0) * (content["capacity"] - PROMPT_TOKENS)
    return {
        "model": content["model"],
        "task": task.card.name,
        "device": content["device"],
        "configurations": len(cells),
        "memory_bytes": max(held) if held else _guess(plan.model),
        "prompts": prompts,
        "hours": tokens * sum(steps) / 3600 if known else None,
        "steps": content["steps"],
        "fetch": missing,
    }


def _weights(resolved: Resolved) -> list[str]:
    """Hub ids of models and draft heads that are not in the local cache."""
    from huggingface_hub import try_to_load_from_cache  # slow to import

    source = names.resolve(resolved.plan.model)
    whole = source.base or source
    wanted = [whole.location] if whole.kind == "hub" else []
    for method in resolved.methods:
        head = getattr(method.options, "head", None)
        if isinstance(head, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", head) and not os.path.exists(head):
            wanted.append(head)
    return [name for name in dict.fromkeys(wanted) if not isinstance(try_to_load_from_cache(name, "config.json"), str)]


def _guess(model: str) -> float | None:
    """Bytes of the weights according to the size in a model's name; None without one."""
    size = _SIZE.search(model)
    return float(size[1]) * 1e9 * _BYTES if size else None
