"""Block-diffusion decoders written from their published rules, dense: no KV cache, no code of the engine.

Greedy only. A tie goes to the lowest token id and to the lowest position.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass
class Trace:
    """What a decoder wrote.

    ``tokens``: after the prompt, up to and including the first stop token, at most as many as were asked for.
    ``passes``: per forward after the prompt, the (position, token) pairs it wrote, in ascending order; positions count
    from the start of the prompt. A forward that only stores a finished block writes nothing: its list is empty. The
    pairs are not cut as ``tokens`` are. :func:`masked` and :func:`d2f` read the prompt in the first of these forwards.
    """

    tokens: list[int] = field(default_factory=list)
    passes: list[list[tuple[int, int]]] = field(default_factory=list)


class Rows:
    """Every row that any pass computed: a token, a position, and the rows that it sees.

    A row keeps its token and its context, so a decoder with a stale cache sees rows of earlier passes, and one without
    a cache sees only rows of this pass.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).eval()
        self.model.set_attn_implementation("eager")
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.seen: list[tuple[int, ...]] = []

    def add(self, tokens: Sequence[int], start: int, before: Sequence[int] = ()) -> list[int]:
        """Add rows at consecutive positions that see the rows ``before`` and each other; return their indices."""
        new = list(range(len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.seen += [(*before, *new)] * len(tokens)
        return new

    @torch.no_grad()
    def logits(self, rows: Sequence[int]) -> Tensor:
        """[rows, V], from one dense forward over the rows and all that they depend on."""
        needed, open_ = set(rows), list(rows)
        while open_:
            fresh = set(self.seen[open_.pop()]) - needed
            needed |= fresh
            open_ += fresh
        chosen = sorted(needed)
        at = {row: index for index, row in enumerate(chosen)}
        dtype = self.model.dtype
        mask = torch.full((1, 1, len(chosen), len(chosen)), torch.finfo(dtype).min, dtype=dtype)
        for row in chosen:
            mask[0, 0, at[row], [at[other] for other in self.seen[row]]] = 0
        logits: Tensor = self.model(
            input_ids=torch.tensor([[self.tokens[row] for row in chosen]]),
            position_ids=torch.tensor([[self.positions[row] for row in chosen]]),
            attention_mask=mask,
            use_cache=False,
        ).logits
        return logits[0, [at[row] for row in rows]]


@dataclass
class _Guess:
    """A prediction for a masked position."""

    token: int
    confidence: float
    entropy: float


class _Canvas:
    """A text with masks, the rows computed for it, and what each pass wrote."""

    def __init__(self, model: Any, prompt: Sequence[int], mask: int, stops: Collection[int], forbid_mask: bool) -> None:
        assert prompt
        assert mask not in prompt
        self.rows = Rows(model)
        self.text, self.prompt = list(prompt), len(prompt)
        self.mask, self.stops, self.forbid_mask = mask, frozenset(stops), forbid_mask
        self.passes: list[list[tuple[int, int]]] = []

    def masked(self, start: int, end: int) -> list[int]:
        return [at for at in range(start, end) if self.text[at] == self.mask]

    def guess(self, rows: Mapping[int, int]) -> dict[int, _Guess]:
        """Predictions for positions, each from the row that predicts it."""
        if not rows:
            return {}
        logits = self.rows.logits(list(rows.values())).double()
        if self.forbid_mask:
            logits[:, self.mask] = -torch.inf
        p = logits.softmax(-1)
        best, tokens = p.max(-1).values, p.argmax(-1)
        entropy = torch.special.entr(p).sum(-1)
        found = (_Guess(*each) for each in zip(tokens.tolist(), best.tolist(), entropy.tolist(), strict=True))
        return dict(zip(rows, found, strict=True))

    def write(self, guesses: Mapping[int, _Guess], chosen: Collection[int]) -> None:
        """End a pass, which wrote the chosen guesses."""
        self.passes.append([(at, guesses[at].token) for at in sorted(chosen)])
        for at, token in self.passes[-1]:
            assert token != self.mask, "the model predicts the mask token: the published loops would never end"
            self.text[at] = token

    def prefill(self, block_size: int) -> list[int]:
        """Rows of the prompt's whole blocks; a block sees itself and the blocks before it."""
        cached: list[int] = []
        for start in range(0, self.prompt - block_size + 1, block_size):
            cached += self.rows.add(self.text[start : start + block_size], start, cached)
        return cached

    def stopped(self, start: int) -> bool:
        """Whether a stop token is written at ``start`` or later, and no mask is left between."""
        for token in self.text[start:]:
            if token == self.mask:
                return False
            if token in self.stops:
                return True
        return False

    def trace(self, limit: int) -> Trace:
        out = self.text[self.prompt : self.prompt + limit]
        end = next((at + 1 for at, token in enumerate(out) if token in self.stops), len(out))
        assert self.mask not in out[:end]
        return Trace(out[:end], self.passes)


def _surest(guesses: Mapping[int, _Guess]) -> list[int]:
    return sorted(guesses, key=lambda at: (-guesses[at].confidence, at))


def _least_entropy(guesses: Mapping[int, _Guess]) -> list[int]:
    return sorted(guesses, key=lambda at: (guesses[at].entropy, at))


# ------------------------------
# Blocks at absolute positions, causal to the text before them; a finished block is stored with its final tokens.


def fast_dllm_v2(
    model: Any,
    prompt: Sequence[int],
    *,
    mask: int,
    block_size: int = 32,
    small_block: int = 8,
    threshold: float = 0.9,
    stops: Collection[int] = (),
    max_new_tokens: int,
    block_cache: bool = False,
    forbid_mask: bool = False,
) -> Trace:
    """Fast-dLLM v2: a token is predicted by the row before it, sub-blocks are filled from left to right.

    The forward that stores a block also writes the first token of the next. The prompt does so when it ends at a
    block's end; that token is in no pass. With ``block_cache``, a sub-block whose first token is known is run alone,
    and sees the block's other rows as the last pass over the whole block left them. A block that a stop token ends is
    not stored.

    Differs from the published loop: a prompt of exactly one block is read (there it is lost); blocks are written until
    ``max_new_tokens`` are there (there: a number of blocks, rounded down).
    """
    assert block_size % small_block == 0
    canvas = _Canvas(model, prompt, mask, stops, forbid_mask)
    rows, text = canvas.rows, canvas.text
    cached = canvas.prefill(block_size)
    if len(cached) == len(text):
        text.append(canvas.guess({len(text): cached[-1]})[len(text)].token)
    while len(text) < canvas.prompt + max_new_tokens and not canvas.stopped(canvas.prompt):
        start, written = len(cached), len(text)
        text += [mask] * (start + block_size - written)
        block: list[int] = []
        for first in range(start, start + block_size, small_block):
            last = first + small_block
            while (open_ := canvas.masked(first, last)) and not canvas.stopped(written):
                if not block_cache or not block or text[first] == mask:
                    block = now = rows.add(text[start:], start, cached)
                    predicted_by = {at: block[at - 1 - start] for at in open_}
                else:
                    others = block[: first - start] + block[last - start :]
                    now = rows.add(text[first:last], first, cached + others)
                    predicted_by = {at: now[at - 1 - first] for at in open_}
                guesses = canvas.guess(predicted_by)
                sure = [at for at in open_ if guesses[at].confidence > threshold]
                canvas.write(guesses, {*sure, _surest(guesses)[0]})
        if not canvas.stopped(written):
            cached += rows.add(text[start:], start, cached)
            text.append(mask)
            canvas.write(canvas.guess({len(text) - 1: cached[-1]}), [len(text) - 1])
    return canvas.trace(max_new_tokens)


SdarStrategy = Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"]


def sdar(
    model: Any,
    prompt: Sequence[int],
    *,
    mask: int,
    block_size: int = 4,
    strategy: SdarStrategy = "low_confidence_dynamic",
    steps: int | None = None,
    threshold: float = 0.85,
    entropy_bound: float = 0.35,
    stops: Collection[int] = (),
    max_new_tokens: int,
    forbid_mask: bool = False,
) -> Trace:
    """SDAR: a masked row predicts its own token; ``steps`` per block, by default one per position.

    Differs from the published loop: a step never writes more positions than are masked (there it overwrites known ones
    when ``steps`` is below ``block_size``); ``entropy_bounded`` takes the entropy of the whole distribution, as
    JetEngine does, and goes on until the block is full.
    """
    steps = block_size if steps is None else steps
    canvas = _Canvas(model, prompt, mask, stops, forbid_mask)
    rows, text = canvas.rows, canvas.text
    cached = canvas.prefill(block_size)
    while len(text) < canvas.prompt + max_new_tokens and not canvas.stopped(canvas.prompt):
        start = len(cached)
        text += [mask] * (start + block_size - len(text))
        step = 0
        while open_ := canvas.masked(start, start + block_size):
            block = rows.add(text[start:], start, cached)
            guesses = canvas.guess({at: block[at - start] for at in open_})
            count = min(len(open_), block_size // steps + (step < block_size % steps))
            if strategy == "entropy_bounded":
                total = torch.tensor([guesses[at].entropy for at in _least_entropy(guesses)]).cumsum(0)
                chosen = _least_entropy(guesses)[: max(1, int((total < entropy_bound).sum()))]
            elif strategy == "sequential":
                chosen = open_[:count]
            else:
                chosen = _surest(guesses)[:count]
                sure = [at for at in open_ if guesses[at].confidence > threshold]
                if strategy == "low_confidence_dynamic" and len(sure) >= count:
                    chosen = sure
            canvas.write(guesses, chosen)
            step += 1
        cached += rows.add(text[start:], start, cached)
        canvas.write({}, [])
    return canvas.trace(max_new_tokens)


# ------------------------------
# Blocks after the prompt.


def masked(
    model: Any,
    prompt: Sequence[int],
    *,
    mask: int,
    shift: bool = False,
    block_size: int = 32,
    length: int,
    steps: int | None = None,
    threshold: float | None = None,
    score: Literal["confidence", "entropy"] = "confidence",
    cache: Literal["none", "prefix", "dual"] = "none",
    stops: Collection[int] = (),
    forbid_mask: bool = False,
) -> Trace:
    """LLaDA, and Dream with ``shift`` (a token is predicted by the row before it): every row sees every position.

    Exactly one of ``steps`` (in all blocks together) and ``threshold``. With a threshold, a pass writes the best
    position of the block, and the others whose confidence is at least, or whose entropy is at most (with ``shift``:
    below) the threshold: entropy is dParallel's rule. With steps, LLaDA writes equal shares, Dream its time schedule.

    The caches are those of Fast-dLLM. A pass over everything opens a block; with ``shift`` it writes the block's first
    position only. The later passes, at least one, run the rows from the block's start on (``prefix``) or those of the
    block (``dual``), and see all other rows as the opening pass left them.

    All blocks are written, as published, also after a stop token. Differs from the published loops: passes end when
    the block is full; without a cache, Dream is written block by block under a threshold (as in dParallel, not as in
    Fast-dLLM, which has one block and a quota per step).
    """
    assert (steps is None) != (threshold is None)
    blocks = math.ceil(length / block_size)
    assert steps is None or steps % blocks == 0
    per_block = 0 if steps is None else steps // blocks
    times = torch.linspace(1, 1e-3, per_block + 1)
    assert not (shift and steps and cache != "none") or per_block > 1, "the published loop leaves masks"
    canvas = _Canvas(model, prompt, mask, stops, forbid_mask)
    rows, text = canvas.rows, canvas.text
    text += [mask] * (blocks * block_size)

    def choose(guesses: Mapping[int, _Guess], step: int) -> list[int]:
        best = _surest(guesses) if score == "confidence" else _least_entropy(guesses)
        if threshold is not None:
            if score == "confidence":
                good = [at for at in best if guesses[at].confidence >= threshold]
            else:
                good = [
                    at
                    for at in best
                    if guesses[at].entropy < threshold or (not shift and guesses[at].entropy == threshold)
                ]
            return good or best[:1]
        if not shift:
            return best[: block_size // per_block + (step < block_size % per_block)]
        if step >= per_block - 1:
            return best
        return best[: int(torch.tensor(float(len(best))) * (1 - times[step + 1] / times[step]))]

    for start in range(canvas.prompt, len(text), block_size):
        end, step = start + block_size, 0
        kept: list[int] | None = None  # the rows of the opening pass
        while (open_ := canvas.masked(start, end)) or (kept is not None and step == 1):
            first, last = 0, len(text)
            if kept is not None:
                first, last = start, end if cache == "dual" else len(text)
            before = [] if kept is None else kept[:first] + kept[last:]
            now = rows.add(text[first:last], first, before)
            opening = kept is None and cache != "none"
            if opening and shift:
                open_ = [start]
            guesses = canvas.guess({at: now[at - shift - first] for at in open_})
            canvas.write(guesses, open_ if opening and shift else choose(guesses, step))
            kept = now if opening else kept
            step += 1
    return canvas.trace(length)


def d2f(
    model: Any,
    prompt: Sequence[int],
    *,
    mask: int,
    shift: bool = False,
    block_size: int = 32,
    length: int,
    block_add_threshold: float = 0.1,
    decoded_token_threshold: float = 0.95,
    skip_threshold: float = 0.9,
    stops: Collection[int] = (),
    forbid_mask: bool = False,
) -> Trace:
    """D2F: blocks in a pipeline; the prompt is the first, a block sees itself and the blocks before it as they are.

    A forward may open one more block of masks: when the newest one is decoded to ``block_add_threshold`` and no stop
    token was written. A block whose left neighbour was once decoded to ``decoded_token_threshold`` writes at least one
    token a forward; the others only those above ``skip_threshold``. A finished block is stored by the next forward, if
    no block before it is unfinished. The prompt's forward is that of the first pass.

    Differs from the published loop: blocks cover ``length`` (there: rounded down).
    """
    assert 0 <= block_add_threshold <= 1
    assert decoded_token_threshold <= 1
    canvas = _Canvas(model, prompt, mask, stops, forbid_mask)
    rows, text = canvas.rows, canvas.text
    bounds = [(0, len(text))]
    leads = [True]  # of each block: it writes at least one token a forward
    state = ["finished"]  # or "active", or "stored"
    cached: list[int] = []
    ended = False

    def share(block: int) -> float:
        start, end = bounds[block]
        return (end - start - len(canvas.masked(start, end))) / (end - start)

    while True:
        if len(bounds) <= math.ceil(length / block_size) and not ended and share(-1) >= block_add_threshold:
            bounds.append((len(text), len(text) + block_size))
            leads.append(False)
            state.append("active")
            text += [mask] * block_size
        for block in range(len(bounds) - 1):
            leads[block + 1] |= share(block) >= decoded_token_threshold
        if "active" not in state:
            return canvas.trace(length)
        place = dict(enumerate(cached))  # position to row
        for block, (start, end) in enumerate(bounds):
            if state[block] != "stored":
                new = rows.add(text[start:end], start, list(place.values()))
                place |= dict(zip(range(start, end), new, strict=True))
                if state[block] == "finished":
                    cached += new
                    state[block] = "stored"
        guesses = canvas.guess({at: place[at - shift] for at in canvas.masked(0, len(text))})
        chosen: list[int] = []
        for block, (start, end) in enumerate(bounds):
            own = {at: guesses[at] for at in canvas.masked(start, end)}
            sure = [at for at in own if own[at].confidence > skip_threshold]
            chosen += sure or (_surest(own)[:1] if leads[block] else [])
        canvas.write(guesses, chosen)
        ended |= any(token in canvas.stops for _, token in canvas.passes[-1])
        for block, (start, end) in enumerate(bounds):
            if state[block] == "active" and not canvas.masked(start, end) and "active" not in state[:block]:
                state[block] = "finished"
