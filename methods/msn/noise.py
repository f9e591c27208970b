"""Put noise into the input of an ordinary next-token loss ("Make Some Noise", Wang et al. 2024, arXiv:2406.17404).

One segment of the answer is replaced by ahead noise: at position i, a token sampled uniformly from those before i.
Labels stay clean everywhere, also after the segment. :func:`sources` samples the positions to copy from, for the whole
text, so that the segment can be placed later, where the model's loss is lowest. For comparison, noise may be any token
of the vocabulary (:func:`strangers`).
"""

from __future__ import annotations

import random

import torch
from torch import Tensor


def segment_length(answer: int, wanted: int) -> int:
    """Tokens of the segment in an answer of ``answer`` tokens: the requested number, but never the last token.

    The last token is never an input, only a label. For an answer no longer than the segment, the published snippet has
    an empty range of starts and fails.
    """
    return max(0, min(wanted, answer - 1))


def sources(length: int, draw: random.Random) -> list[int]:
    """For each position of a text, a uniformly sampled earlier position; 0 for the first."""
    return [draw.randrange(max(1, place)) for place in range(length)]


def strangers(length: int, vocab_size: int, draw: random.Random) -> list[int]:
    """For each position of a text, a uniformly sampled token of the vocabulary."""
    return [draw.randrange(vocab_size) for _ in range(length)]


def segment_start(prompt: int, answer: int, length: int, draw: random.Random) -> int:
    """A uniformly sampled start of a segment of ``length`` tokens in the answer without its last token."""
    return prompt + draw.randrange(max(1, answer - length))


def lowest(losses: Tensor, prompts: Tensor, answers: Tensor, lengths: Tensor) -> Tensor:
    """Starts, int64 [B], of the segments with the smallest summed loss; the first of several (App. A).

    ``losses``: [B, S] loss of each token given the text before it; the other arguments: int64 [B].
    """
    places = torch.arange(losses.shape[1], device=losses.device)
    sums = torch.nn.functional.pad(losses.double().cumsum(1), (1, 0))
    ends = (places + lengths[:, None]).clamp(max=losses.shape[1])
    total = sums.gather(1, ends) - sums[:, :-1]
    last = prompts + (answers - lengths - 1).clamp(min=0)
    allowed = (places >= prompts[:, None]) & (places <= last[:, None])
    return total.masked_fill(~allowed, torch.inf).argmin(1)


def noised(ids: Tensor, sources: Tensor, starts: Tensor, lengths: Tensor, in_place: bool) -> Tensor:
    """Texts with their segments replaced, int64 [B, S].

    ``sources``: int64 [B, S] of :func:`sources`; ``in_place``: copy from the partly noisy text, so that noise may copy
    earlier noise, as in the repository's snippet; otherwise from the clean text (Eq. 4).
    """
    places = torch.arange(ids.shape[1], device=ids.device)
    inside = _inside(ids, starts, lengths)
    if not in_place:
        return ids.gather(1, sources).where(inside, ids)
    out = ids
    for step in range(int(lengths.max())):
        out = out.gather(1, sources).where(inside & (places == (starts + step)[:, None]), out)
    return out


def replaced(ids: Tensor, tokens: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Texts whose segments hold other tokens, int64 [B, S]."""
    return tokens.where(_inside(ids, starts, lengths), ids)


def _inside(ids: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1], device=ids.device)
    return (places >= starts[:, None]) & (places < (starts + lengths)[:, None])
