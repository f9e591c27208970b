"""Recipe for TR-Jacobi: next tokens after noisy input ("Make Some Noise", Wang et al. 2024, arXiv:2406.17404)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.methods.msn import learning
from specbench.training import Job, OnPolicyOptions, Teaching, WeightOptions, finetune


class Options(learning.Options, OnPolicyOptions, WeightOptions):
    """Options of the recipe."""


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """See :func:`finetune`."""
    return finetune(
        Teaching(
            method="msn",
            lesson=lambda model, frozen: learning.Lesson(model, options, frozen),
            collator=learning.Collator(options, job.seed, vocab_size=job.target.vocab_size),
            size=lambda text: len(text.prompt) + len(text.answer),
            decoding={},
        ),
        options,
        job,
    )
