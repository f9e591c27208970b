"""Building blocks of drafters: random guesses, the Jacobi chain, n-gram lookup, and trees built branch by branch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from specbench.decoding.tree import StepResult, TokenTree

if TYPE_CHECKING:
    from specbench.decoding.protocol import Context


class Branches:
    """A tree under construction. Branches with a common prefix share its rows, so that the forward computes fewer."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._children: dict[tuple[int, int], int] = {}  # (parent row, token) -> row

    def graft(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Append rows that are never shared with other branches; parents are rows of the whole tree."""
        self.tokens += tokens
        self.parents += parents

    def add(self, path: Sequence[int], under: int = 0, *, share: bool = True) -> list[int]:
        """Add a chain of tokens under a row and return the row of each token."""
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
        """Return the tree; ``accept`` and ``origins`` as in :class:`TokenTree`."""
        return TokenTree(self.tokens, self.parents, accept, origins)


class JacobiChain:
    """Chain of guesses that are all updated by each forward (Santilli et al. 2023, Algorithm 2).

    A forward over the chain ``d`` gives ``g[i]``, the target's token after ``d[0..i]``. With ``m`` matches the engine
    commits ``d[0..m]``; ``g[m]`` is then known to be correct, and ``g[m+1:]`` are the next guesses: the Jacobi update.
    A correct guess after a wrong one is kept only if the target predicts it again.

    Args:
        size: tokens of a full chain, including the verified first one.
        noise: source of new guesses; it must have seen the prompt, and all emitted tokens before each :meth:`update`.
        sliding: refill the chain after every forward, instead of finishing a block before the next begins.
    """

    def __init__(self, size: int, noise: Noise, *, sliding: bool = False) -> None:
        self._size = size
        self._noise = noise
        self._sliding = sliding
        self.tokens: list[int] = []  # tokens[0] is the last emitted token; empty before the prefill
        self._fresh = 0  # tokens at the end that no forward has updated yet

    def with_prompt(self, last: int) -> TokenTree:
        """Return guesses to send with a prompt that ends in ``last``; the prefill turns them into the first chain."""
        return TokenTree.chain([last, *self._noise.draw(self._size - 1)], drafts_only=True)

    def update(self, result: StepResult) -> bool:
        """Take the result of a forward over :meth:`tree`; return True if a block is finished and a new one begins."""
        accepted = len(result.path)
        block_done = accepted == len(result.next_tokens)
        if not self.tokens:  # prefill: every row's next token is part of the first chain
            self.tokens = list(result.next_tokens)
        elif self._sliding:
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:]]
        else:  # the last row's next token is outside the block, unless it is the bonus token of a fully accepted path
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:-1]]
        self._fresh = self._size - len(self.tokens) if self._sliding or block_done else 0
        if self._fresh:
            self.tokens += self._noise.draw(self._fresh)
        return block_done

    def tree(self) -> TokenTree:
        """Return the chain as a tree without branches."""
        guesses = len(self.tokens) - self._fresh
        return TokenTree.chain(self.tokens, origins=["guess"] * guesses + ["noise"] * self._fresh)


class NgramIndex:
    """A growing text with the positions of all n-grams up to ``longest``; a token adds up to ``longest`` entries."""

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._ends: list[dict[tuple[int, ...], list[int]]] = [defaultdict(list) for _ in range(longest)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for size, ends in enumerate(self._ends[:end], 1):
                ends[tuple(self.tokens[end - size :])].append(end)

    def ends(self, ngram: tuple[int, ...]) -> Sequence[int]:
        """Return the ends of an n-gram's occurrences, oldest first, including one at the end of the text."""
        return self._ends[len(ngram) - 1].get(ngram, ())

    def before(self, size: int) -> Sequence[int]:
        """Return the ends of earlier occurrences of the last ``size`` tokens, oldest first."""
        if size > len(self.tokens):
            return []
        return self._ends[size - 1][tuple(self.tokens[-size:])][:-1]


Kind = Literal["context", "uniform", "pad"]


class Noise:
    """Source of random guesses.

    Args:
        kind: ``context`` samples with replacement from prompt and output ("ahead noise", Wang et al. 2024, §3.3; also
            new blocks of CLLM and Jacobi Forcing), ``uniform`` samples from the vocabulary, ``pad`` repeats the pad
            token.
        context: provides vocabulary size, pad token and the request's random generator.
    """

    def __init__(self, kind: Kind, context: Context) -> None:
        self._kind = kind
        self._context = context
        self.seen: list[int] = []  # prompt and output, oldest first

    def see(self, tokens: Iterable[int]) -> None:
        """Add tokens of the prompt or the output."""
        self.seen += tokens

    def draw(self, count: int) -> list[int]:
        """Return ``count`` independent guesses."""
        if self._kind == "context":
            return self._context.rng.choices(self.seen, k=count)
        if self._kind == "uniform":
            return [self._context.rng.randrange(self._context.vocab_size) for _ in range(count)]
        return [self._context.pad_id] * count
