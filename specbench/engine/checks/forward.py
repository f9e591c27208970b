"""Compare the engine's logits over a small tree with those of plain forwards with the model's own attention.

An error in the engine shows for any tokens, but a router of experts may choose differently for some tokens because of
rounding. So a row counts as different only if it differs for each of a few token sets. One set is nearly always enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specbench.common import UsageError
from specbench.decoding import TokenTree
from specbench.engine import memory
from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.checks.declared import refusing
from specbench.engine.stepper import EagerStepper

PREFIX = 12
# Root 0 with the branches 1-3-5 and 2-4, interleaved so that adjacent rows after the root are never parent and child.
PARENTS = (-1, 0, 0, 1, 2, 3)
BRANCHES = ((0, 1, 3, 5), (0, 2, 4))
_DEEPEST = 3  # greatest depth of the tree
_ATTEMPTS = 3
# Configuration names with one of these words are sizes of parts of the model or token ids. Any other integer may be a
# text length at which something changes: a window, a chunk, a scale.
_SIZES = frozenset({"num", "vocab", "hidden", "intermediate"})
_SIZES_AT_END = frozenset(
    {"dim", "rank", "id", "ids", "head", "heads", "layer", "layers", "expert", "experts", "group", "groups", "embd"}
    | {"inner", "factor", "freq", "step", "kernel", "tp"}
)
_MOST_LENGTHS = 16
# Relative error between two orders of the same arithmetic. Half precisions have a larger tolerance because depth
# amplifies rounding; a wrong mask, position or scale changes the logits by about their own size.
#
# How much depth amplifies rounding depends on the model. If the engine's error exceeds the tolerance, the model's own
# forward runs with its sums in another order, and the engine's error may be NOISE times the resulting difference, but
# never more than CEILING times the tolerance. A slightly wrong attention within this limit is found in float32
# (:mod:`specbench.engine.checks.layer`).
NOISE = 3.0
CEILING = 5.0
FAR = 3.0  # factor on the tolerance of half precisions after noise in the cache
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tolerance(dtype: torch.dtype) -> float:
    """Relative error of scores that another order of sums can explain."""
    return _TOLERANCE.get(dtype, 5e-2)


#: Context manager in which the model runs without the engine.
Detached = Callable[[], AbstractContextManager[None]]


def relative_error(found: Tensor, expected: Tensor) -> Tensor:
    """float64 [rows]: distance of each row from the expected row [rows, V], relative to the expected row's norm."""
    found, expected = found.double(), expected.double()
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)


def check_forward(model: Any, stepper: EagerStepper, detached: Detached) -> float:
    """Refuse a model whose logits over a tree after a short text differ between the engine and its own forward.

    Returns the relative error to expect of scores: the tolerance, or the measured error if that is larger.
    """
    errors = torch.full((len(PARENTS),), torch.inf, dtype=torch.float64)
    for attempt in range(_ATTEMPTS):
        text = probe_text(model, attempt)
        with refusing(), stepper.slots.borrowed() as slot:
            # Not Engine.prefill, which checks a prompt against the capacity: scratch cells are enough for this one.
            stepper.prefill(slot, text[: PREFIX - 1], TokenTree.chain([text[PREFIX - 1]]))
            ours = stepper.logits(slot, TokenTree(text[PREFIX:], PARENTS))
        with detached(), torch.inference_mode():
            own = _own_logits(model, text)
        if not all(bool(logits.isfinite().all()) for logits in own):
            dtype = str(model.dtype).removeprefix("torch.")
            raise UsageError(
                f"the model's logits are NaN or infinite in {dtype}; use a wider --dtype, or check its weights"
            )
        errors = errors.minimum(_errors(ours, own))
        if errors.max() <= tolerance(model.dtype):
            return tolerance(model.dtype)
    found = float(errors.max())
    if found > _allowed(model, tolerance(model.dtype), detached, lambda: _own_logits(model, probe_text(model))):
        raise UnsupportedAttention(f"the engine's forward differs from the model's own (relative error {found:.2g})")
    return found


def check_far(model: Any, longest: int, stepper: EagerStepper, detached: Detached) -> None:
    """Refuse a model whose logits differ between the engine and its own forward after long texts.

    A model that only works with its own cache class is not checked here.
    """
    floor = tolerance(model.dtype) * (1 if model.dtype in (torch.float32, torch.float64) else FAR)
    for length in far_lengths(model, longest):
        worst = torch.inf
        for attempt in range(_ATTEMPTS):
            tokens = probe_text(model, attempt)[: len(PARENTS)]
            with refusing(), stepper.after_text(length) as slot:
                cache = stepper.slots.cache
                stored = {
                    layer: tuple(each[slot, None, :, :length].clone() for each in cache.stored(layer))
                    for layer in sorted(cache.shapes)
                }
                ours = stepper.logits(slot, TokenTree(tokens, PARENTS))

            def own(tokens: Sequence[int] = tokens, stored: Mapping[int, tuple[Tensor, ...]] = stored) -> list[Tensor]:
                return _own_logits_after(model, tokens, stored)

            try:
                with detached(), torch.inference_mode():
                    expected = own()
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
                if memory.ran_out(error):
                    raise
                return
            worst = min(worst, float(_errors(ours, expected).max()))
            if worst <= floor:
                break
        else:
            if worst <= _allowed(model, floor, detached, own):
                continue
            raise UnsupportedAttention(
                f"the engine's forward after {length} tokens differs from the model's own (relative error "
                f"{worst:.2g}); keep prompt and answer shorter than that, or choose another model"
            )


