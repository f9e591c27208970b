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
#
# How much depth amplifies depends on the model. Where the engine is farther off than this, the model's own forward is
# run with its sums in another order, and the engine may be off by NOISE times as much as that one is, but never by more
# than CEILING times the tolerance. An attention that is a little wrong and hides in that is found in float32
# (:mod:`specbench.engine.layer_check`).
NOISE = 3.0
CEILING = 5.0
FAR = 3.0  # of half precisions, times as much after noise in the cache
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tolerance(dtype: torch.dtype) -> float:
    """Relative error of scores that the order of sums may explain."""
    return _TOLERANCE.get(dtype, 5e-2)


Apart = Callable[[], AbstractContextManager[None]]

#: By layer the keys and values that a cache holds, [1, heads, tokens, size] each.
Stored = Mapping[int, tuple[Tensor, Tensor]]


def check_declared(model: Any, capacity: int) -> int | None:
    """Refuse what the configuration alone shows that the engine does not express.

    Returns how many positions the model has, where it can be given no others; rows of a last tree may lie after them.
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
    """Turn an error before or inside a model's first forward into UnsupportedAttention."""
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


def check_forward(model: Any, probe: Callable[[Sequence[int], TokenTree], Tensor], apart: Apart) -> float:
    """Whether the engine's logits over a small tree are those of plain forwards of the model's own attention.

    ``probe``: logits [rows, V] after each row of a tree over a cached prefix. Returns how far scores may be off, as a
    share of their norm: the tolerance, or what was found where that is more.
    """
    errors = torch.full((len(_PARENTS),), torch.inf, dtype=torch.float64)
    # What the engine gets wrong is wrong for any tokens; a router of experts may fall the other way by rounding for
    # some. So a row counts as different only when it is for each of a few token sets. One set nearly always suffices.
    for attempt in range(_ATTEMPTS):
        errors = errors.minimum(_relative_errors(model, probe, apart, 11 + 5 * attempt))
        if errors.max() <= tolerance(model.dtype):
            return tolerance(model.dtype)
    text = _text(model, 11)
    found = float(errors.max())
    if found > _allowed(model, tolerance(model.dtype), apart, lambda: _own_rows(model, text)):
        raise UnsupportedAttention(f"the engine's forward differs from the model's own (relative error {found:.2g})")
    return found


def _allowed(model: Any, floor: float, apart: Apart, forward: Callable[[], list[Tensor]]) -> float:
    """The largest relative error that this model's own rounding explains."""
    with apart(), torch.inference_mode():
        expected = torch.cat(forward())
        with _other_order(model):
            again = torch.cat(forward())
    noise = (again - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
    # The median: one row whose experts are others says nothing of rounding.
    return min(max(floor, NOISE * float(noise.nan_to_num(0.0).median())), CEILING * floor)


@contextmanager
def _other_order(model: Any) -> Iterator[None]:
    """The model's own forward, whose attention adds up in another order within it."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("sdpa" if before == "eager" else "eager")
    except (ImportError, ValueError):  # a model that has one attention only: then its order is all that is known
        yield
        return
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def far_lengths(model: Any, capacity: int) -> list[int]:
    """Cached lengths at which to probe, so that the probe's rows end at the capacity, or lie on both sides of a length
    that the configuration names.
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
    """Whether the same holds after long texts, whose keys and values are noise."""
    floor = tolerance(model.dtype) * (1 if model.dtype in (torch.float32, torch.float64) else FAR)
    for length in lengths:
        worst = torch.inf
        for attempt in range(_ATTEMPTS):
            found = _far_error(model, length, probe, apart, 11 + 5 * attempt)
            if found is None:
                return
            worst, own = min(worst, found[0]), found[1]
            if worst <= floor:
                break
        else:
            if worst <= _allowed(model, floor, apart, own):
                continue
            raise UnsupportedAttention(
                f"the engine's forward after {length} tokens differs from the model's own (relative error "
                f"{worst:.2g}); keep prompt and answer shorter than that, or choose another model"
            )


def _far_error(
    model: Any, length: int, probe: Callable[[int, TokenTree], tuple[Tensor, Stored]], apart: Apart, first: int
) -> tuple[float, Callable[[], list[Tensor]]] | None:
    """The largest relative error of a row and the model's own forward; None where it takes no cache but its own."""
    vocab = min(1000, model.get_input_embeddings().num_embeddings)
    tokens = [(37 * at + first) % vocab for at in range(len(_PARENTS))]
    with refusing():
        ours, stored = probe(length, TokenTree(tokens, _PARENTS))

    def forward() -> list[Tensor]:
        flat = _flat([], tokens)
        cache = DynamicCache(config=model.config)
        for layer, held in stored.items():
            cache.update(*(each.expand(len(flat), -1, -1, -1) for each in held), layer)
        ids = torch.tensor(flat, device=model.device)
        own = model(input_ids=ids, past_key_values=cache, use_cache=True).logits.double()
        return [logits[: len(branch)] for branch, logits in zip(_BRANCHES, own, strict=True)]

    try:
        with apart(), torch.inference_mode():
            own = forward()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if memory.ran_out(error):
            raise
        return None
    largest = 0.0
    for branch, expected in zip(map(list, _BRANCHES), own, strict=True):
        off = (ours[branch].double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
        largest = max(largest, float(off.nan_to_num(torch.inf).max()))
    return largest, forward


def _flat(prefix: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    """The tree's branches after a prefix as rows of a batch, the shorter one padded after its end."""
    longest = max(map(len, _BRANCHES))
    return [[*prefix, *(tokens[row] for row in branch), *[0] * (longest - len(branch))] for branch in _BRANCHES]


def _text(model: Any, first: int) -> list[int]:
    """Tokens of the prefix and of the tree's rows."""
    vocab = min(1000, model.get_input_embeddings().num_embeddings)
    return [(37 * at + first) % vocab for at in range(_PREFIX + len(_PARENTS))]


def _own_rows(model: Any, text: Sequence[int]) -> list[Tensor]:
    """float64 logits of the model's own forward after the rows of each branch, on the host."""
    ids = torch.tensor(_flat(text[:_PREFIX], text[_PREFIX:]), dtype=torch.int64, device=model.device)
    own = model(input_ids=ids, use_cache=False).logits.double().cpu()
    return [logits[: len(branch)] for branch, logits in zip(_BRANCHES, own[:, _PREFIX:], strict=True)]


def _relative_errors(
    model: Any, probe: Callable[[Sequence[int], TokenTree], Tensor], apart: Apart, first: int
) -> Tensor:
    """float64 [rows]: distance of each tree row's logits from the model's own, in units of their norm."""
    text = _text(model, first)
    with refusing():
        ours = probe(text[:_PREFIX], TokenTree(text[_PREFIX:], _PARENTS)).double().cpu()
    with apart(), torch.inference_mode():
        own = _own_rows(model, text)
    errors = torch.zeros(len(_PARENTS), dtype=torch.float64)
    for rows, expected in zip(map(list, _BRANCHES), own, strict=True):
        if not expected.isfinite().all():
            dtype = str(model.dtype).removeprefix("torch.")
            raise UsageError(
                f"the model comes to NaN or infinity in {dtype}; take a wider --dtype, or weights that are whole"
            )
        errors[rows] = (ours[rows] - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
    return errors.nan_to_num(torch.inf)
