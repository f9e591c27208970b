"""Control tokens: start, end and role tokens, of which a prompt never has two of the same in a row.

A tokenizer puts its start token before a text that has one already; a template ends a turn whose text ends itself. A
model has seen one token in such places, and answers worse to two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any


def control_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that mark where texts, turns and roles begin and end.

    Unknown words, blanks to fill in and padding may stand in a row.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {at for at, token in added.items() if token.special} | {*getattr(tokenizer, "all_special_ids", ())}
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")}
    repeated = {getattr(tokenizer, f"{name}_token_id", None) for name in ("unk", "mask", "pad")}
    return frozenset(at for at in found - (repeated - ends) if isinstance(at, int))


def longest_runs(ids: Sequence[int], control: frozenset[int]) -> dict[int, int]:
    """How often each control token stands in a row at most."""
    found: dict[int, int] = {}
    for token, run in groupby(ids):
        if token in control:
            found[token] = max(found.get(token, 0), len(list(run)))
    return found


def without_doubles(
    ids: Sequence[int], control: frozenset[int], intended: Callable[[], Mapping[int, int]]
) -> tuple[list[int], list[int]]:
    """Token ids with one control token where several of the same stand in a row.

    Args:
        intended: how often each may stand in a row, 1 if absent; asked only where one does more than once.

    Returns:
        The ids, and which control tokens were taken out.
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
