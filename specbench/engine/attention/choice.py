"""Which attention backend a step gets: what was asked for, or what this device and model can have and is fastest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from specbench.common import EnvironmentRefused, unknown_name
from specbench.decoding import TokenTree
from specbench.engine.attention import flash
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Backend, UnsupportedAttention, Visibility
from specbench.engine.cache import LayerShape
from specbench.engine.fast_paths import WORTH, fault, interpreted, reason, triton_fault
from specbench.engine.ops import Ops, TorchOps

NAMES = ("auto", "reference", "triton", *flash.VERSIONS)
_HALVES = (torch.bfloat16, torch.float16)
_LARGEST_HEAD = 256
_SHORT = 16  # rows times query heads of a KV head: one matrix instruction is that high, and less would be padded
_PINNED_SPLITS = 16  # of each cache, where the number of sequences and the device shall not decide


class Steps(NamedTuple):
    """Steps that graphs are captured for."""

    attention: str
    tall: bool
    fewest: int
    widest: int
    sequences: int


class Attentions:
    """The backends of an engine: one for chains, one for trees. FlashAttention knows no trees, so they may differ.

    Args:
        asked: one of :data:`NAMES`. "flash" and its like serve chains, and the best other backend serves trees.
        pinned: let neither a measured time nor the size of the device or of the run decide how sums are ordered.
    """

    def __init__(self, asked: str, model: Any, *, pinned: bool = False) -> None:
        if asked not in NAMES:
            raise unknown_name("attention backend", asked, NAMES)
        self.asked, self._pinned = asked, pinned
        self._device: torch.device = model.device
        self.notes: list[str] = []
        self._rivals: list[str] = []  # what auto chooses between for chains, once a step of each can be timed
        self._seconds: dict[str, float] = {}
        self._group = 1  # query heads of a KV head
        self._kv_heads = 1
        if asked in flash.VERSIONS and (why := _no_flash(asked, model)):
            raise self._refused(why)
        why = "" if asked == "reference" else self._no_triton(model)
        if asked == "triton" and why:
            raise self._refused(why)
        on_gpu = model.device.type == "cuda"
        kernels = not why and (asked != "auto" or on_gpu) and asked != "reference"
        self.tree = "triton" if kernels else "reference"
        self.chain = asked if asked in flash.VERSIONS else self.tree
        self._why = f"triton {why}" if asked == "auto" and why else ""
        if asked == "auto" and kernels and not pinned:
            self._rivals = [name for name in flash.VERSIONS if flash.installed(name) and self._serves(name, model)]

    def _refused(self, why: str) -> EnvironmentRefused:
        return EnvironmentRefused(f"attention '{self.asked}' {why}; use --attention auto")

    def _no_triton(self, model: Any) -> str:
        """Why the Triton kernels cannot serve a model; empty where they can."""
        if importlib.util.find_spec("triton") is None:
            return "needs triton, which is not installed"
        why = _unfit(model, "triton")
        if not why and (found := triton_fault(model.device)):
            why = f"cannot be used: {found}"
            self.notes.append(f"attention is 'reference', because {found}")
        return why

    def _serves(self, name: str, model: Any) -> bool:
        """Whether an installed FlashAttention can be a rival; what keeps it from that is noted."""
        if model.dtype not in _HALVES:
            return False
        if why := flash.flash_fault(name, model.device, model.dtype):
            self._drop(name, why)
        return not why

    def _drop(self, name: str, why: str) -> None:
        self.notes.append(f"{flash.VERSIONS[name].title} is left out: {why}")

    def fall_back(self, error: Exception) -> bool:
        """Takes the oracle for trees from now on; for when a forward with the kernels has raised, or came out wrong."""
        if self.tree == "reference":
            return False
        why = reason(error)
        if self.asked == "triton":
            if isinstance(error, UnsupportedAttention) and error.__cause__ is None:
                return False  # it ran, and what it says may be the model's fault
            raise self._refused(f"cannot run this model here: {why}") from error
        self.tree = "reference"
        if self.asked == "auto":
            self.chain = self.asked = "reference"
        self._rivals, self._why = [], f"triton cannot be used: {why}"
        self.notes.append(f"attention is 'reference', because triton cannot run this model here ({why})")
        return True

    def check_shapes(self, shapes: dict[int, LayerShape], heads: Mapping[int, int] | None = None) -> None:
        """Fall back where a head is larger than the kernels take; refuse if that backend was asked for by name."""
        # A layer that attends and stores nothing reads what another one has stored, whose heads are as many.
        stored = {layer: count for layer, count in (heads or {}).items() if layer in shapes}
        self._group = max((count // shapes[layer][0] for layer, count in stored.items()), default=1)
        self._kv_heads = min((kv_heads for kv_heads, _, _ in shapes.values()), default=1)
        largest = max((max(key, value) for _, key, value in shapes.values()), default=1)
        if largest <= _LARGEST_HEAD or self.tree == self.chain == "reference":
            return
        if self.asked != "auto":
            raise EnvironmentRefused(
                f"attention '{self.asked}' takes heads of up to {_LARGEST_HEAD}, this model's have {largest}; "
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

    def of_prompt(self, tree: TokenTree) -> str:
        """The backend for a prompt with ``tree`` under its end.

        Torch's own attention has the kernels of flash-attn 2 in it, so that only a later one is worth a change.
        """
        later = self.chain in flash.VERSIONS and self.chain != "flash"
        return self.chain if later and tree.is_chain else "reference"

    def tall(self, rows: int) -> bool:
        """Whether a step whose largest tree has so many rows gets tall tiles."""
        return self.tree == "triton" and rows > self._short

    @property
    def _short(self) -> int:
        """Rows of a tree that a short tile takes."""
        return max(1, _SHORT // self._group)

    def steps(self, max_rows: int, slots: int) -> list[Steps]:
        """The kinds of steps that trees of up to ``max_rows`` rows in up to so many slots may get."""
        chains = self.chain != self.tree
        found = [Steps(self.chain, False, 1, 1, slots)] if chains else []
        if chains and max_rows == 1:
            return found
        if chains:
            found.append(Steps(self.chain, True, 2, max_rows, 1))
        if self.tree != "triton":
            return [*found, Steps(self.tree, False, 1, max_rows, slots)]
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

    def choose(self, seconds: Callable[[str], float]) -> None:
        """Lets measured time decide where more than one backend serves chains.

        A rival that raises is left out; one that is taken is faster by more than timing noise. ``seconds`` checks the
        backend of that name and returns the time of a one-row step with it.
        """
        if not self._rivals or self._pinned:
            return
        taken = {self.tree: seconds(self.tree)}
        for name in self._rivals:
            if why := fault(lambda name=name: taken.__setitem__(name, seconds(name))):  # type: ignore[misc]
                self._drop(name, why)
        self._seconds, self._rivals = taken, []
        for name in taken:
            if WORTH * taken[name] < taken[self.chain]:
                self.chain = name
        others = [f"{taken[name] / taken[self.chain]:.2f} × {name}" for name in taken]
        self._why = f"a one-row step takes {', '.join(others)}" if len(taken) > 1 else self._why

    def keep(self, chain: str) -> None:
        """Takes the backend for chains that an earlier engine measured to be the fastest, where it can be had here."""
        if chain in (self.tree, *self._rivals):
            self.chain, self._rivals, self._why = chain, [], "as when the run began"

    def backend(self, name: str, tall: bool = True) -> Callable[[Visibility], Backend]:
        """What makes the attention of a forward; ``tall`` as :meth:`of` has it."""
        if name == "triton":
            from specbench.engine.attention.backends import TritonAttention

            return partial(TritonAttention, splits=_PINNED_SPLITS if self._pinned else None)
        if name in flash.VERSIONS:
            return partial(flash.FlashAttention, one_row_each=not tall, name=name)
        return ReferenceAttention

    def report(self) -> dict[str, Any]:
        """What was chosen, for the records."""
        both = self.chain if self.chain == self.tree else f"{self.chain} for chains, {self.tree} for trees"
        return {"attention": both, "why": self._why, "one_row_s": self._seconds or None}


def _unfit(model: Any, kernels: str) -> str:
    """Why a model's device or dtype rules kernels out, before anything is tried."""
    if model.device.type != "cuda" and not (kernels == "triton" and interpreted()):
        return "needs a CUDA device"
    if model.dtype not in (_HALVES if kernels != "triton" else (*_HALVES, torch.float32)):
        return f"has no {str(model.dtype).removeprefix('torch.')}"
    return ""


def _no_flash(name: str, model: Any) -> str:
    """Why a version of FlashAttention cannot serve a model; empty where it can."""
    if not flash.installed(name):
        return f"needs {flash.VERSIONS[name].title}, which is not installed"
    if why := _unfit(model, name):
        return why
    return f"cannot be used: {why}" if (why := flash.flash_fault(name, model.device, model.dtype)) else ""
