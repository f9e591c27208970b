"""Batches of plain texts, one text per row, for recipes that train on whole texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specbench.common import UsageError
from specbench.training.data.answers import without_circles
from specbench.training.loop.checkpoints import claim
from specbench.training.loop.stopping import Evaluation
from specbench.training.loop.trainer import Course
from specbench.training.recipe import FREE, Job, LoopOptions, Text, digest


def teaching(texts: Sequence[Text], most: int) -> list[Text]:
    """Return texts cut to ``most`` tokens, prompt included; drop texts left with fewer than two answer tokens."""
    cut = [Text(text.id, text.prompt, text.answer[: max(0, most - len(text.prompt))]) for text in texts]
    return [text for text in cut if len(text.answer) >= 2]


def side_by_side(texts: Sequence[Text]) -> dict[str, Tensor]:
    """Collate texts into a batch, padded at their ends.

    Returns:
        ``ids`` int64 [B, S]; ``starts`` and ``ends`` int64 [B]: first position of each answer, tokens of each text.
    """
    ids = [torch.tensor([*text.prompt, *text.answer]) for text in texts]
    return {
        "ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "starts": torch.tensor([len(text.prompt) for text in texts]),
        "ends": torch.tensor([len(one) for one in ids]),
    }


def learnable(options: Any, job: Job) -> list[Text]:
    """Return the texts of a training that can be learnt from.

    Args:
        options: with ``keep_circles`` and ``max_tokens``.

    Raises:
        UsageError: no text has an answer of two tokens.
    """
    texts = teaching(without_circles(job.texts, options.keep_circles), options.max_tokens)
    if not texts:
        raise UsageError(
            "cannot train: no answer has two tokens to learn from; raise --max-new-tokens or give other prompts"
        )
    return texts


def claim_for(options: LoopOptions, job: Job, what: str, **about: str) -> None:
    """Reserve ``job.out`` for a training with these options, see :func:`specbench.training.loop.checkpoints.claim`."""
    settings = {**options.model_dump(mode="json", exclude=set(FREE)), "seed": job.seed, "texts": digest(job.texts)}
    claim(job.out, {**settings, **about}, what)


def plain_course(lesson: nn.Module, texts: Sequence[Text], look: Callable[[], Evaluation] | None) -> Course:
    """Return a course of whole texts."""
    return Course(
        lesson, texts, lambda visit, met: side_by_side(met), lambda text: len(text.prompt) + len(text.answer), look
    )


def round_weights_to(dtype: torch.dtype, model: nn.Module) -> None:
    """Round trained weights to the precision in which they are saved, so that figures hold for the file."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).to(parameter.dtype)
