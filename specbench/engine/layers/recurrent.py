"""Keep the states of Mamba layers, gated delta nets and short convolutions per slot, through drafts and commits.

A recurrent layer folds a text into states of a fixed size. Unlike keys and values, a state cannot be cut where a draft
is rejected. So each slot keeps the state after its committed text, and a step runs such a layer, with the model's own
code, over whole paths: one sequence per leaf of a tree, each from its slot's state. After acceptance the layer runs
once more, over the accepted rows only, which gives the new state. Where the accepted path ends in a leaf of full length
(always in autoregressive decoding), the first pass has computed this state already.

Two passes read the layer's weights twice, however deep the tree is. Running level by level and keeping the state after
each row would read them once per level and needs a state per row, and a state is often larger than a row's activations
by orders of magnitude. Some layers of transformers (Mamba, Jamba) continue from a state only one token at a time, and
take one pass per token here.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.layout import Layout


@dataclass(frozen=True)
class StateShape:
    """Shape of one sequence's state, without the batch, and its type."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return self.dtype.itemsize * torch.Size(self.size).numel()


#: Names of the cache in the forward of transformers' models and layers.
CACHE_NAMES = ("past_key_values", "cache_params")

#: Largest error of one call of several tokens, as a share of what the states before them add to the output, in float32.
_SAME = 1e-5

#: The states of a layer by (kind, index); the kind is ``conv`` or ``recurrent``, as in transformers' caches.
Shapes = Mapping[tuple[str, int], StateShape]
States = dict[tuple[str, int], Tensor]


