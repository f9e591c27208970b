"""Recipe for Jacobi Forcing: progressive consistency on the target's own trajectories (the authors' post, 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.methods.jf import learning
from specbench.training import Job, OnPolicyOptions, Teaching, WeightOptions, finetune

TRAJECTORIES = True


class Options(learning.Options, OnPolicyOptions, WeightOptions):
    """Options of the recipe."""


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Train an adapter, see :func:`finetune`. Held-out prompts are decoded without multiblock and recycling, which cost
    more time than they save on a CPU and would hide what the weights have learnt."""
    decoding = {"preset": "vanilla", "block_size": job.texts[0].block_size} if job.texts else {}
    return finetune(
        Teaching(
            method="jf",
            lesson=lambda model, frozen: learning.Lesson(model, options, frozen),
            collator=learning.Collator(options, job.seed),
            size=lambda text: len(text.prompt) + 2 * len(text.answer),
            decoding=decoding,
        ),
        options,
        job,
    )
