"""Drafts: what several drafters are built of, fresh guesses, the Jacobi chain, n-gram lookup and branches. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from specbench.decoding.tree import StepResult, TokenTree

if TYPE_CHECKING:
    from specbench.decoding.protocol import Context


class Branches:
    """A tree under construction. Branches that begin alike share rows: a row less is a row less to compute."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._children: dict[tuple[int, int], int] = {}  # (parent row, token) -> row

    def graft(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Appends rows whose shape is known, none of which is ever shared; parents are rows of the whole tree."""
        self.tokens += tokens
        self.parents += parents

    def add(self, path: Sequence[int], under: int = 0, *, share: bool = True) -> list[int]:
        """Hang a chain of tokens under a row; returns the row of each token."""
        rows = []
        for token in path:
            row = self._children.get((under, token)) if share else None
            if row is None:
                row = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(under)
                self._children.setdefault((under, token), row)
            rows.append(row)
            under = row
        return rows

    def __len__(self) -> int:
        return len(self.tokens)

    def tree(self, accept: Sequence[bool] | None = None, origins: str | Sequence[str] = "draft") -> TokenTree:
        """The tree; ``accept`` and ``origins`` as in :class:`TokenTree`."""
        return TokenTree(self.tokens, self.parents, accept, origins)


class JacobiChain:
    """Jacobi chain: guesses in a row, all refreshed by each forward (Santilli et al. 2023, Algorithm 2).

    A forward over the chain ``d`` gives ``g[i]``, the target's token after ``d[0..i]``. With ``m`` matches the engine
    commits ``d[0..m]``; ``g[m]`` is then known to be right, and ``g[m+1:]`` are the next guesses: the Jacobi update. A
    token that came out right behind a wrong one lives on only if the target says it again.

    Args:
        size: tokens of a full chain, the verified first one included.
        noise: source of fresh guesses; it has seen the prompt, and everything emitted before each :meth:`update`.
        sliding: refill the chain after every forward, instead of finishing a block before the next begins.
    """

    def __init__(self, size: int, noise: Noise, *, sliding: bool = False) -> None:
        self._size = size
        self._noise = noise
        self._sliding = sliding
        self.tokens: list[int] = []  # tokens[0] is the last emitted token; empty before the prefill
        self._fresh = 0  # tokens at its end that no forward has refreshed yet

    def with_prompt(self, last: int) -> TokenTree:
        """Guesses to send along with a prompt that ends in ``last``: they come back as the first chain."""
        return TokenTree.chain([last, *self._noise.draw(self._size - 1)], drafts_only=True)

    def update(self, result: StepResult) -> bool:
        """Takes a forward over :meth:`tree`; True when a block is finished and a new one begun."""
        accepted = len(result.path)
        block_done = accepted == len(result.next_tokens)
        if not self.tokens:  # the prefill: every row gives a token of the first chain
            self.tokens = list(result.next_tokens)
        elif self._sliding:
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:]]
        else:  # the last row's own next token is outside the block, unless it is the bonus of a path that reached it
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:-1]]
        self._fresh = self._size - len(self.tokens) if self._sliding or block_done else 0
        if self._fresh:
            self.tokens += self._noise.draw(self._fresh)
        return block_done

    def tree(self) -> TokenTree:
        """The chain as a tree without branches."""
        guesses = len(self.tokens) - self._fresh
        return TokenTree.chain(self.tokens, origins=["guess"] * guesses + ["noise"] * self._fresh)


class NgramIndex:
    """A growing text with the places of all its n-grams; a new token costs ``longest`` entries, a lookup one."""

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._ends: list[dict[tuple[int, ...], list[int]]] = [defaultdict(list) for _ in range(longest)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends to the text."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for size, ends in enumerate(self._ends[:end], 1):
                ends[tuple(self.tokens[end - size :])].append(end)

    def ends(self, ngram: tuple[int, ...]) -> Sequence[int]:
        """Where an n-gram occurs, as ends of the occurrences, oldest first; at the end of the text too."""
        return self._ends[len(ngram) - 1].get(ngram, ())

    def before(self, size: int) -> Sequence[int]:
        """Where the last ``size`` tokens occurred before, oldest first."""
        if size > len(self.tokens):
            return []
        return self._ends[size - 1][tuple(self.tokens[-size:])][:-1]


Kind = Literal["context", "uniform", "pad"]


class Noise:
    """Draws guesses.

    Args:
        kind: ``context`` draws with replacement from prompt and output ("ahead noise", Wang et al. 2024, §3.3; also
            CLLM's and Jacobi Forcing's fresh blocks), ``uniform`` from the vocabulary, ``pad`` repeats the pad token.
        context: brings vocabulary, pad token and the request's own generator.
    """

    def __init__(self, kind: Kind, context: Context) -> None:
        self._kind = kind
        self._context = context
        self.seen: list[int] = []  # prompt and output, oldest first

    def see(self, tokens: Iterable[int]) -> None:
        """Adds tokens of the prompt or the output."""
        self.seen += tokens

    def draw(self, count: int) -> list[int]:
        """``count`` guesses, independent of each other."""
        if self._kind == "context":
            return self._context.rng.choices(self.seen, k=count)
        if self._kind == "uniform":
            return [self._context.rng.randrange(self._context.vocab_size) for _ in range(count)]
        return [self._context.pad_id] * count