class LayerStates:
    """Stand-in for transformers' cache during one call of one recurrent layer.

    ``held``: the states before the call, [B, …] each, owned by this object; after the call those after it. Empty at the
    beginning of a text of unknown shapes.
    """

    def __init__(self, held: States | None = None) -> None:
        self.held: States = held or {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.held.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.held.get(("recurrent", state_idx))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Append new columns [B, channels, n] to the state; return both. The last columns are the new state."""
        before = self.held.get(("conv", state_idx))
        whole = conv_states if before is None else torch.cat([before, conv_states], dim=-1)
        width = before.shape[-1] if before is not None else conv_kernel_size or conv_states.shape[-1]
        kept = nn.functional.pad(whole, (max(0, width - whole.shape[-1]), 0))[..., -width:]
        self.held["conv", state_idx] = kept.clone()
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.held["recurrent", state_idx] = recurrent_states
        return recurrent_states


class StateRecorder(LayerStates):
    """Finds a model's recurrent layers, and the shapes of their states, in one forward without states."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[nn.Module, dict[tuple[str, int], StateShape]] = {}
        self._running: list[nn.Module] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager in which the innermost running module is known."""
        before = nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._running.append(module))

        def left(module: nn.Module, *_: Any) -> None:
            self._running.pop()

        after = nn.modules.module.register_module_forward_hook(left)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        found = super().update_conv_state(conv_states, layer_idx, state_idx, conv_kernel_size)
        self._keep("conv", state_idx, self.held.pop(("conv", state_idx)))
        return found

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **more: Any
    ) -> Tensor:
        self._keep("recurrent", state_idx, recurrent_states)
        return recurrent_states

    def _keep(self, kind: str, index: int, state: Tensor) -> None:
        shape = StateShape(tuple(state.shape[1:]), state.dtype)
        self.found.setdefault(self._running[-1], {})[kind, index] = shape


@dataclass(frozen=True)
class _Paths:
    """The sequences of one step: P paths of at most L rows.

    Attributes:
        lead: the rows that are committed in any case, if they are more than a root: a prompt and the root under it.
        rows: int64 [P, L]; a shorter path repeats its last row.
        slots: int64 [P].
        at: int64 [M, 3]: row, and the path and the place in it that computes this row.
        ends: last row of each path of L rows -> the path. Empty if a slot has several paths, whose states would take
            the more memory the wider a tree is.
    """

    lead: Tensor | None
    rows: Tensor
    slots: Tensor
    at: Tensor
    ends: Mapping[int, int]

    @classmethod
    def of(cls, parents: Sequence[int], slots: Sequence[int], lead: int, device: torch.device) -> _Paths:
        """Find the paths of trees.

        ``parents``: row of each row's parent, its own for roots; ``slots``: of each row, without padding; ``lead``:
        leading rows that form a chain and are always committed; 1 is a root like others.
        """
        first = lead if lead > 1 else 0
        inner = {parents[row] for row in range(len(slots)) if parents[row] != row}
        paths = []
        for leaf in range(first, len(slots)):
            if leaf in inner:
                continue
            path = [leaf]
            while (parent := parents[path[-1]]) != path[-1] and parent >= first:
                path.append(parent)
            paths.append(path[::-1])
        longest = max(map(len, paths), default=0)
        of_paths = [slots[path[-1]] for path in paths]
        chains = len(set(of_paths)) == len(paths)
        at = {row: (row, number, place) for number, path in enumerate(paths) for place, row in enumerate(path)}
        whole: Any = {"dtype": torch.int64, "device": device}
        return cls(
            torch.arange(lead, **whole) if lead > 1 else None,
            torch.tensor([path + path[-1:] * (longest - len(path)) for path in paths], **whole),
            torch.tensor(of_paths, **whole),
            torch.tensor(list(at.values()), **whole),
            {path[-1]: number for number, path in enumerate(paths) if chains and len(path) == longest},
        )


class _Layer:
    """A recurrent layer and the states of all slots.

    While the engine's cache is passed to its forward, the layer runs over the paths of the current step; with any other
    cache, or none, it is the model's own.
    """

    def __init__(
        self, module: nn.Module, shapes: Shapes, width: int, slots: int, device: torch.device, owner: RecurrentStates
    ) -> None:
        self.module, self._owner = module, owner
        self._own: Callable[..., Any] = module.forward
        self._signature = inspect.signature(self._own)
        self.states: States = {
            key: torch.zeros(slots, *each.size, dtype=each.dtype, device=device) for key, each in shapes.items()
        }
        self._final: States = {}  # states [P, …] after each path of the current step
        self._inputs: Tensor | None = None
        self._given: dict[str, Any] = {}  # arguments of the current forward, and the names of two of them
        self._hidden = self._cache = ""
        self._continues = _continues(module, shapes, width)

    def attach(self) -> None:
        self.module.forward = self

    def detach(self) -> None:
        self.module.__dict__.pop("forward", None)

    def __call__(self, *args: Any, **named: Any) -> Any:
        given = self._signature.bind(*args, **named).arguments
        given |= given.pop("kwargs", {})
        cached = [name for name, value in given.items() if value is self._owner.cache]
        if not cached:
            return self._own(*args, **named)
        paths = self._owner.paths
        assert paths is not None
        self._given, self._cache = given, cached[0]
        self._hidden, hidden = next((name, each) for name, each in given.items() if isinstance(each, Tensor))
        self._inputs, self._final = hidden[0], {}
        output = torch.zeros_like(hidden)
        if paths.lead is not None:
            slots = [self._owner.lead_slot]
            mixed, states = self._run(self._inputs[paths.lead][None], slots, whole=self._owner.fresh[slots[0]])
            output[0, paths.lead] = mixed[0].to(output.dtype)
            self._put(slots, states)
        if len(paths.rows):
            mixed, states = self._run(self._inputs[paths.rows], paths.slots)
            row, path, place = paths.at.unbind(1)
            output[0, row] = mixed[path, place].to(output.dtype)
            self._final = states if paths.ends else {}
        return output

    def _run(self, hidden: Tensor, slots: Sequence[int] | Tensor, *, whole: bool = False) -> tuple[Tensor, States]:
        """The layer's output for sequences [B, n, H] after the states of these slots [B], and the states after them.

        ``whole``: the sequences are texts from their beginning.
        """
        held = LayerStates({key: each[slots] for key, each in self.states.items()})
        parts = []
        for some in [hidden] if whole or self._continues else hidden.split(1, dim=1):
            found = self._own(**{**self._given, self._hidden: some, self._cache: held})
            parts.append(found[0] if isinstance(found, tuple) else found)
        return torch.cat(parts, dim=1), held.held

    def _put(self, slots: Sequence[int], states: States) -> None:
        for key, each in states.items():
            self.states[key][slots] = each.to(self.states[key].dtype)

    def commit(self, paths: Mapping[int, Sequence[int]], ends: Mapping[int, int]) -> None:
        """Set the states of slots to those after these rows, of the current step, after the states before it."""
        known = {slot: ends[rows[-1]] for slot, rows in paths.items() if rows and rows[-1] in ends}
        if known:
            at = list(known.values())
            self._put(list(known), {key: each[at] for key, each in self._final.items()})
        assert self._inputs is not None
        rest = sorted((len(rows), slot) for slot, rows in paths.items() if rows and slot not in known)
        for _, some in groupby(rest, lambda each: each[0]):
            slots = [slot for _, slot in some]
            rows = torch.tensor([list(paths[slot]) for slot in slots], device=self._inputs.device)
            _, states = self._run(self._inputs[rows], slots)
            self._put(slots, states)
        self._final, self._inputs = {}, None


@torch.inference_mode()
def _continues(module: nn.Module, shapes: Shapes, width: int) -> bool:
    """Whether one call of several tokens continues from states as one call per token does; found in float32."""
    wide = copy.deepcopy(module).float()
    device = next(module.parameters()).device
    cache = next((name for name in CACHE_NAMES if name in inspect.signature(wide.forward).parameters), "")
    text = torch.randn(1, 6, width, generator=torch.Generator().manual_seed(0)).to(device)

    def read(text: Tensor, states: States, *, together: bool = True) -> tuple[Tensor, States]:
        held, parts = LayerStates({key: each.clone() for key, each in states.items()}), []
        for some in [text] if together else text.split(1, dim=1):
            found = wide(some, **{cache: held})
            parts.append(found[0] if isinstance(found, tuple) else found)
        return torch.cat(parts, dim=1), held.held

    empty = {key: torch.zeros(1, *each.size, device=device) for key, each in shapes.items()}
    try:
        _, states = read(text[:, :4], empty, together=False)
        found, _ = read(text[:, 4:], states)
        error = found - read(text[:, 4:], states, together=False)[0]
        effect = found - read(text[:, 4:], empty)[0]
    except (TypeError, ValueError, AttributeError, RuntimeError):  # it needs something that its model gives it
        return False
    return bool(error.norm() <= _SAME * effect.norm())


class RecurrentStates:
    """The states of all recurrent layers of a model, for all slots.

    Args:
        found: the recurrent layers and the shapes of their states, see :class:`StateRecorder`.
        cache: the engine's cache; the layers run over paths wherever it is passed to them.
        width: elements of a row between layers.

    Attributes:
        paths: the sequences of the current step.
        lead_slot: the slot of a prefill.
        fresh: whether each slot's states are those before a text.
    """

    def __init__(
        self, found: Mapping[nn.Module, Shapes], cache: Any, width: int, slots: int, device: torch.device
    ) -> None:
        self.cache = cache
        self.paths: _Paths | None = None
        self.lead_slot = 0
        self.fresh = [True] * slots
        self._device, self._lead = device, 1
        self._layers = [_Layer(module, shapes, width, slots, device, self) for module, shapes in found.items()]

    def attach(self) -> None:
        """Run the model's recurrent layers over paths."""
        for layer in self._layers:
            layer.attach()

    def detach(self) -> None:
        """Give the model its own layers back."""
        for layer in self._layers:
            layer.detach()

    @property
    def nbytes(self) -> int:
        """Total bytes of all states."""
        return sum(each.nbytes for layer in self._layers for each in layer.states.values())

    @property
    def sequence_bytes(self) -> int:
        """Bytes of the states of one slot."""
        return self.nbytes // len(self.fresh)

    def aim(self, layout: Layout, parents: Tensor, lead: int) -> None:
        """Set the rows of the next forward, which reads them on the host.

        ``parents``: int [N], row of each row's parent, its own for roots; ``lead``: leading rows that form a chain and
        are always committed, in a prefill; 1 otherwise.
        """
        slots = layout.slot[layout.real].tolist()
        self._lead, self.lead_slot = lead, slots[0]
        self.paths = _Paths.of(parents.tolist(), slots, lead, self._device)

    @torch.inference_mode()
    def commit(self, paths: Mapping[int, Sequence[int]], first: Mapping[int, int]) -> None:
        """Keep the states after accepted rows.

        ``paths``: rows of each slot's tree, its root first; ``first``: row of each root in the forward's trees.
        """
        assert self.paths is not None
        before = self._lead - 1  # rows of a prompt before the tree
        of_forward = {slot: [before + first[slot] + row for row in rows] for slot, rows in paths.items()}
        if before:  # the root is committed already
            of_forward = {slot: rows[1:] for slot, rows in of_forward.items()}
        for layer in self._layers:
            layer.commit(of_forward, self.paths.ends)
        for slot in paths:
            self.fresh[slot] = False
        self.paths = None

    def clear(self, slot: int) -> None:
        """Set a slot's states to those before a text."""
        self.fresh[slot] = True
        for layer in self._layers:
            for each in layer.states.values():
                each[slot] = 0

    def __len__(self) -> int:
        return len(self._layers)

    def finite(self, slot: int) -> bool:
        """Whether a slot's states are finite."""
        return all(bool(each[slot].isfinite().all()) for layer in self._layers for each in layer.states.values())
