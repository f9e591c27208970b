"""Training a CLLM: consistency on the target's own trajectories (Kou et al. 2024, arXiv:2403.00835)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.methods.cllm import learning
from specbench.training import Job, OnPolicyOptions, Teaching, WeightOptions, finetune

TRAJECTORIES = True


class Options(learning.Options, OnPolicyOptions, WeightOptions):
    """Options of the recipe."""


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """See :func:`finetune`."""
    streams = 3 if options.loss == "local" else 2
    return finetune(
        Teaching(
            method="cllm",
            lesson=lambda model, frozen: learning.Lesson(model, options, frozen),
            collator=learning.Collator(options, job.seed),
            size=lambda text: len(text.prompt) + streams * len(text.answer),
            decoding={"block_size": job.texts[0].block_size} if job.texts else {},
        ),
        options,
        job,
    )
