"""Jacobi trajectories in a window feed a pool of n-grams, which are verified in the same forward (lookahead decoding).

Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", arXiv:2402.02057, §3.
The window has N-1 rows of guesses; its columns are Jacobi trajectories, a forward extends each by one token, and the
n-gram in every column goes into the pool. Pooled n-grams that start with the last token are branches of the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Literal

from specbench import decoding
from specbench.decoding import Branches, Context, Noise, StepResult, TokenTree, option
from specbench.methods.lookahead.pool import Ngram, Pool, RingPool

# First token of every row with init=const: llama.cpp's choice, ids that are ordinary tokens in most vocabularies.
_CONST = 100


class Options(decoding.Options):
    """Options of lookahead decoding."""

    window_size: int = option(7, "W", "w", help="columns of the window: positions ahead that are guessed", ge=1, le=256)
    ngram_size: int = option(
        5, "N", "n", help="tokens of an n-gram, including the first one, its key in the pool", ge=2, le=64
    )
    guess_set_size: int = option(7, "G", "g", help="n-grams kept per first token; all are verified", ge=1, le=256)
    pool_from_prompt: bool = option(False, help="also put the n-grams of prompt and output into the pool")
    full_accept_bonus: bool = option(
        True, help="emit N tokens when a whole n-gram is right; off: at most N-1, as released"
    )
    shift: Literal["one", "accepted", "rows"] = option(
        "one",
        help="columns the window moves per forward: one, or the number of emitted tokens; rows: one column, and one "
        "row for every further token, where the last row copies the first, as in llama.cpp",
    )
    init: Literal["prompt", "vocabulary", "const"] = option(
        "prompt",
        help="first window: one row sampled from the prompt or the vocabulary, then N-2 forwards fill the other rows; "
        "const: constant ids",
    )
    accept_window: bool = option(False, help="accept window rows that turn out right")
    lru: Literal["used", "generated", "never"] = option(
        "used",
        help="what keeps an n-gram in a full pool: being accepted or generated again, or only being generated again; "
        "never: a ring, as in llama.cpp",
    )
    share_prefixes: bool = option(True, help="n-grams with a common prefix share rows; off: the published layout")
    first_key: Literal["last", "guess"] = option(
        "last",
        help="what column 0's n-gram is looked up by: the last token, or the window's guess for it, as in llama.cpp",
    )
    layout: Literal["window", "ngrams"] = option(
        "window",
        help="order of rows: the window first, then each n-gram; or first the n-grams' tokens, depth by depth",
    )


class Decoder(decoding.Decoder):
    """Window and pool of one sequence.

    ``_window[r]`` is row r. Row 0 has one column less than the others, because the last emitted token is its column 0.
    ``_passed`` is the window's guess for that position, or None.
    """

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._vocab = context.vocab_size
        self._text = Noise("context", context)
        self._first = Noise("uniform", context) if options.init == "vocabulary" else self._text
        kept = options.guess_set_size
        self._pool: Pool | RingPool = RingPool(kept) if options.lru == "never" else Pool(kept)
        self._window: list[list[int]] = []
        self._passed: int | None = None
        self._guesses: list[Ngram] = []  # the pooled n-grams of the last tree
        self._start = 1  # first row of the window in the last tree; column 0 of row 0 is the root
        self._prefilled = False

    @staticmethod
    def max_rows(options: Options) -> int:
        w, n = options.window_size, options.ngram_size
        # While the window fills, it has fewer but longer rows; the prompt is sent with a single one.
        window = max(rows * (w + n - 1 - rows) for rows in range(1, n))
        return window + options.guess_set_size * (n - 1)

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        w, n = self._options.window_size, self._options.ngram_size
        self._text.see(prompt)
        if self._options.pool_from_prompt:
            for end in range(n, len(prompt) + 1):
                self._pool_text(prompt[end - n : end])
        if self._options.init == "const":
            ids = [(_CONST + column) % self._vocab for column in range(w)]
            self._passed, self._window = ids[0], [ids[1:], *(list(ids) for _ in range(n - 2))]
            return None
        self._window = [self._first.draw(w + n - 3)]
        return TokenTree.chain([prompt[-1], *self._window[0]], drafts_only=True) if n > 2 else None

    def observe(self, result: StepResult) -> None:
        if not self._prefilled:
            self._prefilled = True
            if len(result.next_tokens) > 1:  # row 0 was sent with the prompt
                self._passed, *first = self._window[0]
                self._window = [first, list(result.next_tokens[1:])]
        else:
            self._refresh(result)
        for token in result.emitted:
            self._text.see([token])
            if self._options.pool_from_prompt:
                self._pool_text(self._text.seen[-self._options.ngram_size :])

    def draft(self) -> TokenTree:
        last, share = self._text.seen[-1], self._options.share_prefixes
        self._guesses = self._pool.of(last)
        tree = Branches(last)
        if self._options.layout == "ngrams":
            branches = _by_depth(tree, self._guesses, share)
            self._graft_window(tree)
            window, pooled = len(tree) - self._start, self._start - 1
            origins = ["window", *["pool"] * pooled, *["window"] * window]
        else:
            self._graft_window(tree)
            window = len(tree) - 1
            branches = [tree.add(ngram, share=share) for ngram in self._guesses]
            origins = ["window"] * (1 + window) + ["pool"] * (len(tree) - 1 - window)
        accept = [self._options.accept_window or origin == "pool" for origin in origins]
        accept[0] = True
        if not self._options.full_accept_bonus:  # the last token of a full n-gram is computed but never emitted
            for rows in branches:
                accept[rows[-1]] = False
        return tree.tree(accept, origins)

    def _graft_window(self, tree: Branches) -> None:
        """Make each node of the window a child of the node above it in its column; row 0 is a chain."""
        self._start = len(tree)
        parents = _window_parents(len(self._window), len(self._window[0]) + 1, self._start)
        tree.graft([token for row in self._window for token in row], parents)

    def _refresh(self, result: StepResult) -> None:
        """Extend every column by the target's token, collect the n-grams, and move the window."""
        rows, width, accepted = len(self._window), len(self._window[0]) + 1, len(result.path) - 1
        next_tokens = [result.next_tokens[0], *result.next_tokens[self._start :]]
        new = next_tokens[(rows - 1) * width : rows * width]
        if rows < self._options.ngram_size - 1:  # still filling: the rows lose a column when the next row is added
            self._passed = self._window[0][0] if self._window[0] else None
            self._window = [row[1:] for row in self._window] + [new[1:]]
            return
        last = self._text.seen[-1]
        if self._options.lru == "used":  # before the inserts, which may drop an n-gram that was just used
            agreed = [_agreement(ngram, result.emitted) for ngram in self._guesses]
            for ngram, length in zip(self._guesses, agreed, strict=True):
                if length and length == max(agreed):
                    self._pool.touch(last, ngram)
        guessed = self._options.first_key == "guess" and self._passed is not None
        heads = [self._passed if guessed else last, *self._window[0]]
        for head, *rest in zip(heads, *self._window[1:], new, strict=True):
            self._pool.insert(head, tuple(rest))
        self._move([*self._window[1:], new], accepted)

    def _move(self, window: list[list[int]], accepted: int) -> None:
        """Make the rows (all ``window_size`` wide) the window after ``accepted`` more tokens."""
        if self._options.shift == "accepted" and accepted:
            window = [(row + self._text.draw(accepted))[accepted:] for row in window]
        elif self._options.shift == "rows" and len(window) > 1:
            for _ in range(accepted):
                window = [*window[1:], window[1]]
        self._passed = window[0][0]
        self._window = [window[0][1:], *window[1:]]

    def _pool_text(self, ngram: Sequence[int]) -> None:
        if len(ngram) == self._options.ngram_size:
            self._pool.insert(ngram[0], tuple(ngram[1:]))


def _agreement(ngram: Sequence[int], emitted: Sequence[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ngram, emitted, strict=False)))


def _by_depth(tree: Branches, ngrams: Sequence[Ngram], share: bool) -> list[list[int]]:
    """Add the first tokens of all n-grams, then their second ones, and so on; return the rows of each n-gram."""
    branches: list[list[int]] = [[] for _ in ngrams]
    for tokens in zip(*ngrams, strict=True):
        for rows, token in zip(branches, tokens, strict=True):
            rows += tree.add([token], rows[-1] if rows else 0, share=share)
    return branches


@cache
def _window_parents(rows: int, width: int, start: int) -> list[int]:
    """Parents of the window's rows from row ``start`` on: row 0 is a chain; (r, i) is a child of (r-1, i)."""
    parents = [*range(width - 1), *range((rows - 1) * width)]
    return [parent and parent + start - 1 for parent in parents]
