"""Which attention backend a step gets: what was asked for, or what this device and model can have and is fastest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from specbench.common import EnvironmentRefused
from specbench.common.errors import unknown
from specbench.decoding import TokenTree
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Backend, Visibility
from specbench.engine.cache import LayerShape
from specbench.engine.ops import Ops, TorchOps

NAMES = ("auto", "reference", "triton", "flash")
_HALVES = (torch.bfloat16, torch.float16)
_LARGEST_HEAD = 256
_SHORT = 16  # rows times query heads of a KV head: one matrix instruction is that high, and less would be padded
_PINNED_SPLITS = 16  # of each cache, where the number of sequences and the device shall not decide


class Steps(NamedTuple):
    """Steps that graphs are captured for.

    Attributes:
        attention: name of the backend.
        tall: whether its tiles hold many rows of a sequence.
        fewest, widest: rows of a sequence.
        sequences: how many at most.
    """

    attention: str
    tall: bool
    fewest: int
    widest: int
    sequences: int


class Attentions:
    """The backends of an engine: one for chains, one for trees. ``flash`` knows no trees, so they may differ.

    Args:
        asked: one of :data:`NAMES`. "flash" is flash-attn for chains and the best other for trees.
        model: whose device and dtype decide what can be had.
        pinned: let neither a measured time nor the size of the device or of the run decide how sums are ordered.

    Raises:
        UsageError: no such backend.
        EnvironmentRefused: one that this device, this dtype or these packages do not have.
    """

    def __init__(self, asked: str, model: Any, *, pinned: bool = False) -> None:
        if asked not in NAMES:
            raise unknown("attention backend", asked, NAMES)
        self._asked, self._pinned = asked, pinned
        self._device: torch.device = model.device
        reasons = {"triton": _no_triton(model), "flash": _no_flash(model)}
        if reasons.get(asked):
            raise EnvironmentRefused(f"attention '{asked}' {reasons[asked]}; use --attention auto")
        wanted = asked in ("triton", "flash") or (asked == "auto" and model.device.type == "cuda")
        kernels = wanted and reasons["triton"] is None
        self.tree = "triton" if kernels else "reference"
        self.chain = "flash" if asked == "flash" else self.tree
        # What auto chooses between for chains, once a step of each can be timed.
        self._rivals = ["flash"] if asked == "auto" and kernels and reasons["flash"] is None else []
        self._why = f"triton {reasons['triton']}" if asked == "auto" and reasons["triton"] else ""
        self._seconds: dict[str, float] = {}
        self._group = 1  # query heads of a KV head
        self._kv_heads = 1

    def check_shapes(self, shapes: dict[int, LayerShape], heads: Mapping[int, int] | None = None) -> None:
        """Falls back where a head is larger than the kernels take.

        Args:
            shapes: what each layer stores.
            heads: its query heads.

        Raises:
            EnvironmentRefused: such a backend was asked for by name.
        """
        # A layer that attends and stores nothing reads what another one has stored, whose heads are as many.
        stored = {layer: count for layer, count in (heads or {}).items() if layer in shapes}
        self._group = max((count // shapes[layer][0] for layer, count in stored.items()), default=1)
        self._kv_heads = min(kv_heads for kv_heads, _, _ in shapes.values())
        largest = max(max(key, value) for _, key, value in shapes.values())
        if largest <= _LARGEST_HEAD or self.tree == self.chain == "reference":
            return
        if self._asked != "auto":
            raise EnvironmentRefused(
                f"attention '{self._asked}' takes heads of up to {_LARGEST_HEAD}, this model's have {largest}; "
                "use --attention auto"
            )
        self.tree = self.chain = "reference"
        self._rivals, self._why = [], f"heads of {largest} are larger than the kernels take"

    def ops(self) -> Ops:
        """The device work that goes with the backend of trees; its masks have that form."""
        if self.tree == "reference":
            return TorchOps()
        from specbench.engine.kernels.ops import TritonOps

        return TritonOps(self._device)

    def of(self, trees: Collection[TokenTree]) -> tuple[str, bool]:
        """(the backend, whether its tiles are tall) for a step over ``trees``."""
        most = max([len(tree.tokens) for tree in trees])
        # flash-attn's kernel takes one sequence of any length, or one row of each, which is a chain.
        if self.chain != self.tree and (most == 1 or (len(trees) == 1 and all(tree.is_chain for tree in trees))):
            return self.chain, most > 1
        return self.tree, self.tall(most)

    def tall(self, rows: int) -> bool:
        """Whether a step whose largest tree has so many rows gets tall tiles."""
        return self.tree == "triton" and rows > self._short

    @property
    def _short(self) -> int:
        """Rows of a tree that a short tile takes."""
        return max(1, _SHORT // self._group)

    def steps(self, max_rows: int, slots: int) -> list[Steps]:
        """The kinds of steps that trees of up to ``max_rows`` rows in up to so many slots may get."""
        if self.tree != "triton":
            return [Steps(self.tree, False, 1, max_rows, slots)]
        chains = self.chain == "flash"
        found = [Steps("flash", False, 1, 1, slots)] if chains else []
        if chains and max_rows == 1:
            return found
        if chains:
            found.append(Steps("flash", True, 2, max_rows, 1))
        found.append(Steps("triton", False, 1, min(max_rows, self._short), slots))
        if max_rows > self._short:
            found.append(Steps("triton", True, self._short + 1, max_rows, slots))
        return found

    def height(self, rows: int, attention: str, tall: bool) -> int:
        """Rows of a tile of the kernels; 0 where ``attention`` has none."""
        if attention != "triton":
            return 0
        from specbench.engine.kernels.tree_attention import tile_height

        return tile_height(rows, self._group, tall, self._device, self._kv_heads)

    def settle(self, seconds: Callable[[str], float]) -> None:
        """Lets measured time decide where more than one backend serves chains.

        Args:
            seconds: time of a one-row step with the backend of that name.
        """
        if not self._rivals or self._pinned:
            return
        self._seconds = {name: seconds(name) for name in (self.tree, *self._rivals)}
        self.chain = min(self._seconds, key=lambda name: self._seconds[name])
        others = [f"{self._seconds[name] / self._seconds[self.chain]:.2f} × {name}" for name in self._seconds]
        self._why = f"a one-row step takes {', '.join(others)}"
        self._rivals = []

    def keep(self, chain: str) -> None:
        """Takes the backend for chains that an earlier engine measured to be the fastest, where it can be had here."""
        if chain in (self.tree, *self._rivals):
            self.chain, self._rivals, self._why = chain, [], "as when the run began"

    def backend(self, name: str, tall: bool = True) -> Callable[[Visibility], Backend]:
        """What makes the attention of a forward; ``tall`` as :meth:`of` has it."""
        if name == "triton":
            from specbench.engine.attention.backends import TritonAttention

            return partial(TritonAttention, splits=_PINNED_SPLITS if self._pinned else None)
        if name == "flash":
            from specbench.engine.attention.backends import FlashAttention

            return partial(FlashAttention, one_row_each=not tall)
        return ReferenceAttention

    def report(self) -> dict[str, Any]:
        """What was chosen, for the records."""
        both = self.chain if self.chain == self.tree else f"{self.chain} for chains, {self.tree} for trees"
        return {"attention": both, "why": self._why, "one_row_s": self._seconds or None}


def _no_triton(model: Any) -> str | None:
    """Why the Triton kernels cannot serve a model; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "needs triton, which is not installed"
    if model.device.type != "cuda" and not _interpreted():
        return "needs a CUDA device"
    if model.dtype not in (*_HALVES, torch.float32):
        return f"has no {str(model.dtype).removeprefix('torch.')}"
    return None


def _interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter: the tests do, on a machine without a GPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _no_flash(model: Any) -> str | None:
    if importlib.util.find_spec("flash_attn") is None:
        return "needs flash-attn, which is not installed"
    if model.device.type != "cuda":
        return "needs a CUDA device"
    if model.dtype not in _HALVES:
        return f"has no {str(model.dtype).removeprefix('torch.')}"
    return None
