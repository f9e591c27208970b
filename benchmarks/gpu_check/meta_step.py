"""Nodes: the kernels that a step launches, counted without a GPU.

The device is torch's "meta": tensors without memory, on which every operation says what it would launch. A node is a
call of torch whose result lies in memory of its own, or that writes to an argument, or a launch of a Triton kernel,
chosen as an H200 gets it. Some library calls launch several, by what torch's source has for CUDA: those are counted as
so many nodes, and of others (a product that is split, say) a count is a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specbench.engine.attention import interface
from specbench.engine.attention.backends import TritonAttention
from specbench.engine.cache import StaticCache
from specbench.engine.checks import declared
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layers.parts import Unlike
from specbench.engine.layers.rotary import HeldRotary
from specbench.engine.pack import Shape
from specbench.engine.program import Computed, Program, StepKind, decoder_layers

META = torch.device("meta")
# Shared bytes that a program may take, and multiprocessors: of an H200.
FIGURES = (227 * 1024, 132)
_MEMORY_ALONE = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view")
_OFF = ("dropout",)  # in evaluation
_NONE: Any = object()
#: Kernels of calls that are several: of torch's own top-k more where a row is long; a log-sum-exp is a maximum, two
#: masks against infinities, a difference, exponentials, their sum, its logarithm and a sum.
_LOGSUMEXP, _TOPK, _LONG_TOPK, _LONG_ROW, _SORT = 7, 2, 5, 4096, 5


class Node(NamedTuple):
    """A kernel of a step; ``layer`` counts from 0, None is before the first or after the last."""

    name: str
    layer: int | None


class Nodes(TorchDispatchMode):
    """Counts what runs inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Node] = []
        self.layer: int | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in (*_MEMORY_ALONE, *_OFF) and (_writes(func) or _memory(found) - _memory((args, kwargs))):
            for _ in range(_kernels(name, args)):
                self.add(name)
        return found

    def add(self, name: str) -> None:
        """Notes a node."""
        self.seen.append(Node(name, self.layer))

    def of_layers(self) -> list[list[str]]:
        """Names, layer by layer."""
        layers = sorted({node.layer for node in self.seen if node.layer is not None})
        return [[node.name for node in self.seen if node.layer == layer] for layer in layers]

    def others(self) -> list[str]:
        """Names of what belongs to no layer."""
        return [node.name for node in self.seen if node.layer is None]


def _kernels(name: str, args: Sequence[Any]) -> int:
    """How many kernels a call launches, as far as that is known."""
    if name == "topk":
        return _LONG_TOPK if args[0].shape[-1] > _LONG_ROW else _TOPK
    return {"logsumexp": _LOGSUMEXP, "sort": _SORT}.get(name, 1)


def _writes(func: Any) -> bool:
    """Whether an operation changes an argument."""
    return any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)


def _memory(tree: Any) -> set[int]:
    """Where its tensors lie: a view is where what it views is, and so is a copy that was none."""
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


@contextmanager
def launches(note: Callable[[Any, Sequence[Any], dict[str, Any]], None]) -> Iterator[None]:
    """Kernels are told to ``note`` (kernel, arguments, named arguments) in place of a launch; the device is an H200."""
    from triton.runtime.jit import KernelInterface  # triton is not everywhere

    from specbench.engine.kernels import tree_attention

    def launch(kernel: Any, grid: Any) -> Any:
        return lambda *args, **named: note(kernel, args, named)

    properties = type("Properties", (), {"multi_processor_count": FIGURES[1]})
    with ExitStack() as stack:
        for kind in (KernelInterface, *KernelInterface.__subclasses__()):
            stack.enter_context(_instead(kind, "__getitem__", launch))
        stack.enter_context(_instead(tree_attention, "_figures", lambda device: FIGURES))
        stack.enter_context(_instead(torch.cuda, "get_device_properties", lambda device: properties))
        yield


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a module, a class or an object is another one inside; behind it, what it was or inherited."""
    own = vars(owner).get(name, _NONE)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _NONE:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


class MetaStep:
    """A captured step of a model on the meta device, by Triton attention.

    ``reach``: positions that a forward may use; what an engine would refuse for them is refused. ``fusions`` and
    ``not_fused`` say what is fused as far as modules tell: nothing is computed here that could come out wrong.
    """

    def __init__(
        self,
        model: Any,
        ops: Any = None,
        *,
        slots: int = 1,
        capacity: int = 1024,
        fused: bool = True,
        reach: int | None = None,
    ) -> None:
        from specbench.engine.kernels.ops import TritonOps  # triton is not everywhere

        if reach is not None:
            declared.check_declared(model, reach)
        model.set_attn_implementation(interface.NAME)
        self.model = model
        self._layers = decoder_layers(model)
        HeldRotary(model).attach()
        self._program = Program(model, ops or TritonOps(META))
        with nullcontext() if reach is None else declared.refusing(), launches(lambda *_: None):
            shapes, self.calls = declared.learn_layers(self._program, TritonAttention, META, height=1)
        if reach is not None:
            declared.check_windows(model, self.calls.windows, reach)
        self._kv_heads = min(kv_heads for kv_heads, _, _ in shapes.values())
        self._group = max(count // shapes[layer][0] for layer, count in self.calls.heads.items() if layer in shapes)
        self.cache = StaticCache(shapes, slots, capacity, model.dtype, META)
        self._slots = slots
        self.fusions: tuple[str, ...] = ()
        self.not_fused: dict[str, str] = {}
        self.why_not_fused = "" if fused else "not asked for"
        if fused:
            try:
                layers = FusedLayers(model, self.cache, self.calls)
            except Unlike as unlike:
                self.why_not_fused = f"{unlike}"
            else:
                layers.attach()
                said = layers.report()
                self.fusions, self.not_fused = tuple(said["fusions"]), dict(said["not_fused"])

    def tall(self, widest: int) -> bool:
        """Whether an engine gives a step tall tiles of attention, its largest tree having so many rows."""
        from specbench.engine.kernels.tree_attention import tile_height  # triton is not everywhere

        with launches(lambda *_: None):
            return widest > tile_height(widest, self._group, False, META, self._kv_heads)

    def run(self, rows: int, kind: StepKind) -> Computed:
        """A step of so many rows, within :func:`launches`; nothing is computed."""
        from specbench.engine.kernels.tree_attention import tile_height  # triton is not everywhere

        height = tile_height(rows, self._group, kind.tall, META, self._kv_heads)
        shape = Shape(rows, self._slots, height)
        return self._program.run(_packed(shape), shape, kind, self.cache, TritonAttention)

    def nodes(self, rows: int, kind: StepKind, *, again: bool = False) -> Nodes:
        """What a step of so many rows launches, when it has run before: what is allocated once is there by then.

        ``again``: a step of this object has been counted already, so that none need run before.
        """
        if not again:
            with launches(lambda *_: None):
                self.run(rows, kind)
        found = Nodes()
        with ExitStack() as stack:
            for at, layer in enumerate(self._layers):
                # Not a hook behind it: layers that somebody listens to do more.
                stack.enter_context(_instead(layer, "forward", _within(found, at, layer.forward)))
            stack.enter_context(launches(lambda kernel, *_: found.add(kernel.__name__)))
            stack.enter_context(found)
            self.run(rows, kind)
        return found


def _within(nodes: Nodes, at: int, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **given: Any) -> Any:
        nodes.layer = at
        try:
            return forward(*args, **given)
        finally:
            nodes.layer = None

    return run


def _packed(shape: Shape) -> Tensor:
    return torch.zeros(shape.width_in, dtype=torch.int32, device=META)
