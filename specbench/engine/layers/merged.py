"""Compute linear layers that read the same input as one product, over views of their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from specbench.engine.layers.parts import Unlike

#: (x [..., K], weight [N, K], bias [N] or None) -> [..., N].
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Product:
    """Layers that read one input, as one product: their weights become views of one tensor, not copies."""

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], by: Linear = nn.functional.linear) -> None:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        if biases and len(biases) < len(linears):
            raise Unlike("only some of its products of one input have a bias")
        self.by, self.linears = by, linears
        self.weight = _merged([linear.weight for linear in linears])
        self._bias = _merged(biases) if biases else None

    def __call__(self, x: Tensor, start: int = 0) -> Tensor:
        """Outputs for rows [N, size], from output ``start`` on."""
        bias = self._bias if self._bias is None else self._bias[start:]
        return self.by(x, self.weight[start:], bias)


def serve(linear: nn.Linear, by: Linear) -> None:
    """Compute a linear layer that is not merged with another function, except during training."""

    def forward(x: Tensor) -> Tensor:
        product = nn.functional.linear if torch.is_grad_enabled() else by
        return product(x, linear.weight, linear.bias)

    linear.__dict__["forward"] = forward  # hides the class's forward


def by_shape(weights: Iterable[Tensor]) -> dict[tuple[int, int], list[Tensor]]:
    """Group weights [outputs, inputs] by their shape."""
    found: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for weight in weights:
        found[weight.shape[0], weight.shape[1]].append(weight)
    return dict(found)


def _merged(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parameters; each of them becomes a view of the result."""
    first, rows = parts[0], sum(len(part) for part in parts)
    if len(parts) == 1:
        return first.detach()
    ends, at = [], first.storage_offset()
    for part in parts:
        ends.append(part.untyped_storage()._cdata == first.untyped_storage()._cdata and part.storage_offset() == at)
        at += part.numel()
    if all(ends):  # an earlier engine has already merged them
        return first.detach().as_strided((rows, *first.shape[1:]), first.stride())
    whole = torch.cat([part.detach() for part in parts])
    for part, own in zip(parts, whole.split([*map(len, parts)]), strict=True):
        part.data = own
    return whole
