"""Recipe for Fast-dLLM v2: adapt an autoregressive model to block diffusion (Wu et al. 2025, arXiv:2509.26328)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.methods.fast_dllm import learning
from specbench.models import LoadedModel
from specbench.training import Job, Teaching, WeightOptions, finetune


class Options(learning.Options, WeightOptions):
    """Options of the recipe."""


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a wrong or missing mask token before answers are decoded."""
    target.mask_token(options.mask)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """See :func:`finetune`."""
    mask = job.target.mask_token(options.mask)
    collator = learning.Collator(options, mask, job.seed)
    return finetune(
        Teaching(
            method="fast-dllm",
            lesson=lambda model, frozen: learning.Lesson(model, options, frozen),
            collator=collator,
            size=collator.size,
            decoding={"block_size": options.block_size, "mask": mask},
        ),
        options,
        job,
    )
