"""Load-time checks: what the engine does not express is refused with one sentence that names it, never silently wrong.

No model family is named here. Three questions are asked, from cheap to dear: what the configuration declares, what the
attention layers ask for in one forward, and whether the engine's logits are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from specbench.common import UsageError
from specbench.decoding import TokenTree
from specbench.engine import memory
from specbench.engine.attention.interface import UnsupportedAttention

_LAYER_TYPES = ("full_attention", "sliding_attention")
_PREFIX = 12
# Root 0 with the branches 1-3-5 and 2-4, interleaved so that neighbouring rows are never parent and child.
_PARENTS = (-1, 0, 0, 1, 2, 3)
_BRANCHES = ((0, 1, 3, 5), (0, 2, 4))
_DEEPEST = 3  # of its rows
_ATTEMPTS = 3
# A name in a configuration with one of these words says how large a part of the model is, or which token is which. Any
# other whole number may be a length of text at which something changes: a window, a chunk, a scale.
_SIZES = frozenset({"num", "vocab", "hidden", "intermediate"})
_SIZES_AT_END = frozenset(
    {"dim", "rank", "id", "ids", "head", "heads", "layer", "layers", "expert", "experts", "group", "groups", "embd"}
    | {"inner", "factor", "freq", "step", "kernel", "tp"}
)
_MOST_LENGTHS = 16
# Relative error between two orders of the same arithmetic. Half precisions leave room for what depth amplifies; a wrong
# mask, position or scale moves the logits by about their own size.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tolerance(dtype: torch.dtype) -> float:
    """Relative error of scores that the order of sums may explain."""
    return _TOLERANCE.get(dtype, 5e-2)


Apart = Callable[[], AbstractContextManager[None]]

#: By layer the keys and values that a cache holds, [1, heads, tokens, size] each.
Stored = Mapping[int, tuple[Tensor, Tensor]]


def check_declared(model: Any, capacity: int) -> int | None:
    """What can be known before the first forward.

    Args:
        model: a transformers causal LM.
        capacity: tokens that a sequence may reach, prompt and output together.

    Returns:
        How many positions the model has, where it can be given no others: rows of a last tree may lie behind them.

    Raises:
        UnsupportedAttention: the model declares something that the engine does not express.
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedAttention(
            "this model's attention does not go through transformers' AttentionInterface, which the engine needs"
        )
    config = model.config.get_text_config()
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _LAYER_TYPES:
            raise UnsupportedAttention(f"this model has '{kind}' layers, which the engine does not express yet")
    found = []
    for rope_type, original in _length_dependent_ropes(config):
        if capacity > original:
            raise UnsupportedAttention(
                f"this model's '{rope_type}' rope changes its frequencies past {original} positions, which the engine "
                f"does not express yet; prompt and answer reach {capacity} here, so use shorter ones"
            )
        found.append(original)
    table = _learned_positions(model, config)
    if table is not None:
        if capacity > table:
            raise UnsupportedAttention(
                f"this model has learned embeddings for {table} positions only; prompt and answer reach {capacity} "
                "here, so use shorter ones"
            )
        found.append(table)
    return min(found, default=None)


def _length_dependent_ropes(config: Any) -> Iterator[tuple[str, int]]:
    """(type, positions up to which its frequencies are constant) of every rope that depends on the current length."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]  # one dict per layer type
    for rope in nested or [parameters]:
        rope_type = str(rope.get("rope_type", rope.get("type", "default")))
        if "dynamic" in rope_type or rope_type == "longrope":
            key = "original_max_position_embeddings"
            known = (rope.get(key), getattr(config, key, None), getattr(config, "max_position_embeddings", None))
            yield rope_type, min((limit for limit in known if limit is not None), default=0)


def _learned_positions(model: Any, config: Any) -> int | None:
    """Size of a learned position table; None when there is none. Some tables have a few more rows than positions."""
    positions = getattr(config, "max_position_embeddings", None)
    words = model.get_input_embeddings()
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    return positions if positions is not None and any(0 <= size - positions < 8 for size in sizes) else None


@contextmanager
def refusing() -> Iterator[None]:
    """Turns an error before or inside a model's first forward into a refusal: it wants what our engine does not have.

    Raises:
        UnsupportedAttention: in place of any error that is not about memory or the device.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        text = (str(error).splitlines() or [""])[0]
        if isinstance(error, RuntimeError) and ("memory" in text or "CUDA" in text):
            raise
        raise UnsupportedAttention(
            f"this model's forward does not run on the engine's cache and attention ({type(error).__name__}: {text})"
        ) from error


