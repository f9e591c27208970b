"""Random weights whose rounding errors grow with depth as slowly as those of trained weights.

With the usual initialisation, rounding errors in half precision grow to several per cent of the scores, and two correct
orders of the same sums disagree on every tenth token. In trained models a few large early components dominate the
residual stream; here the embedding does.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: Size of the dominant component relative to the layers' outputs: small enough that tokens depend on the text before.
_SHARE = 4.0
_CARRIED = 64.0  # factor on the first layer's last module with tied embeddings, where it makes the dominant component
_TOKENS = 16
_LEAST = 1 / 64  # smallest factor of a norm whose weights are stored minus 1: half precision is no finer near 1


class _Sizes(NamedTuple):
    """Root mean squares in a forward: of embedded tokens, and of each layer's addition to the residual stream."""

    embedded: float
    added: list[float]


@torch.no_grad()
def steady(model: Any) -> None:
    """Scale the embedding of a model with random weights, so that rounding errors stay small; scores keep their size.

    Norms make the layers' outputs independent of the size of their input, so one factor on the embedding is enough. An
    LM head that shares the embedding's weights would predict every token to repeat: for such models the last module of
    the first layer is scaled as well, and the norm before the LM head gets random signs.

    Args:
        model: a transformers causal LM on its device; a model with an unknown layer structure is not changed.
    """
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head.weight is words.weight
    sizes = _measure(model)
    norm = _last_norm(model, head.weight.shape[1])
    if sizes is None or (tied and norm is None):
        return
    if not tied:
        # The layers' outputs have random directions, so their squared sizes add up.
        words.weight.mul_(_SHARE * math.hypot(*sizes.added) / sizes.embedded)
        return
    product = _last_product(model)
    if product is None:
        return
    factor = _SHARE * sizes.added[0] / sizes.embedded
    words.weight.mul_(factor)
    _scale(product, _CARRIED)
    coins = torch.randint(0, 2, norm.weight.shape, generator=torch.Generator().manual_seed(0))
    _scale(norm, (2 * coins - 1).to(norm.weight.device) * max(1 / factor, _LEAST if _is_distance(norm) else 0.0))


def _scale(module: Any, factor: Any) -> None:
    """Multiply the output of a linear layer or a norm by a factor."""
    if _is_distance(module):
        module.weight.copy_(factor * (1 + module.weight.float()) - 1)
    else:
        module.weight.mul_(factor)


def _is_distance(module: Any) -> bool:
    """Return whether a module is a norm that stores its factors minus 1."""
    return module.weight.dim() == 1 and bool(module.weight.float().mean() < 0.5)


def _measure(model: Any) -> _Sizes | None:
    """Measure a model's sizes in a forward; None if its layers are not found or are not residual."""
    sizes = _Sizes(0.0, [])

    def keep(_: nn.Module, args: Any, named: dict[str, Any], output: Any) -> None:
        nonlocal sizes
        before, after = args[0] if args else named["hidden_states"], _first(output)
        sizes = _Sizes(sizes.embedded or _size(before), [*sizes.added, _size(after - before)])

    ran = _run(model, [(layer, keep) for layer in _layers(model)])
    found = (sizes.embedded, *sizes.added)
    return sizes if ran and sizes.added and all(math.isfinite(size) and size > 0 for size in found) else None


def _last_product(model: Any) -> Any:
    """Return the module that computes the last addition of the first layer, or None if it is not found."""
    called: list[Any] = []

    def keep(module: nn.Module, _: Any, __: Any, output: Any) -> None:
        weighs = isinstance(getattr(module, "weight", None), Tensor)
        if weighs and isinstance(output, Tensor) and output.shape[-1] == hidden:
            called.append(module)

    hidden = model.get_output_embeddings().weight.shape[1]
    leaves = [m for m in _layers(model)[0].modules() if not [*m.children()]]
    if not _run(model, [(leaf, keep) for leaf in leaves]) or not called:
        return None
    norm_is_last = called[-1].weight.dim() == 1
    return called[-1] if norm_is_last else next((m for m in reversed(called) if m.weight.dim() == 2), None)


def _run(model: Any, hooks: list[tuple[nn.Module, Any]]) -> bool:
    """Run a forward over a few tokens with these hooks and return whether it succeeded."""
    words, training = model.get_input_embeddings().weight, model.training
    ids = torch.arange(_TOKENS, dtype=torch.int64, device=words.device)[None] * 37 % len(words)
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module, hook in hooks]
    try:
        model.eval()(input_ids=ids, use_cache=False)
    except Exception:  # a model that cannot run raises its error later, where it is used
        return False
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return True


def _layers(model: Any) -> list[nn.Module]:
    count = model.config.get_text_config().num_hidden_layers
    return [each for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count for each in m]


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _size(rows: Tensor) -> float:
    return float(rows.float().square().mean().sqrt())


def _last_norm(model: nn.Module, size: int) -> Any:
    """Return the norm before the LM head: the last module outside the layers whose weight has shape ``[size]``."""
    inside = {m for modules in model.modules() if isinstance(modules, nn.ModuleList) for m in modules.modules()}
    outside: list[Any] = [m for m in model.modules() if m not in inside and hasattr(m, "weight")]
    return next((m for m in reversed(outside) if getattr(m.weight, "shape", None) == (size,)), None)
