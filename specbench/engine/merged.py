"""Merged products: the linear layers that read one input, as one product over views of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specbench.engine.parts import Unlike

#: (x [..., K], weight [N, K], bias [N] or None) -> [..., N].
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Product:
    """The layers that read one input, as one product: their weights become parts of one tensor, which is no copy.

    Args:
        linears: in the order of their outputs.
        by: computes it: ``nn.functional.linear``, or what is faster.

    Attributes:
        weight: [N, K], of all of them.

    Raises:
        Unlike: some have a bias and some have none.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], by: Linear = nn.functional.linear) -> None:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        if biases and len(biases) < len(linears):
            raise Unlike("some of its products that read one input have a bias, and others have none")
        self._by = by
        self.weight = _merged([linear.weight for linear in linears])
        self._bias = _merged(biases) if biases else None

    def __call__(self, x: Tensor, start: int = 0) -> Tensor:
        """Outputs of rows [N, size], from number ``start`` on."""
        bias = self._bias if self._bias is None else self._bias[start:]
        return self._by(x, self.weight[start:], bias)


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