def check_windows(model: Any, windows: Mapping[int, int | None], reach: int) -> None:
    """Whether each layer's attention call brought the window that the configuration declares.

    A model may keep its window in its own mask only; the engine makes no model's mask, so the window would be lost.

    Args:
        model: a transformers causal LM.
        windows: window that each layer's call brought.
        reach: as in :func:`check_declared`; a window that reaches so far hides nothing.

    Raises:
        UnsupportedAttention: a layer slides by its configuration and not by its call, or the other way round.
    """
    if not windows:
        raise UnsupportedAttention("this model's layers do not call the attention that is set for them")
    config = model.config.get_text_config()
    declared = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds and (declared is None or getattr(config, "use_sliding_window", True) is False):
        return  # nothing is declared: what the call brings is all there is
    for layer, brought in windows.items():
        slides = layer < len(kinds) and kinds[layer] == "sliding_attention" if kinds else True
        # A layer may slide by a number that goes by another name; then the call's is the only one known.
        expected = (brought if declared is None else declared) if slides else None
        unknown = slides and expected is None
        if unknown or (brought != expected and min(w for w in (brought, expected) if w is not None) < reach):
            raise UnsupportedAttention(
                f"layer {layer} of this model declares a sliding window of {expected} and attends with {brought}, "
                "which the engine does not express yet"
            )


def check_forward(model: Any, probe: Callable[[Sequence[int], TokenTree], Tensor], apart: Apart) -> None:
    """Whether the engine's logits over a small tree are those of plain forwards of the model's own attention.

    Args:
        model: a transformers causal LM that is attached to the engine; so it is again afterwards.
        probe: logits [rows, V] after each row of a tree over a cached prefix.
        apart: the model is without the engine inside of it.

    Raises:
        UnsupportedAttention: they differ by more than rounding.
        UsageError: the model's own are no numbers.
    """
    errors = torch.full((len(_PARENTS),), torch.inf, dtype=torch.float64)
    # What the engine gets wrong is wrong for any tokens; a router of experts may fall the other way by rounding for
    # some. So a row counts as different only when it is for each of a few token sets. One set nearly always suffices.
    for attempt in range(_ATTEMPTS):
        errors = errors.minimum(_relative_errors(model, probe, apart, 11 + 5 * attempt))
        if errors.max() <= tolerance(model.dtype):
            return
    raise UnsupportedAttention(f"the engine's forward differs from the model's own (relative error {errors.max():.2g})")


def far_lengths(model: Any, capacity: int) -> list[int]:
    """Where a probe behind a long text shows what one behind a short text does not.

    Args:
        model: a transformers causal LM.
        capacity: positions that rows may have.

    Returns:
        Cached tokens, so that the rows of the probe's tree end at the capacity, or lie on both sides of a length that
        the configuration names.
    """
    named = {number for number in _lengths(model.config.get_text_config().to_dict()) if number + 2 <= capacity}
    ends = {length - 2 for length in sorted(named)[-_MOST_LENGTHS:]} | {capacity - 1 - _DEEPEST}
    return sorted(length for length in ends if length > _PREFIX)  # what is shorter, the first probe has seen


def _lengths(values: Any, name: str = "") -> Iterator[int]:
    if isinstance(values, Mapping):
        for inner, value in values.items():
            yield from _lengths(value, str(inner))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _lengths(value, name)
    elif type(values) is int and values > 2:
        words = name.split("_")
        if not _SIZES & {*words} and words[-1] not in _SIZES_AT_END:
            yield values


