"""Change logits before temperature, top-k and top-p: grammar, logit bias, penalties and min-p, in vLLM's order.

A row of a token tree stands for a text: the prompt, the output so far, and the tokens from the root to the row.
Penalties and grammar depend on that text, so that each row gets the logits that autoregressive decoding has after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.decoding import TokenTree
from specbench.engine.logits.grammar import Grammar
from specbench.engine.sampler import Sampling, over


@dataclass(frozen=True)
class TextRows:
    """The rows of one slot's tree and the text before them.

    Attributes:
        first: row of the root in the step.
        text: tokens before the root.
        prompt: number of tokens of the prompt.
    """

    slot: int
    first: int
    tree: TokenTree
    text: Sequence[int]
    prompt: int
    grammar: Grammar | None = None

    @cached_property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Tokens that the grammar allows after each row: bool [rows, at least the tokenizer's tokens]."""
        assert self.grammar is not None
        output, before = self.text[self.prompt :], self.prompt - len(self.text)
        return self.grammar.allowed(self.slot, output, self.tree.tokens, self.tree.parents, before)

    @cached_property
    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """Tokens [W] of text and tree; for each row, whether a token is in its text, and how often in its output."""
        tokens = np.asarray(self.tree.tokens, dtype=np.int64)
        text = np.asarray(self.text, dtype=np.int64)
        words = np.unique(np.concatenate([text, tokens]))
        column, known = np.searchsorted(words, tokens), np.searchsorted(words, text)
        seen = np.zeros((len(tokens), len(words)), dtype=np.bool_)
        counts = np.zeros((len(tokens), len(words)), dtype=np.float32)
        seen[0, known] = True
        counts[0] = np.bincount(known[self.prompt :], minlength=len(words))
        for row, parent in enumerate(self.tree.parents):
            if row:
                seen[row], counts[row] = seen[parent], counts[parent]
            seen[row, column[row]] = True
            # A root that is the last token of the prompt is no output.
            counts[row, column[row]] += row > 0 or len(self.text) >= self.prompt
        return words, seen, counts


def processed(logits: Tensor, sampling: Sampling, texts: Sequence[TextRows] = (), start: int = 0) -> Tensor:
    """Logits [1, n, V] in float32 after grammar, logit bias, penalties and min-p.

    Args:
        texts: of the slots of the step; needed only if :attr:`Sampling.needs_text`.
        start: the step's row that is the first of these.
    """
    values = logits.float()
    shown = [(each, *part) for each in texts if (part := _part(each, values[0], start))]
    for each, rows, mine in shown:
        if each.grammar is not None:
            _forbid(mine, each.allowed[rows])
    if sampling.logit_bias:
        ids, bias = _bias(sampling.logit_bias, values.device)
        values[..., ids] += bias
    if sampling.penalises:
        for each, rows, mine in shown:
            words, seen, counts = each.counts
            _penalise(mine, sampling, words, seen[rows], counts[rows])
    if sampling.min_p and not sampling.greedy:
        scores = over(values, sampling.temperature)
        values = values.masked_fill(scores < scores.amax(-1, keepdim=True) + math.log(sampling.min_p), -torch.inf)
    return values


def _part(each: TextRows, values: Tensor, start: int) -> tuple[slice, Tensor] | None:
    """The rows of a slot's tree that are among ``values`` [n, V], and their view; None if there are none."""
    first, last = max(each.first, start), min(each.first + len(each.tree), start + len(values))
    if first >= last:
        return None
    return slice(first - each.first, last - each.first), values[first - start : last - start]


def _forbid(logits: Tensor, allowed: npt.NDArray[np.bool_]) -> None:
    """Set logits [rows, V] of forbidden tokens to -inf, in place."""
    words = allowed.shape[1]
    logits[:, :words].masked_fill_(~torch.from_numpy(allowed[:, : logits.shape[1]]).to(logits.device), -torch.inf)
    logits[:, words:] = -torch.inf  # the model's padding, which is no token


def _penalise(
    logits: Tensor,
    sampling: Sampling,
    words: npt.NDArray[np.int64],
    seen: npt.NDArray[np.bool_],
    counts: npt.NDArray[np.float32],
) -> None:
    """Apply the penalties to the tokens ``words`` [W] of logits [rows, V], in place."""
    ids, known, times = (torch.from_numpy(each).to(logits.device) for each in (words, seen, counts))
    found, factor = logits[:, ids], sampling.repetition_penalty
    found = torch.where(known, torch.where(found > 0, found / factor, found * factor), found)
    found = found - sampling.frequency_penalty * times - sampling.presence_penalty * (times > 0)
    logits.index_copy_(1, ids, found)


@lru_cache(maxsize=16)
def _bias(bias: Sequence[tuple[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and values on the device; cached, so that a captured step copies nothing."""
    ids, values = zip(*bias, strict=True)
    return torch.tensor(ids, device=device), torch.tensor(values, dtype=torch.float32, device=device)
