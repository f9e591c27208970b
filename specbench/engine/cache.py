"""Static KV cache for all slots: a step writes its rows to scratch cells, and a commit moves the accepted rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

from specbench.common import UsageError
from specbench.engine.layers.recurrent import RecurrentStates, StateRecorder
from specbench.engine.layout import Layout
from specbench.engine.ops import Ops

_NOISE = 256  # cells of a block of noise

LayerShape = tuple[int, int, int]  # KV heads, key head size, value head size


class Answering:
    """Base of the cache objects for transformers' layers; using an attribute that is missing here raises an error."""

    def __getattr__(self, name: str) -> Any:
        if name == "has_previous_state":  # which layers of older versions ask for
            raise UsageError(
                f"recurrent layers need transformers 5.21 or newer, and this is {transformers.__version__}; upgrade it"
            )
        raise AttributeError(f"its layers use their cache's '{name}', which the engine's cache does not have")

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return 0: models call this to make their own position ids, and the engine always passes position ids.

        A model that needs the real length fails the check after long texts (:mod:`specbench.engine.checks.forward`).
        """
        return 0


class ShapeRecorder(StateRecorder, Answering):
    """Stand-in for the cache that only records the shapes each layer stores, so that any model family works."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int, LayerShape] = {}

    def aim(self, *_: Any, **__: Any) -> None: ...

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (key.shape[1], key.shape[3], value.shape[3])
        return key, value


class StaticCache(Answering):
    """KV of every slot and layer, allocated once.

    transformers' attention layers call :meth:`update`; the engine calls everything else. A step writes the rows of a
    slot to the cells after the slot's length, whatever the tree's shape: those cells are scratch until :meth:`commit`
    moves the accepted rows to their front and the engine raises the slot's length. The last cell is never read: the
    reference operations store padding there.

    Args:
        shapes: per layer index (KV heads, key head size, value head size).
        capacity: cells per sequence L, scratch rows included.

    Attributes:
        recurrent: states of the model's recurrent layers; None if it has none.
    """

    def __init__(
        self, shapes: dict[int, LayerShape], slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity, self.device = capacity, device
        self.shapes = shapes
        self.recurrent: RecurrentStates | None = None
        by_shape: dict[LayerShape, list[int]] = defaultdict(list)
        for layer, shape in shapes.items():
            by_shape[shape].append(layer)
        # Layers of one shape share a buffer [layers, S, heads, L, head size], so a commit is one copy per buffer,
        # not one per layer.
        self._buffers: list[Tensor] = []
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for (heads, key_size, value_size), layers in by_shape.items():
            keys = torch.zeros(len(layers), slots, heads, capacity, key_size, dtype=dtype, device=device)
            values = torch.zeros(len(layers), slots, heads, capacity, value_size, dtype=dtype, device=device)
            self._buffers += [keys, values]
            self._layers.update({layer: (keys[i], values[i]) for i, layer in enumerate(layers)})
        self._aim: tuple[Layout, Tensor, Ops] | None = None
        self._positions: Tensor | None = None

    @cached_property
    def _noise(self) -> torch.Generator:
        """A separate generator, so that noise does not change any other random numbers."""
        return torch.Generator(self.device).manual_seed(0)

    @property
    def nbytes(self) -> int:
        """Total bytes of all buffers and states."""
        states = self.recurrent.nbytes if self.recurrent is not None else 0
        return states + sum(buffer.nbytes for buffer in self._buffers)

    def aim(
        self, layout: Layout, lengths: Tensor, ops: Ops, positions: Tensor, parents: Tensor, *, lead: int = 1
    ) -> None:
        """Set where the next forward writes: the rows of ``layout`` go after ``lengths`` [S], written with ``ops``.

        ``positions``: integer [N] of the rows in their texts; ``parents``: integer [N], row of each row's parent, its
        own for roots; ``lead``: rows of a prompt and the root under it, which is 1 without a prompt.
        """
        self._aim, self._positions = (layout, lengths, ops), positions
        if self.recurrent is not None:
            self.recurrent.aim(layout, parents, lead)

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """Return what a layer adds to the index of each row to get its position, [N]; 0 for a whole model.

        A layer of Llama 4 scales its queries by their positions, which it does not get as an argument.
        """
        if layer_idx is None or self._positions is None:
            return 0
        return self._positions - torch.arange(len(self._positions), device=self._positions.device)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [1, heads, N, size]; return its whole cache, like :meth:`stored`."""
        assert self._aim is not None
        layout, lengths, ops = self._aim
        keys, values = self._layers[layer_idx]
        ops.write(key, value, keys, values, layout, lengths)
        return keys, values

    def place(self, layer_idx: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
        """(keys, values, layout, lengths): a layer's cache, and where the current forward writes in it."""
        assert self._aim is not None
        layout, lengths, _ = self._aim
        return *self._layers[layer_idx], layout, lengths

    def stored(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values [slots, heads, L, size], as views."""
        return self._layers[layer_idx]

    @property
    def buffers(self) -> list[Tensor]:
        """All buffers, each [layers, slots, heads, L, size]."""
        return self._buffers

    def commit(self, slot: int, start: int, path: Sequence[int] | Tensor) -> None:
        """Move accepted rows to the front of the scratch cells, like :meth:`Ops.commit`, for a path the host knows.

        ``path``: rows of the step to keep, in order; row r sits in cell ``start + r``.
        """
        rows = torch.as_tensor(path, dtype=torch.int64, device=self.device) + start
        for buffer in self._buffers:
            mine = buffer[:, slot]
            mine[:, :, start : start + len(path)] = mine.index_select(2, rows)

    def scatter_noise(self, slot: int, start: int, stop: int) -> None:
        """Fill a slot's cells in [start, stop) with noise, repeating one block."""
        for buffer in self._buffers:
            layers, _, heads, _, size = buffer.shape
            noise = torch.randn(heads, _NOISE, size, dtype=buffer.dtype, device=buffer.device, generator=self._noise)
            for at in range(start, stop, _NOISE):
                cells = buffer[:, slot, :, at : min(at + _NOISE, stop)]
                cells.copy_(noise[None, :, : cells.shape[2]].expand(layers, -1, -1, -1))

    def repeat(self, slot: int, first: int, filled: int, stop: int) -> None:
        """Copy a slot's cells [first, filled) into the cells after them, again and again up to ``stop``."""
        for buffer in self._buffers:
            for at in range(filled, stop, filled - first):
                count = min(filled - first, stop - at)
                buffer[:, slot, :, at : at + count] = buffer[:, slot, :, first : first + count]

    def clear(self, slot: int, length: int) -> None:
        """Set a slot's first ``length`` cells to zero."""
        for buffer in self._buffers:
            buffer[:, slot, :, :length] = 0

    def finite(self, slot: int, length: int) -> bool:
        """Whether the last layer's keys and values in a slot's first ``length`` cells are finite.

        NaN or infinity from an earlier layer reaches the last layer, so checking the last one is enough.
        """
        if self.recurrent is not None and not self.recurrent.finite(slot):
            return False
        last = self._layers[max(self._layers)] if self._layers else ()
        return all(bool(stored[slot, :, :length].isfinite().all()) for stored in last)

    def read(self, slot: int, length: int) -> list[Tensor]:
        """Copy a slot's first ``length`` cells: one tensor [layers, heads, length, size] per buffer."""
        return [buffer[:, slot, :, :length].clone() for buffer in self._buffers]
