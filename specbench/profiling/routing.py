"""Count the experts that the rows of a step read, from a real forward of a mixture-of-experts model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.hardware import ModelShape
from specbench.profiling.shape import expert_counts

ROUTED = 256  # tokens to route
_MOST_ROWS = 64


@torch.inference_mode()
def with_routing(shape: ModelShape, model: Any, ids: Sequence[int]) -> ModelShape:
    """Add to the shape how many experts of a layer 1, 2, 4, … consecutive tokens of a text are routed to together.

    The count is a mean over the text and over the layers with experts, from one forward of the model's own layers. A
    layer whose experts multiply every token (Llama 4) reads all of them.

    ``ids``: a text of the run, of which the first ``ROUTED`` tokens are used.
    """
    if shape.experts is None or not ids:
        return shape
    routed: list[Tensor | None] = []

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        chosen = [each for each in given if not each.is_floating_point() and each.dtype != torch.bool]
        routed.append(chosen[0].reshape(-1, chosen[0].shape[-1]).cpu() if chosen else None)

    counts = expert_counts(model)
    holders = [
        module for module in model.modules()
        if any(each.ndim == 3 and each.shape[0] in counts for each in module.parameters(recurse=False))
    ]  # fmt: skip
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in holders]
    try:
        model(torch.tensor([list(ids[:ROUTED])], dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not routed:
        return shape
    rows, read = 1, {}
    while rows <= min(_MOST_ROWS, len(ids)):
        found = [shape.experts.count if layer is None else _distinct(layer, rows) for layer in routed]
        read[rows] = sum(found) / len(found)
        rows *= 2
    return shape.model_copy(update={"experts": shape.experts.model_copy(update={"routed": read})})


def _distinct(layer: Tensor, rows: int) -> float:
    """Mean number of different experts in ``layer`` [tokens, k] over its adjacent groups of ``rows`` tokens."""
    groups = layer[: len(layer) // rows * rows].view(-1, rows * layer.shape[-1])
    return sum(len(group.unique()) for group in groups) / len(groups)
