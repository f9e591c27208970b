"""Choose the attention backend of a step: the requested one, or the fastest that this device and model support."""

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
_SHORT = 16  # rows × query heads per KV head of a short tile: one matrix instruction has 16 rows
_PINNED_SPLITS = 16  # splits of each cache if neither the number of sequences nor the device may decide


class Steps(NamedTuple):
    """Steps for which graphs are captured: row counts of a tree from ``fewest`` to ``widest``, up to ``sequences``."""

    attention: str
    tall: bool
    fewest: int
    widest: int
    sequences: int


class Attentions:
    """Attention backends of an engine: one for chains and one for trees, since FlashAttention does not support trees.

    Args:
        asked: one of :data:`NAMES`. The FlashAttention backends serve chains; the best other backend serves trees.
        pinned: the order of sums depends neither on a measured time nor on the size of the device or of the run.
    """

    def __init__(self, asked: str, model: Any, *, pinned: bool = False) -> None:
        if asked not in NAMES:
            raise unknown_name("attention backend", asked, NAMES)
        self.asked, self._pinned = asked, pinned
        self._device: torch.device = model.device
        self.notes: list[str] = []
        self._rivals: list[str] = []  # candidates of "auto" for chains, until a step of each is timed
        self._seconds: dict[str, float] = {}
        self._group = 1  # query heads per KV head
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
        """Return why the Triton kernels cannot run a model, or an empty string."""
        if importlib.util.find_spec("triton") is None:
            return "needs triton, which is not installed"
        why = _unfit(model, "triton")
        if not why and (found := triton_fault(model.device)):
            why = f"cannot be used: {found}"
            self.notes.append(f"attention is 'reference', because {found}")
        return why

    def _serves(self, name: str, model: Any) -> bool:
        """Whether an installed FlashAttention is a candidate; if it fails, add a note with the reason."""
        if model.dtype not in _HALVES:
            return False
        if why := flash.flash_fault(name, model.device, model.dtype):
            self._drop(name, why)
        return not why

    def _drop(self, name: str, why: str) -> None:
        self.notes.append(f"{flash.VERSIONS[name].title} is not used: {why}")

    def fall_back(self, error: Exception) -> bool:
        """Use the reference backend from now on, after a forward with the kernels raised an error or was wrong.

        Returns False if there is nothing to fall back from, or if the model itself may be at fault.
        """
        if self.tree == "reference":
            return False
        why = reason(error)
        if self.asked == "triton":
            if isinstance(error, UnsupportedAttention) and error.__cause__ is None:
                return False  # the kernels ran, so the model may be at fault
            raise self._refused(f"cannot run this model here: {why}") from error
        self.tree = "reference"
        if self.asked == "auto":
            self.chain = self.asked = "reference"
        self._rivals, self._why = [], f"triton cannot be used: {why}"
        self.notes.append(f"attention is 'reference', because triton cannot run this model here ({why})")
        return True

    def check_shapes(
        self, shapes: dict[int, LayerShape], heads: Mapping[int, int] | None = None, *, plain: bool = True
    ) -> None:
        """Fall back if a head is larger than the kernels support; raise if that backend was requested by name.

        ``plain``: whether no layer has a soft cap, sinks or chunks, which FlashAttention does not support here.
        """
        if not plain:
            self._rivals = []
            if self.chain in flash.VERSIONS:
                raise self._refused("does not support the soft cap, sinks or chunks of this model's attention")
        # A layer that stores no keys reads those of another layer, which has the same number of heads.
        stored = {layer: count for layer, count in (heads or {}).items() if layer in shapes}
        self._group = max((count // shapes[layer][0] for layer, count in stored.items()), default=1)
        self._kv_heads = min((kv_heads for kv_heads, _, _ in shapes.values()), default=1)
        largest = max((max(key, value) for _, key, value in shapes.values()), default=1)
        if largest <= _LARGEST_HEAD or self.tree == self.chain == "reference":
            return
        if self.asked != "auto":
            raise EnvironmentRefused(
                f"attention '{self.asked}' supports head sizes up to {_LARGEST_HEAD}, but this model has {largest}; "
                "use --attention auto"
            )
        self.tree = self.chain = "reference"
        self._rivals, self._why = [], f"the head size {largest} is larger than the kernels support"

    def ops(self) -> Ops:
        """Return the step operations whose masks have the form that the backend of trees needs."""
        if self.tree == "reference":
            return TorchOps()
        from specbench.engine.kernels.ops import TritonOps

        return TritonOps(self._device)

    def of(self, trees: Collection[TokenTree]) -> tuple[str, bool]:
        """Return (backend, whether its tiles are tall) for a step over ``trees``."""
        most = max([len(tree.tokens) for tree in trees])
        # FlashAttention is called for a chain of one sequence, or for one row of each sequence.
        if self.chain != self.tree and (most == 1 or (len(trees) == 1 and all(tree.is_chain for tree in trees))):
            return self.chain, most > 1
        return self.tree, self.tall(most)

    def of_prompt(self, tree: TokenTree) -> str:
        """Return the backend for a prompt with ``tree`` under its last token.

        Torch's own attention contains the kernels of flash-attn 2, so only a later version is used instead.
        """
        later = self.chain in flash.VERSIONS and self.chain != "flash"
        return self.chain if later and tree.is_chain else "reference"

    def tall(self, rows: int) -> bool:
        """Whether a step whose largest tree has ``rows`` rows gets tall tiles."""
        return self.tree == "triton" and rows > self._short

    @property
    def _short(self) -> int:
        """Rows of a tree in a short tile."""
        return max(1, _SHORT // self._group)

    def steps(self, max_rows: int, slots: int) -> list[Steps]:
        """Kinds of steps that trees of up to ``max_rows`` rows in up to ``slots`` slots may need."""
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
        """Rows of a kernel's tile; 0 if ``attention`` does not use tiles."""
        if attention != "triton":
            return 0
        from specbench.engine.kernels.tree_attention import tile_height

        return tile_height(rows, self._group, tall, self._device, self._kv_heads)

    def choose(self, seconds: Callable[[str], float]) -> None:
        """Let measured time decide if more than one backend supports chains.

        A candidate that raises an error is dropped; one that is chosen is faster by more than timing noise. ``seconds``
        checks the backend with the given name and returns the time of a one-row step with it.
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
        """Use the backend for chains that an earlier engine found fastest, if it is available here."""
        if chain in (self.tree, *self._rivals):
            self.chain, self._rivals, self._why = chain, [], "as when the run began"

    def backend(self, name: str, tall: bool = True) -> Callable[[Visibility], Backend]:
        """Return a factory for the attention of a forward; ``tall`` as returned by :meth:`of`."""
        if name == "triton":
            from specbench.engine.attention.backends import TritonAttention

            return partial(TritonAttention, splits=_PINNED_SPLITS if self._pinned else None)
        if name in flash.VERSIONS:
            return partial(flash.FlashAttention, one_row_each=not tall, name=name)
        return ReferenceAttention

    def report(self) -> dict[str, Any]:
        """The choice and its reason, for the summary of a run."""
        both = self.chain if self.chain == self.tree else f"{self.chain} for chains, {self.tree} for trees"
        return {"attention": both, "why": self._why, "one_row_s": self._seconds or None}


def _unfit(model: Any, kernels: str) -> str:
    """Return why a model's device or dtype rules kernels out, or an empty string, without running anything."""
    if model.device.type != "cuda" and not (kernels == "triton" and interpreted()):
        return "needs a CUDA device"
    if model.dtype not in (_HALVES if kernels != "triton" else (*_HALVES, torch.float32)):
        return f"does not support {str(model.dtype).removeprefix('torch.')}"
    return ""


def _no_flash(name: str, model: Any) -> str:
    """Return why a version of FlashAttention cannot run a model, or an empty string."""
    if not flash.installed(name):
        return f"needs {flash.VERSIONS[name].title}, which is not installed"
    if why := _unfit(model, name):
        return why
    return f"cannot be used: {why}" if (why := flash.flash_fault(name, model.device, model.dtype)) else ""