def check_far(
    model: Any, lengths: Sequence[int], probe: Callable[[int, TokenTree], tuple[Tensor, Stored]], apart: Apart
) -> None:
    """Whether the same holds behind long texts; their keys and values are noise, for which nothing has to be computed.

    Args:
        model: as of :func:`check_forward`.
        lengths: as of :func:`far_lengths`.
        probe: logits [rows, V] after each row of a tree behind so many cached tokens, and what is cached.
        apart: the model is without the engine inside of it.

    Raises:
        UnsupportedAttention: they differ by more than rounding, first behind so many tokens as the text says.
    """
    allowed = tolerance(model.dtype) * (1 if model.dtype in (torch.float32, torch.float64) else 3)
    for length in lengths:
        worst = torch.inf
        for attempt in range(_ATTEMPTS):
            error = _far_error(model, length, probe, apart, 11 + 5 * attempt)
            if error is None:
                return
            worst = min(worst, error)
            if worst <= allowed:
                break
        else:
            raise UnsupportedAttention(
                f"the engine's forward behind {length} tokens differs from the model's own (relative error "
                f"{worst:.2g}); keep prompt and answer shorter than that, or choose another model"
            )


def _far_error(
    model: Any, length: int, probe: Callable[[int, TokenTree], tuple[Tensor, Stored]], apart: Apart, first: int
) -> float | None:
    """The largest relative error of a row; None where the model takes no cache but its own."""
    vocab = min(1000, model.get_input_embeddings().num_embeddings)
    tokens = [(37 * at + first) % vocab for at in range(len(_PARENTS))]
    with refusing():
        ours, stored = probe(length, TokenTree(tokens, _PARENTS))
    longest = max(map(len, _BRANCHES))
    flat = [[tokens[row] for row in branch] + [0] * (longest - len(branch)) for branch in _BRANCHES]
    cache = DynamicCache(config=model.config)
    try:
        with apart(), torch.inference_mode():
            for layer, held in stored.items():
                cache.update(*(each.expand(len(flat), -1, -1, -1) for each in held), layer)
            ids = torch.tensor(flat, device=model.device)
            own = model(input_ids=ids, past_key_values=cache, use_cache=True).logits.double()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if memory.ran_out(error):
            raise
        return None
    largest = 0.0
    for branch, logits in zip(map(list, _BRANCHES), own, strict=True):
        expected = logits[: len(branch)]
        off = (ours[branch].double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
        largest = max(largest, float(off.nan_to_num(torch.inf).max()))
    return largest


def _relative_errors(
    model: Any, probe: Callable[[Sequence[int], TokenTree], Tensor], apart: Apart, first: int
) -> Tensor:
    """float64 [rows]: distance of each tree row's logits from the model's own, in units of their norm.

    The native side is one forward with a branch per batch row, the shorter one padded behind its end.
    """
    vocab = min(1000, model.get_input_embeddings().num_embeddings)
    ids = [(37 * at + first) % vocab for at in range(_PREFIX + len(_PARENTS))]
    prefix, tokens = ids[:_PREFIX], ids[_PREFIX:]
    with refusing():
        ours = probe(prefix, TokenTree(tokens, _PARENTS)).double().cpu()
    longest = max(map(len, _BRANCHES))
    flat = [prefix + [tokens[row] for row in branch] + [0] * (longest - len(branch)) for branch in _BRANCHES]
    with apart(), torch.inference_mode():
        own = (
            model(input_ids=torch.tensor(flat, dtype=torch.int64, device=model.device), use_cache=False)
            .logits.double()
            .cpu()
        )
    errors = torch.zeros(len(_PARENTS), dtype=torch.float64)
    for rows, logits in zip(map(list, _BRANCHES), own[:, _PREFIX:], strict=True):
        expected = logits[: len(rows)]
        if not expected.isfinite().all():
            dtype = str(model.dtype).removeprefix("torch.")
            raise UsageError(
                f"the model comes to NaN or infinity in {dtype}; take a wider --dtype, or weights that are whole"
            )
        errors[rows] = (ours[rows] - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
    return errors.nan_to_num(torch.inf)
