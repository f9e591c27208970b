"""Follow the published Jacobi Forcing code (hao-ai-lab/JacobiForcing, multiblock with rejection recycling, 2026-02).

Used to check published rows. It decodes call by call, one block each, and no state survives a call: the next block
starts from fresh guesses even if a block ahead was drafted. The guesses of that block reach the output only through the
pool. A pool of one or two entries never yields a candidate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specbench.decoding import Branches, Context, Noise, StepResult, TokenTree

if TYPE_CHECKING:
    from specbench.methods.jf.decoder import Options

_MAX_ITERATIONS = 128  # steps of a call; reached only by larger blocks


class Calls:
    """The state of the current call."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._pad = context.pad_id
        self._noise = Noise(options.init, context)
        self._prefilled = False
        self._recycled = 0
        self._start([])

    def _start(self, draft: list[int], fresh: int = 0) -> None:
        self._committed: list[int] = []
        self._draft = draft  # rest of the current block; draft[0] is the last emitted token
        self._fresh = fresh  # tokens at its end that no forward has refreshed yet
        self._candidates: list[list[int]] = []
        self._branches: list[list[int]] = []
        # The block ahead: tokens assumed accepted, and tokens still guessed.
        self._ahead: tuple[list[int], list[int]] = ([], [])
        self._pool: deque[list[int]] = deque(maxlen=self._options.chains)
        self._iterations = 0

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._noise.see(prompt)
        if not self._options.prefill_draft:
            return None
        return TokenTree.chain([prompt[-1], *self._noise.draw(self._options.block_size - 1)], drafts_only=True)

    def draft(self) -> TokenTree:
        tree = Branches(self._draft[0])
        chain = [0, *tree.add(self._draft[1:])]
        ahead = tree.add(self._ahead[0] + self._ahead[1], chain[-1])
        self._branches = [tree.add(candidate[1:]) for candidate in self._candidates]
        length = len(self._draft)
        origins = ["guess"] * (length - self._fresh) + ["noise"] * self._fresh + ["block"] * len(ahead)
        origins += ["pool"] * (len(tree) - len(origins))
        # The block ahead is computed after the draft, but its rows are never accepted.
        return tree.tree([row not in set(ahead) for row in range(len(tree))] if ahead else None, origins)

    def observe(self, result: StepResult) -> None:
        self._noise.see(result.emitted)
        n = self._options.block_size
        if not self._prefilled:
            self._prefilled = True
            first = list(result.next_tokens)
            fresh = n - 1 if len(first) < n else 0
            self._start(first + self._noise.draw(fresh), fresh)
            return
        self._iterations += 1
        length, accepted = len(self._draft), len(result.path)
        self._recycled += sum(row >= length for row in result.path)
        rows = list(range(length))
        winner = next((branch for branch in self._branches if result.path[-1] in branch), [])
        if accepted > 1 and result.path[-1] >= length:
            rows[1:] = winner
        self._committed += [self._draft[0], *result.emitted[:-1]]
        if accepted == length or self._iterations == _MAX_ITERATIONS:
            self._start([result.emitted[-1], *self._noise.draw(n - 1)], n - 1)
            return
        tail = [result.next_tokens[row] for row in rows[accepted:-1]]
        self._draft, self._fresh = [result.emitted[-1], *tail], 0
        self._recycle(tail)
        self._refresh_ahead(result.next_tokens[length:])
        threshold = math.ceil(self._options.activation_ratio * n)
        if self._options.blocks > 1 and not any(self._ahead) and len(self._committed) >= threshold:
            # The block ahead starts as a copy of the rest of the current block, filled up with pads.
            self._ahead = ([], (self._draft + [self._pad] * n)[:n])

    def measures(self) -> Mapping[str, float]:
        return {"recycled": self._recycled}

    def _recycle(self, tail: list[int]) -> None:
        """Add two strings to the pool; candidates come from all but the newest string, and only if there are two."""
        strings = self._committed + self._draft + self._ahead[0] + self._ahead[1]
        self._pool.append([token for token in strings if token != self._pad])
        if tail:
            self._pool.append(tail)
        self._candidates = []
        for entry in list(self._pool)[-2::-1]:
            if self._draft[0] in entry:
                found = entry[entry.index(self._draft[0]) :][: len(self._draft)]
                self._candidates.append(found + self._draft[len(found) :])
        if len(self._candidates) < 2:
            self._candidates = []

    def _refresh_ahead(self, next_tokens: Sequence[int]) -> None:
        """Accept the first guess of the block ahead without checking it, and the guesses after it that match."""
        taken, guesses = self._ahead
        if not guesses:
            return
        next_tokens = next_tokens[len(taken) : len(taken) + len(guesses)]
        matches = 0
        while matches + 1 < len(guesses) and guesses[matches + 1] == next_tokens[matches]:
            matches += 1
        rest = [next_tokens[matches], *next_tokens[matches + 1 : -1]] if matches + 1 < len(guesses) else []
        self._ahead = (taken + guesses[: matches + 1], rest)