def far_lengths(model: Any, capacity: int) -> list[int]:
    """Cached lengths at which to probe: the probe's rows end at the capacity, or are on both sides of a length in the
    configuration.
    """
    named = {number for number in _lengths(model.config.get_text_config().to_dict()) if number + 2 <= capacity}
    ends = {length - 2 for length in sorted(named)[-_MOST_LENGTHS:]} | {capacity - 1 - _DEEPEST}
    return sorted(length for length in ends if length > PREFIX)  # the first probe has checked shorter ones


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


def _allowed(model: Any, floor: float, detached: Detached, forward: Callable[[], list[Tensor]]) -> float:
    """Largest relative error that this model's own rounding can explain."""
    with detached(), torch.inference_mode():
        expected = torch.cat(forward())
        # Another implementation of attention adds up in another order.
        with _attention(model, "sdpa" if model.config._attn_implementation == "eager" else "eager"):
            again = torch.cat(forward())
    noise = relative_error(again, expected)
    # The median, because a row that is routed to other experts does not show rounding.
    return min(max(floor, NOISE * float(noise.nan_to_num(0.0).median())), CEILING * floor)


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    """Switch the model's own attention to another implementation, if it has that one."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
    except (ImportError, ValueError):
        yield
        return
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def complete(model: Any, calls: Calls, detached: Detached) -> Iterator[None]:
    """Context manager in which the model runs without the engine and with all that its layers ask of attention.

    transformers before 5.21 runs Gemma 2 with torch's attention, which has no soft cap.
    """
    capped = any(how.softcap is not None for how in calls.layers.values())
    with detached(), _attention(model, "eager") if capped else nullcontext():
        yield


def _errors(ours: Tensor, own: Sequence[Tensor]) -> Tensor:
    """float64 [rows] on the host: largest relative error of each row of the tree over its branches."""
    errors = torch.zeros(len(PARENTS), dtype=torch.float64)
    for rows, expected in zip(map(list, BRANCHES), own, strict=True):
        off = relative_error(ours[rows], expected).nan_to_num(torch.inf).cpu()
        errors[rows] = errors[rows].maximum(off)
    return errors


def probe_text(model: Any, attempt: int = 0) -> list[int]:
    """Return the tokens of the prefix, then those of the tree's rows."""
    vocab = min(1000, model.get_input_embeddings().num_embeddings)
    return [(37 * at + 11 + 5 * attempt) % vocab for at in range(PREFIX + len(PARENTS))]


def as_batch(prefix: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    """Return the tree's branches after a prefix as rows of a batch; the shorter one is padded at its end."""
    longest = max(map(len, BRANCHES))
    return [[*prefix, *(tokens[row] for row in branch), *[0] * (longest - len(branch))] for branch in BRANCHES]


def _own_logits(model: Any, text: Sequence[int]) -> list[Tensor]:
    """float64 logits of the model's own forward after the rows of each branch, without a cache."""
    ids = torch.tensor(as_batch(text[:PREFIX], text[PREFIX:]), dtype=torch.int64, device=model.device)
    own = model(input_ids=ids, use_cache=False).logits.double()
    return [logits[: len(branch)] for branch, logits in zip(BRANCHES, own[:, PREFIX:], strict=True)]


def _own_logits_after(model: Any, tokens: Sequence[int], stored: Mapping[int, tuple[Tensor, ...]]) -> list[Tensor]:
    """float64 logits of the model's own forward after the rows of each branch, after a cached text.

    ``stored``: each layer's keys and values [1, heads, length, size] of the text.
    """
    flat = torch.tensor(as_batch([], tokens), device=model.device)
    cache, length = DynamicCache(config=model.config), 0
    for layer, held in stored.items():
        cache.update(*(each.expand(len(flat), -1, -1, -1) for each in held), layer)
        length = held[0].shape[2]
    # Some models count positions from 0 without this.
    positions = {"position_ids": torch.arange(length, length + flat.shape[1], device=flat.device)[None]}
    accepted = "position_ids" in inspect.signature(model.forward).parameters
    own = model(
        input_ids=flat, past_key_values=cache, use_cache=True, **(positions if accepted else {})
    ).logits.double()
    return [logits[: len(branch)] for branch, logits in zip(BRANCHES, own, strict=True)]
