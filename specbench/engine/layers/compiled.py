"""Run decoder layers through torch.compile, with the engine's cache and attention as a single call in each.

Layers are compiled, not the model: all layers then share the compiled code, which takes only seconds. The cache and the
attention are Python, so they are one opaque operation in a layer's graph. Therefore a layer must do nothing between
passing keys and values to the cache and calling its attention.

The compiler's own CUDA graphs are off: the engine captures graphs of the whole forward.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.attention.interface import Backend, LayerAttention, Sight, UnsupportedAttention, chunk_of
from specbench.engine.cache import StaticCache
from specbench.engine.program import decoder_layers

# Most compiled variants of a layer's code, over all kinds of layers; after that torch runs the layers uncompiled.
_VARIANTS = 32
# Elements of work per additional thread; faster than 32768 at 64 rows. The default of 512 splits a single row's work.
_CPU_CHUNK = 4096


class Fused:
    """Switch a model's decoder layers between their own and compiled code."""

    def __init__(self, model: Any, enabled: bool) -> None:
        self._layers = decoder_layers(model) if enabled else []
        self._options: dict[str, Any] = (
            {"cpp.min_chunk_size": _CPU_CHUNK} if self._layers and model.device.type == "cpu" else {}
        )
        self._compiled: dict[type, Any] = {}
        self._restore: list[Any] = []

    def attach(self) -> None:
        """Run compiled layers from now on; each kind is compiled when it is first called."""
        if not self._layers or self._restore:
            return
        import torch._dynamo as dynamo  # takes seconds, so import it only when compiling

        # Without allow_unspec_int_on_nn_module, each layer would be compiled separately with its index as a constant.
        config = dynamo.config.patch(allow_unspec_int_on_nn_module=True, recompile_limit=_VARIANTS)
        config.__enter__()
        self._restore.append(config)
        for layer in self._layers:
            kind = type(layer)
            if kind not in self._compiled:
                self._compiled[kind] = torch.compile(kind.forward, options=self._options)
            layer.__dict__["forward"] = MethodType(_Forward(self._compiled[kind]), layer)
            for part in layer.modules():  # read by its index while compiling, it would compile each layer apart
                part.__dict__["specbench_chunk"] = chunk_of(part)

    def detach(self) -> None:
        """Give the layers their own forward back."""
        for layer in self._layers:
            layer.__dict__.pop("forward", None)
            for part in layer.modules():
                part.__dict__.pop("specbench_chunk", None)
        while self._restore:
            self._restore.pop().__exit__(None, None, None)


class _Serving:
    """Cache and attention of the current forward, for the opaque operation."""

    cache: Any = None
    step: Backend | None = None


class _Forward:
    """Forward of a decoder layer: compiled in a step of the engine, else the layer's own."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._deferred = _Deferred()

    def __call__(self, layer: nn.Module, *args: Any, step: Backend | None = None, calls: Any = None, **kw: Any) -> Any:
        cache = next((a for a in (*args, *kw.values()) if isinstance(a, StaticCache)), None)
        if cache is None or calls is not None:  # transformers' own loop, or a check that records the layers' calls
            return type(layer).forward(layer, *args, step=step, calls=calls, **kw)
        _Serving.cache, _Serving.step = cache, step
        deferred = self._deferred
        args = tuple(deferred if a is cache else a for a in args)
        kw = {name: deferred if a is cache else a for name, a in kw.items()}
        return self._compiled(layer, *args, step=deferred, **kw)


class _Deferred:
    """Stand-in for both cache and attention while a layer is traced: storing is delayed until attention is called."""

    def __init__(self) -> None:
        self.stored: tuple[Tensor, Tensor, int] | None = None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.stored = (key, value, layer_idx)
        return key, value

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        stored, self.stored = self.stored, None
        if stored is None or stored[0] is not key or stored[1] is not value:
            raise UnsupportedAttention(
                "cannot compile this model's layers: they change keys or values after storing them; leave --compile out"
            )
        result: Tensor = torch.ops.specbench.attend(
            query, key, value, stored[2], how.scale, *how.sight, how.softcap, how.sinks
        )
        return result


torch.library.define(
    "specbench::attend",
    "(Tensor query, Tensor key, Tensor value, SymInt layer, float? scale, SymInt? window, SymInt? chunk, "
    "float? softcap, Tensor? sinks) -> Tensor",
)


@torch.library.impl("specbench::attend", "CompositeExplicitAutograd")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: int,
    scale: float | None,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    assert _Serving.step is not None
    keys, values = _Serving.cache.update(key, value, layer)
    return _Serving.step(query, keys, values, LayerAttention(scale, Sight(window, chunk), softcap, sinks)).contiguous()


@torch.library.register_fake("specbench::attend")
def _(query: Tensor, key: Tensor, value: Tensor, *_given: Any) -> Tensor:
    slots, heads, rows, _ = query.shape
    return query.new_empty(slots, rows, heads, value.shape[3])
