"""Compare one decoder layer of each kind in float32 between the model's own attention and the engine's.

In half precision, the rounding of a deep model hides a slightly wrong attention, such as a scale that is off by one per
cent. In one float32 layer with the same inputs, such an error shows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specbench.decoding import TokenTree
from specbench.engine import memory, pack
from specbench.engine.attention import interface
from specbench.engine.attention.interface import Backend, Calls, UnsupportedAttention, Visibility
from specbench.engine.cache import LayerShape, StaticCache
from specbench.engine.checks.forward import BRANCHES, PARENTS, PREFIX, Detached, as_batch, probe_text
from specbench.engine.ops import TorchOps
from specbench.engine.program import decoder_layers

# The text and the branches of the forward check as one tree: a chain of PREFIX rows with the branches under it.
_PARENTS = (*range(-1, PREFIX - 1), *(PREFIX + parent for parent in PARENTS))
_BRANCHES = [[*range(PREFIX), *(PREFIX + row for row in branch)] for branch in BRANCHES]
# Relative error of a layer's change to its input, between two orders of the same sums in float32.
_TOLERANCE = 1e-4


def check_layers(
    model: Any,
    shapes: dict[int, LayerShape],
    calls: Calls,
    backend: Callable[[Visibility], Backend],
    detached: Detached,
) -> None:
    """Compare layers of a half-precision model; a layer that cannot run by itself is not checked here."""
    if model.dtype not in (torch.bfloat16, torch.float16):
        return  # the forward check is just as exact
    with detached(), torch.inference_mode(), _whole_float32():
        for layer, index, inputs in _inputs(model, shapes, calls):
            try:
                off = _difference(layer, index, inputs, shapes[index], backend)
            except UnsupportedAttention:
                raise
            except Exception as error:  # the layer needs something that its model does around it
                if memory.ran_out(error) and model.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            if off > _TOLERANCE:
                raise UnsupportedAttention(
                    f"the engine's attention differs from the model's own: layer {index} in float32 has a relative "
                    f"error of {off:.2g}"
                )


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Turn off TF32 and similar modes for float32 products, which the process may have turned on."""
    backends: Any = torch.backends
    settings = backends.cuda.matmul, backends.mkldnn.matmul
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, value in zip(settings, before, strict=True):
            each.fp32_precision = value


#: Arguments of a layer's forward by name.
_Inputs = dict[str, Any]


def _inputs(model: Any, shapes: Mapping[int, LayerShape], calls: Calls) -> list[tuple[nn.Module, int, _Inputs]]:
    """Find the first layer of each kind with a cache; return (layer, index, its inputs in the model's own forward)."""
    kinds: dict[Any, tuple[nn.Module, int]] = {}
    for layer in decoder_layers(model):
        index = next((at for m in layer.modules() if isinstance(at := getattr(m, "layer_idx", None), int)), None)
        if index in shapes and index in calls.heads:
            how = calls.layers[index]
            kind = type(layer), shapes[index], calls.heads[index], how.scale, how.sight, how.softcap, how.sinks is None
            kinds.setdefault(kind, (layer, index))
    found: dict[nn.Module, _Inputs] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        names = list(inspect.signature(module.forward).parameters)
        found[module] = {**dict(zip(names, args, strict=False)), **named}

    text = probe_text(model)
    rows = as_batch(text[:PREFIX], text[PREFIX:])
    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer, _ in kinds.values()]
    try:
        model(input_ids=torch.tensor(rows, device=model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [(layer, index, found[layer]) for layer, index in kinds.values() if layer in found]


def _difference(
    layer: nn.Module, index: int, inputs: _Inputs, shape: LayerShape, backend: Callable[[Visibility], Backend]
) -> float:
    """Largest relative error of a row."""
    wide = copy.deepcopy(layer).float()
    named = _wide(inputs)
    hidden = named["hidden_states"]
    own = _output(wide(**named))
    places = torch.tensor([(branch, at) for branch, rows in enumerate(_BRANCHES) for at in range(len(rows))])
    row = torch.tensor([each for rows in _BRANCHES for each in rows])
    of_row = torch.zeros(len(_PARENTS), 2, dtype=torch.int64)
    of_row[row.flip(0)] = places.flip(0)  # a row that is in both branches is read from the first one
    branch, at = of_row.T.to(hidden.device)

    def rows_of(value: Any) -> Any:
        """Select the tree's rows from a value per token of the batch."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(rows_of, value))
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if value.dim() == 1:
            return value[at] if len(value) == hidden.shape[1] else value
        if value.shape[1] != hidden.shape[1] or len(value) not in (1, len(hidden)):
            return value
        return value[branch if len(value) > 1 else torch.zeros_like(branch), at][None]

    cache = StaticCache({index: shape}, 1, len(_PARENTS) + 1, torch.float32, hidden.device)
    named = {name: rows_of(value) for name, value in named.items()}
    named |= {"attention_mask": None, "past_key_values": cache, "use_cache": True, "step": _aimed(cache, backend)}
    for module in wide.modules():
        config: Any = getattr(module, "config", None)  # a deep copy, so the model's own stays as it is
        if config is not None:
            config._attn_implementation = interface.NAME
    ours = _output(wide(**named))[0]
    expected, before = own[branch, at], hidden[branch, at]
    off = (ours - expected).flatten(1).norm(dim=-1) / (expected - before).flatten(1).norm(dim=-1).clamp_min(1e-30)
    return float(off.nan_to_num(torch.inf).max())


def _aimed(cache: StaticCache, backend: Callable[[Visibility], Backend]) -> Backend:
    """Aim an empty cache at the tree's rows, and return the attention of the tree."""
    batch, shape = pack.Batch.of({0: TokenTree([0] * len(_PARENTS), _PARENTS)}), pack.Shape(len(_PARENTS), 1)
    packed = np.empty(shape.width_in, dtype=np.int32)
    pack.fill(packed, shape, batch, [0], None)
    device = cache.buffers[0].device
    fields = pack.split(torch.from_numpy(packed).to(device), shape, batch.groups([0]))
    ancestry = TorchOps().ancestry(fields.parents, fields.layout)
    positions = fields.layout.of_rows(fields.lengths) + ancestry.depth
    cache.aim(fields.layout, fields.lengths, TorchOps(), positions, fields.parents)
    return backend(Visibility(fields.layout, fields.lengths, ancestry.depth, ancestry.rows))


def _wide(value: Any) -> Any:
    """Convert floating-point tensors to float32, also inside containers."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _wide(each) for name, each in value.items()}
    return type(value)(map(_wide, value)) if isinstance(value, (tuple, list)) else value


def _output(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
