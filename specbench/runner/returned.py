"""Returned: what a decoder returned, as values of the kinds that it has to return.

What is none of them is refused when it is returned, and so named with the call that it came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

from specbench.common import plugins
from specbench.decoding import Branch, Decoder, Method, TokenTree
from specbench.models import LoadedModel

_ALL = (True, True)  # of a tree that names no rows, all may be emitted


def check_wishes(method: Method, model: LoadedModel) -> None:
    """Refuse a method that wants to see what the target does not have."""
    words, layers = model.vocab_size, int(model.model.config.get_text_config().num_hidden_layers)
    with plugins.plugin_call(method.who):
        if method.top_k > words:
            raise plugins.Refused(f"its top_k is {method.top_k:,}, and the model has {words:,} tokens")
        if any(layer >= layers for layer in method.taps):
            raise plugins.Refused(f"its taps are {str(method.taps)[:80]}, and the model has {layers} layers")


def checked_guesses(tree: object) -> TokenTree | None:
    """What ``begin`` returned: None, or rows that go along with the prompt and are draft-only."""
    if not (tree is None or type(tree) is TokenTree):
        raise plugins.Refused(f"it returned {type(tree).__name__:.40}, where a TokenTree or None is needed")
    if tree is not None and len(tree) > 1 and any((tree.accept or _ALL)[1:]):
        raise plugins.Refused("guesses sent along with the prompt must be draft-only rows")
    return tree


def wrong_tree(tree: object, most: int, root: int) -> plugins.Refused:
    """Why what ``draft`` returned is no tree of up to ``most`` rows below ``root``."""
    if type(tree) is not TokenTree:
        return plugins.Refused(f"it returned {type(tree).__name__:.40}, where a TokenTree is needed")
    if len(tree.tokens) > most:
        return plugins.Refused(f"its tree has {len(tree.tokens):,} rows, its max_rows said {most:,}")
    return plugins.Refused(f"its tree has root {tree.tokens[0]}, and the last emitted token is {root}")


def checked_measures(decoder: Decoder, kept: int, stopped: bool) -> dict[str, float]:
    """The decoder's own figures of a finished request."""
    found = dict(decoder.measures(kept, stopped))
    for name, value in found.items():
        if not (isinstance(name, str) and _is_number(value) and math.isfinite(value)):
            raise plugins.Refused(f"its measure {str(name)[:40]} is {str(value)[:40]}, which is no number")
    return {name: float(value) for name, value in found.items()}


def checked_branches(decoder: Decoder) -> Sequence[Branch]:
    """The decoder's branches of a finished request."""
    found = []
    for each in decoder.branches():
        if not isinstance(each, Branch):
            raise plugins.Refused(f"it returned {type(each).__name__:.40}, where a Branch is needed")
        tokens = tuple(each.tokens)
        if not (all(map(_is_whole, (each.step, *tokens))) and _is_number(each.logp)):
            raise plugins.Refused(f"its branch of step {str(each.step)[:40]} has something else than numbers")
        found.append(Branch(int(each.step), tuple(map(int, tokens)), float(each.logp)))
    return found


def checked_forwards(decoder: Decoder) -> int:
    """Forwards of the decoder's draft model."""
    found = decoder.draft_forwards
    if not _is_whole(found) or found < 0:
        raise plugins.Refused(f"its draft_forwards is {str(found)[:40]}, which is no count")
    return int(found)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
