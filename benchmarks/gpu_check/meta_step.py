"""Count the kernels (nodes) that a step launches, without a GPU.

The device is torch's "meta", whose tensors have no memory. A node is a call of torch that allocates its result or
writes to an argument, or a launch of a Triton kernel with the configuration for an H200. Some library calls launch
several kernels according to torch's CUDA source, and are counted as several nodes; for others (such as a split matrix
product) the count is a prediction.
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
# Bytes of shared memory per program, and number of multiprocessors, of an H200.
FIGURES = (227 * 1024, 132)
_MEMORY_ALONE = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view")
_OFF = ("dropout",)  # in evaluation mode
_NONE: Any = object()
#: Calls that launch several kernels: torch's top-k launches more for a long row; a log-sum-exp is a maximum, two masks
#: for infinities, a difference, exponentials, their sum, its logarithm and a sum.
_LOGSUMEXP, _TOPK, _LONG_TOPK, _LONG_ROW, _SORT = 7, 2, 5, 4096, 5


class Node(NamedTuple):
    """A kernel of a step; ``layer`` counts from 0 and is None before the first and after the last layer."""

    name: str
    layer: int | None


class Nodes(TorchDispatchMode):
    """Context that counts the nodes of the code inside it."""

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
        """Add a node."""
        self.seen.append(Node(name, self.layer))

    def of_layers(self) -> list[list[str]]:
        """Return the names of nodes, layer by layer."""
        layers = sorted({node.layer for node in self.seen if node.layer is not None})
        return [[node.name for node in self.seen if node.layer == layer] for layer in layers]

    def others(self) -> list[str]:
        """Return the names of nodes outside all layers."""
        return [node.name for node in self.seen if node.layer is None]


def _kernels(name: str, args: Sequence[Any]) -> int:
    """Number of kernels that a call launches, as far as known."""
    if name == "topk":
        return _LONG_TOPK if args[0].shape[-1] > _LONG_ROW else _TOPK
    return {"logsumexp": _LOGSUMEXP, "sort": _SORT}.get(name, 1)


def _writes(func: Any) -> bool:
    """Whether an operation writes to an argument."""
    return any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)


def _memory(tree: Any) -> set[int]:
    """Storages of all tensors in a tree: a view shares its base's storage, as does a copy that copied nothing."""
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


@contextmanager
def launches(note: Callable[[Any, Sequence[Any], dict[str, Any]], None]) -> Iterator[None]:
    """Call ``note`` (kernel, arguments, named arguments) instead of launching kernels; the device poses as an H200."""
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
    """Replace an attribute of a module, class or object inside the context and restore it afterwards."""
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

    ``reach``: positions that a forward may use; models that an engine would refuse for these positions are refused.
    ``fusions`` and ``not_fused`` follow from the modules alone: an engine also compares computed results.
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
            shapes, calls, recurrent = declared.learn_layers(self._program, TritonAttention, META, height=1)
        self.calls: interface.Calls = calls
        if recurrent:
            raise interface.UnsupportedAttention("this model has recurrent layers, whose steps cannot be captured")
        if reach is not None:
            declared.check_windows(model, self.calls, reach)
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
                report = layers.report()
                self.fusions, self.not_fused = tuple(report["fusions"]), dict(report["not_fused"])

    def tall(self, widest: int) -> bool:
        """Whether an engine uses tall attention tiles for a step whose largest tree has ``widest`` rows."""
        from specbench.engine.kernels.tree_attention import tile_height  # triton is not everywhere

        with launches(lambda *_: None):
            return widest > tile_height(widest, self._group, False, META, self._kv_heads)

    def run(self, rows: int, kind: StepKind) -> Computed:
        """Run a step of ``rows`` rows inside :func:`launches`; nothing is computed."""
        from specbench.engine.kernels.tree_attention import tile_height  # triton is not everywhere

        height = tile_height(rows, self._group, kind.tall, META, self._kv_heads)
        shape = Shape(rows, self._slots, height)
        return self._program.run(_packed(shape), shape, kind, self.cache, TritonAttention)

    def nodes(self, rows: int, kind: StepKind, *, again: bool = False) -> Nodes:
        """Count the kernels of a step of ``rows`` rows after a first step, which makes one-time allocations.

        ``again``: a step of this object has been counted before, so that no first step is needed.
        """
        if not again:
            with launches(lambda *_: None):
                self.run(rows, kind)
        found = Nodes()
        with ExitStack() as stack:
            for at, layer in enumerate(self._layers):
                # Not a forward hook, because layers with hooks launch more kernels.
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
