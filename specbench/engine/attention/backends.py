"""Attention backends for trees: the reference in torch, and the split-KV Triton kernel."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, causal_lower_right

from specbench.engine.attention.interface import LayerAttention, Visibility
from specbench.engine.attention.masks import Masks
from specbench.engine.layout import Group

# Without cuDNN's kernel, which torch prefers on Hopper: it builds a plan for every new length of a prompt.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_SCORES = 1 << 26  # scores held at a time where torch's own attention cannot compute them


class ReferenceAttention:
    """Dense tree attention for one step; the masks are built once per sight and shared by all layers."""

    def __init__(self, visibility: Visibility) -> None:
        self.visibility = visibility
        self._layout = visibility.layout
        self._masks = Masks(visibility)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        groups = self._layout.groups
        if groups is None:
            return self._padded(query, key, value, how)
        if len(groups) == 1 and groups[0].rows.stop == query.shape[2]:
            return self._of_group(groups[0], query, key, value, how)
        attended = query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
        for group in groups:
            attended[:, group.rows] = self._of_group(group, query, key, value, how)
        return attended

    def _of_group(self, group: Group, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """[1, rows of the group, heads, value size]."""
        slots = group.slots.stop - group.slots.start
        mine = query[0, :, group.rows].unflatten(1, (slots, -1)).transpose(0, 1)
        cells = (group.slots, slice(None), slice(0, group.extent))
        keys, values = key[cells], value[cells]
        mask: Tensor | None = causal_mask(group, how, query)
        if mask is None:
            mask = self._masks.of_group(group, how.sight, query.dtype, key.shape[2])
        return dense_attention(mine, keys, values, mask, how).transpose(1, 2).flatten(0, 1)[None]

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """Attend when only the device knows the layout: each slot is padded to the number of all rows."""
        layout, (_, heads, rows, size) = self._layout, query.shape
        padded = query.new_zeros(key.shape[0], rows, heads, size)
        # Padding rows go to the last row of some slot, which no real row of that slot uses.
        at = torch.where(layout.real, layout.rank, rows - 1)
        padded[layout.owner, at] = query[0].transpose(0, 1)
        mask = self._masks.of_all(how.sight, query.dtype, key.shape[2])
        attended = dense_attention(padded.transpose(1, 2), key, value, mask, how)
        return attended.transpose(1, 2)[layout.owner, at][None]


def causal_mask(group: Group, how: LayerAttention, query: Tensor) -> CausalBias | None:
    """Return the causal mask of a chain (usually a prompt), which needs no memory, if torch has a kernel for it.

    Torch's fused CUDA kernels do not support a dense mask together with grouped heads; torch then falls back to a
    kernel that writes all scores to memory.
    """
    if not (group.causal and how.plain) or group.extent is None or not how.sight.reaches(group.extent):
        return None
    rows = group.rows.stop - group.rows.start
    # On a CPU the kernel supports only square causal masks.
    return causal_lower_right(rows, group.extent) if query.is_cuda or rows == group.extent else None


def dense_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: LayerAttention) -> Tensor:
    """Attend from queries [S, heads, Q, size] to keys [S, KV heads, L, size]; ``mask`` [S, 1, Q, L] is added."""
    group = query.shape[1] // key.shape[1]
    if how.softcap is not None or how.sinks is not None:
        return _capped(query, key, value, mask, how)
    flash = isinstance(mask, CausalBias) and query.dtype in (torch.bfloat16, torch.float16)
    if group > 1 and query.is_cuda and not flash:
        # The fused kernels for a dense mask, and for float32, need as many KV heads as query heads.
        key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
        group = 1
    with sdpa_kernel(_KERNELS) if query.is_cuda else nullcontext():
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=how.scale, enable_gqa=group > 1
        )


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: LayerAttention) -> Tensor:
    """:func:`dense_attention` with a soft cap or sinks, which torch's attention does not have.

    The scores of some rows are in memory at a time.
    """
    slots, heads, rows, size = query.shape
    kv_heads, cells = key.shape[1:3]
    scale = size**-0.5 if how.scale is None else how.scale
    grouped = query.unflatten(1, (kv_heads, -1))
    keys, values = key[:, :, None], value[:, :, None]
    step = max(1, _SCORES // (slots * heads * cells))
    found = []
    for first in range(0, rows, step):
        scores = (grouped[..., first : first + step, :] @ keys.transpose(-1, -2)).float() * scale
        if how.softcap is not None:
            scores = how.softcap * (scores / how.softcap).tanh()
        if mask is not None:
            scores = scores + mask[:, :, None, first : first + step].float()
        if how.sinks is not None:
            sinks = how.sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        found.append((weights.to(value.dtype) @ values).flatten(1, 2))
    return torch.cat(found, dim=2)


class TritonAttention:
    """Tree attention of one step, with bit masks from :class:`specbench.engine.kernels.ops.TritonOps`.

    ``splits``: number of programs per slot and KV head; by default enough to fill the device.
    """

    def __init__(self, visibility: Visibility, splits: int | None = None) -> None:
        from specbench.engine.kernels.tree_attention import tree_attention  # only where triton is installed

        self._see, self._attention, self._splits = visibility, tree_attention, splits

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        see = self._see
        return self._attention(
            query, key, value, see.layout, see.lengths, see.rows, see.depth, how, splits=self._splits
        )
