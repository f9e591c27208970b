"""Remove duplicated start, end and role tokens from prompts, and find a special token that can mask others.

A tokenizer may add a start token to a text that already has one, and a template may end a turn whose text ends with the
same token. Models were trained with one token in such places and answer worse to two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from specbench.common import UsageError


def control_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of tokens that mark where texts, turns and roles begin and end.

    Excludes unknown, mask and padding tokens, which may repeat.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {at for at, token in added.items() if token.special} | {*getattr(tokenizer, "all_special_ids", ())}
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")}
    repeated = {getattr(tokenizer, f"{name}_token_id", None) for name in ("unk", "mask", "pad")}
    return frozenset(at for at in found - (repeated - ends) if isinstance(at, int))


def longest_runs(ids: Sequence[int], control: frozenset[int]) -> dict[int, int]:
    """Return the length of the longest run of each control token."""
    found: dict[int, int] = {}
    for token, run in groupby(ids):
        if token in control:
            found[token] = max(found.get(token, 0), len(list(run)))
    return found


def without_doubles(
    ids: Sequence[int], control: frozenset[int], intended: Callable[[], Mapping[int, int]]
) -> tuple[list[int], list[int]]:
    """Shorten runs of equal control tokens to one token.

    Args:
        intended: returns the allowed length of each token's runs, 1 if absent; called only if there is a longer run.

    Returns:
        The remaining ids, and the removed control tokens.
    """
    if max(longest_runs(ids, control).values(), default=1) < 2:
        return [*ids], []
    allowed, kept, taken = intended(), list[int](), list[int]()
    for token, run in groupby(ids):
        count = len(list(run))
        most = max(1, allowed.get(token, 1)) if token in control else count
        kept += [token] * min(count, most)
        taken += [token] * (count - most)
    return kept, taken


def mask_token(config: Any, tokenizer: Any) -> int:
    """Return the id of the token that stands for an unknown one in block diffusion.

    It is the model's own, named by its configuration or tokenizer, else the special token with the highest id that is
    neither a start, end, padding or unknown token nor part of the chat template. Raises UsageError if there is none.
    """
    for source in (config, tokenizer):
        own = getattr(source, "mask_token_id", None)
        if type(own) is int:
            return own
    used = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk")}
    template = str(getattr(tokenizer, "chat_template", None) or "")
    special = {at: str(token) for at, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    unused = [at for at, token in special.items() if at not in used and token not in template]
    if not unused:
        raise UsageError(
            "cannot choose a mask token: neither config.json nor the tokenizer names one, and the tokenizer has no "
            "unused special token; set mask to the id of a token that texts do not use"
        )
    return max(unused)
