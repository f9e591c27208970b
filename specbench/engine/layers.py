"""A model's decoder layers: where they are, and what they put out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def decoder_layers(model: Any) -> list[nn.Module]:
    """The elements of the model's lists of as many modules as it has layers."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return [layer for modules in lists for layer in modules]


@contextmanager
def tapped(layers: Sequence[nn.Module], taps: Sequence[int]) -> Iterator[list[Tensor]]:
    """Outputs [S, rows, hidden size] of the layers ``taps``, in that order, of a forward that runs inside.

    Not by ``output_hidden_states``: transformers answers it with hooks that it never removes, some of them inside of
    the layers, where each costs every later step a call and splits what torch.compile makes of a layer.
    """
    found: dict[int, Tensor] = {}
    outputs: list[Tensor] = []

    def keeper(layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            found[layer] = output[0] if isinstance(output, tuple) else output

        return keep

    handles = [layers[layer].register_forward_hook(keeper(layer)) for layer in set(taps)]
    try:
        yield outputs
        outputs += [found[layer] for layer in taps]
    finally:
        for handle in handles:
            handle.remove()
