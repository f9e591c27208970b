"""Recipe for Fast-dLLM v2: adapt an autoregressive model to block diffusion (Wu et al. 2025, arXiv:2509.26328)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.common import UsageError
from specbench.methods.fast_dllm import learning
from specbench.models import LoadedModel, mask_token
from specbench.training import Job, Teaching, WeightOptions, finetune


class Options(learning.Options, WeightOptions):
    """Options of the recipe."""


def check(options: Options, target: LoadedModel) -> None:
    """Refuse a wrong or missing mask token before answers are decoded."""
    _mask(options, target)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """See :func:`finetune`."""
    mask = _mask(options, job.target)
    collator = learning.Collator(options, mask, job.seed)
    return finetune(
        Teaching(
            method="fast-dllm",
            lesson=lambda model, frozen: learning.Lesson(model, options, frozen),
            collator=collator,
            masked=True,
            size=collator.size,
            decoding={"block_size": options.block_size, "mask": mask},
        ),
        options,
        job,
    )


def _mask(options: Options, target: LoadedModel) -> int:
    mask = mask_token(target.model.config, target.tokenizer) if options.mask is None else options.mask
    if mask >= target.vocab_size:
        raise UsageError(
            f"cannot mask with token {mask}: the vocabulary of {target.spec.name} ends at {target.vocab_size - 1}; set "
            "mask to the id of a token that texts do not use"
        )
    return mask
