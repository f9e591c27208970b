"""Merged products: the linear layers that read one input, as one product over views of their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from specbench.engine.layers.parts import Unlike

#: (x [..., K], weight [N, K], bias [N] or None) -> [..., N].
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Product:
    """The layers that read one input, as one product: their weights become parts of one tensor, which is no copy."""

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], by: Linear = nn.functional.linear) -> None:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        if biases and len(biases) < len(linears):
            raise Unlike("some of its products that read one input have a bias, and others have none")
        self.by, self.linears = by, linears
        self.weight = _merged([linear.weight for linear in linears])
        self._bias = _merged(biases) if biases else None

    def __call__(self, x: Tensor, start: int = 0) -> Tensor:
        """Outputs of rows [N, size], from number ``start`` on."""
        bias = self._bias if self._bias is None else self._bias[start:]
        return self.by(x, self.weight[start:], bias)


def serve(linear: nn.Linear, by: Linear) -> None:
    """Computes a linear layer that is a product of its own by another function, but for a training's forward."""

    def forward(x: Tensor) -> Tensor:
        product = nn.functional.linear if torch.is_grad_enabled() else by
        return product(x, linear.weight, linear.bias)

    linear.__dict__["forward"] = forward  # found before the class's own


def by_shape(weights: Iterable[Tensor]) -> dict[tuple[int, int], list[Tensor]]:
    """By (outputs, inputs) the weights [outputs, inputs] of that shape."""
    found: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for weight in weights:
        found[weight.shape[0], weight.shape[1]].append(weight)
    return dict(found)


def _merged(parts: Sequence[Tensor]) -> Tensor:
    """The parameters one after the other, of which each is a view from now on."""
    first, rows = parts[0], sum(len(part) for part in parts)
    if len(parts) == 1:
        return first.detach()
    ends, at = [], first.storage_offset()
    for part in parts:
        ends.append(part.untyped_storage()._cdata == first.untyped_storage()._cdata and part.storage_offset() == at)
        at += part.numel()
    if all(ends):  # by an engine before this one
        return first.detach().as_strided((rows, *first.shape[1:]), first.stride())
    whole = torch.cat([part.detach() for part in parts])
    for part, own in zip(parts, whole.split([*map(len, parts)]), strict=True):
        part.data = own
    return whole
