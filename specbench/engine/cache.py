"""The static KV cache: one buffer for all slots, written at each step's scratch rows, committed by moving rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.engine.layout import Layout
from specbench.engine.ops import Ops

_NOISE = 256  # cells of a block of noise

LayerShape = tuple[int, int, int]  # KV heads, key head size, value head size


class Answering:
    """What transformers' layers are given as their cache; whatever else they ask of one is an error that names it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"its layers ask their cache for '{name}', which the engine's does not answer")

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Asked by models that make their own position ids; ours always come with the call.

        A model that counts on it elsewhere is noticed after long texts (:mod:`specbench.engine.checks.forward`).
        """
        return 0


class ShapeRecorder(Answering):
    """A stand-in for the cache that only notes what each layer stores, so that no model family has to be known."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def aim(self, *_: Any) -> None: ...

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (key.shape[1], key.shape[3], value.shape[3])
        return key, value


class StaticCache(Answering):
    """KV of every slot and layer, allocated once.

    transformers' attention layers call :meth:`update`; everything else is called by the engine. A slot's rows of a step
    are written from its length on, whatever the tree's shape: those cells are scratch until :meth:`commit` moves the
    accepted rows to the front of them and the engine raises the slot's length. The last cell is never read: oracles
    store padding there.

    Args:
        shapes: per layer index (KV heads, key head size, value head size).
        capacity: cells per sequence L, scratch rows included.
    """

    def __init__(
        self, shapes: dict[int, LayerShape], slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity, self.device = capacity, device
        self.shapes = shapes
        by_shape: dict[LayerShape, list[int]] = defaultdict(list)
        for layer, shape in shapes.items():
            by_shape[shape].append(layer)
        # Layers of one shape share a buffer [layers, S, heads, L, head size], so a commit is one copy per buffer
        # and not one per layer.
        self._buffers: list[Tensor] = []
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for (heads, key_size, value_size), layers in by_shape.items():
            keys = torch.zeros(len(layers), slots, heads, capacity, key_size, dtype=dtype, device=device)
            values = torch.zeros(len(layers), slots, heads, capacity, value_size, dtype=dtype, device=device)
            self._buffers += [keys, values]
            self._layers.update({layer: (keys[i], values[i]) for i, layer in enumerate(layers)})
        self._aim: tuple[Layout, Tensor, Ops] | None = None

    @cached_property
    def _noise(self) -> torch.Generator:
        """Its own, so that nothing else's random numbers depend on it."""
        return torch.Generator(self.device).manual_seed(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def aim(self, layout: Layout, lengths: Tensor, ops: Ops) -> None:
        """Says where the next forward writes: the rows of a layout after ``lengths`` [S], by ``ops``."""
        self._aim = layout, lengths, ops

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values [1, heads, N, size]; returns all there are, as :meth:`stored` does."""
        assert self._aim is not None
        layout, lengths, ops = self._aim
        keys, values = self._layers[layer_idx]
        ops.write(key, value, keys, values, layout, lengths)
        return keys, values

    def place(self, layer_idx: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
        """(keys, values, layout, lengths): a layer's cache, and where the forward that is under way writes in it."""
        assert self._aim is not None
        layout, lengths, _ = self._aim
        return *self._layers[layer_idx], layout, lengths

    def stored(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values [slots, heads, L, size], as views."""
        return self._layers[layer_idx]

    @property
    def buffers(self) -> list[Tensor]:
        """Each [layers, slots, heads, L, size]."""
        return self._buffers

    def commit(self, slot: int, start: int, path: Sequence[int] | Tensor) -> None:
        """Move scratch rows to the front of the scratch area, like :meth:`Ops.commit`, for a path that the host knows.

        ``path``: rows of the step to keep, in order; row r sits in cell ``start + r``.
        """
        rows = torch.as_tensor(path, dtype=torch.int64, device=self.device) + start
        for buffer in self._buffers:
            mine = buffer[:, slot]
            mine[:, :, start : start + len(path)] = mine.index_select(2, rows)

    def scatter_noise(self, slot: int, start: int, stop: int) -> None:
        """Writes noise into a slot's cells from ``start`` to before ``stop``, one block of it again and again."""
        for buffer in self._buffers:
            layers, _, heads, _, size = buffer.shape
            noise = torch.randn(heads, _NOISE, size, dtype=buffer.dtype, device=buffer.device, generator=self._noise)
            for at in range(start, stop, _NOISE):
                cells = buffer[:, slot, :, at : min(at + _NOISE, stop)]
                cells.copy_(noise[None, :, : cells.shape[2]].expand(layers, -1, -1, -1))

    def clear(self, slot: int, length: int) -> None:
        """Empties a slot's first ``length`` cells."""
        for buffer in self._buffers:
            buffer[:, slot, :, :length] = 0

    def finite(self, slot: int, length: int) -> bool:
        """Whether the last layer's keys and values of a slot's first ``length`` cells are numbers.

        A token for which an earlier layer came to none has none there either.
        """
        return all(bool(stored[slot, :, :length].isfinite().all()) for stored in self._layers[max(self._layers)])

    def read(self, slot: int, length: int) -> list[Tensor]:
        """A copy of a slot's first ``length`` cells, one tensor [layers, heads, length, size] per buffer."""
        return [buffer[:, slot, :, :length].clone() for buffer in self._buffers]
