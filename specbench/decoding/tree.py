"""Define the input of one target forward, a token tree, and its result, both as host data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Real
from operator import eq, index, ne
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.common import UsageError

if TYPE_CHECKING:
    from torch import Tensor


#: Origins of drafts -> descriptions. Methods may use other words.
ORIGINS: Mapping[str, str] = {
    "draft": "drafted",
    "guess": "Jacobi guess: the target's token under the drafts before it",
    "noise": "new guess, sampled at random",
    "block": "guess of a block drafted ahead (pseudo-active)",
    "block-noise": "new guess in a block drafted ahead, sampled at random",
    "pool": "pooled or recycled n-gram",
    "window": "row of the lookahead window",
    "lookup": "copied from earlier text",
    "earlier": "copied from the answer to an earlier prompt",
    "corpus": "copied from a corpus",
    "adjacent": "tokens that the target found likely after the same token earlier",
    "head": "drafted by a head",
    "draft-model": "written by a draft model",
    "filled": "predicted at a masked position",
}
#: Origin of tokens of a method that fills masked blocks.
FILLED = "filled"


class BadTree(UsageError, ValueError):
    """A tree that the engine cannot verify; the message says why."""


# Types that need no conversion: a fast path, since each step may have hundreds of values.
_INTEGERS, _TRUTHS = frozenset({int}), frozenset({bool})
_TEXTS, _NUMBERS = frozenset({str}), frozenset({float, type(None)})


def as_integers(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Convert integers to a tuple of Python ints."""
    found = tuple(values)
    if _INTEGERS.issuperset(map(type, found)):
        return found
    for each in found:
        if isinstance(each, bool) or not hasattr(each, "__index__"):
            raise ValueError(f"{what} {each!r:.40} is not an integer")
    return tuple(int(index(each)) for each in found)


def _flags(values: Iterable[Any]) -> tuple[bool, ...]:
    """Convert truth values, numpy's included, to a tuple of Python bools."""
    found = tuple(values)
    if _TRUTHS.issuperset(map(type, found)):
        return found
    plain = tuple(each.item() if hasattr(each, "item") else each for each in found)
    for each in plain:
        if type(each) is not bool:
            raise ValueError(f"accept flag {each!r:.40} is neither True nor False")
    return plain


def _words(values: Iterable[Any], rows: int) -> str | tuple[str, ...]:
    """Check origins: one word for all rows, or one per row."""
    if isinstance(values, str):
        return str(values)
    found = tuple(values)
    if len(found) != rows:
        raise ValueError(f"{rows} rows have {len(found)} origins; give one for all rows, or one per row")
    if not _TEXTS.issuperset(map(type, found)):
        for each in found:
            if not isinstance(each, str):
                raise ValueError(f"origin {each!r:.40} is not a string")
    return found


def _scores(values: Iterable[Any], rows: int) -> tuple[float | None, ...]:
    """Check the scores of a tree's rows."""
    found = tuple(values)
    if len(found) != rows:
        raise ValueError(f"{rows} rows have {len(found)} scores; give one per row, or None for the tree")
    if not _NUMBERS.issuperset(map(type, found)) or any(map(ne, found, found)):  # NaN is not equal to itself
        for each in found:
            if each is not None and (isinstance(each, bool) or not isinstance(each, Real) or each != each):
                raise ValueError(f"score {each!r:.40} is neither a number nor None")
    return found


#: Scores of a tree's rows, or a function that computes them from the tree.
Scores: TypeAlias = "Sequence[float | None] | Callable[[TokenTree], Sequence[float | None]]"


@dataclass(frozen=True)
class Proposal:
    """Distributions from which the drafts of a chain were sampled.

    Each draft must be sampled from its row, given the drafts before it, with random numbers that are used for nothing
    else: not the target's noise, and not the numbers of any earlier block, whose rejected drafts influenced where that
    block ended. Whether a tree has a proposal must not depend on ``next_tokens`` or ``top`` of rows that were not
    accepted, because these reveal the target's noise.

    Above temperature 0, the engine then uses block verification (:mod:`specbench.engine.block_verification`), which
    accepts more drafts; the text has AR's distribution but is not AR's text. A method whose trees have proposals
    declares this in :meth:`~specbench.decoding.Decoder.own_noise`. Proposals have no effect in greedy or forced
    decoding and in a prefill.

    Attributes:
        probabilities: float32 [rows - 1, W] on the target's device, for the drafts in rows 1, 2, …; not negative, each
            row sums to 1; must not be changed afterwards.
        ids: int64 [W], the target's token id of each column, without duplicates; None is ids 0 to W - 1.
    """

    probabilities: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class TypicalAcceptance:
    """Accept drafts that are probable enough instead of those that the target samples (Cai et al. 2024, §2.3.1).

    A draft is accepted if its probability under the target, given the drafts before it, is above
    min(epsilon, delta · exp(-entropy of that distribution)). The deepest accepted path wins, among equally deep ones
    the most probable one, and the token after it is the target's most probable one. Not lossless above temperature 0;
    at temperature 0 it has no effect.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class TokenTree:
    """A draft to verify in one target forward.

    It is checked and copied when it is created and does not change afterwards, so a method may reuse its lists. numpy's
    integers and truth values are converted.

    Row 0 is the root: the last emitted token, whose KV is not cached yet. The position of a row is the cache length
    plus its depth; a row attends to the cache and to its ancestors. Duplicate siblings are allowed: the deepest
    reached path wins.

    Attributes:
        tokens: token id of each row, shape [rows].
        parents: row index of each row's parent, -1 for the root, shape [rows]; parents come before children.
        accept: rows that may be emitted, shape [rows]; None means all. Draft-only rows (a window column, a guess sent
            with the prompt) are False: their next token is computed, but they are never committed.
        origins: how the drafts were made, in words of :data:`ORIGINS`: one word for all rows, or one per row, shape
            [rows]; the root's is ignored. Only shown in traces.
        scores: the drafter's natural log-probability of each row's token after its parent, at temperature 1, shape
            [rows]; None for a row, or for the whole tree, without scores. Or a function that computes them from the
            tree, which is called only with ``--trace`` after the clock has stopped. Scores do not affect decoding or
            the equality of trees.
        proposal: distributions from which the drafts were sampled, for a chain whose rows may all be emitted; None if
            the drafts were not sampled or their distributions are not known.

    Raises:
        ValueError: lengths or types are wrong, the root is not row 0, a parent does not come before its child, a score
            is NaN, or a tree with a proposal is not a chain.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    accept: Sequence[bool] | None = field(default=None)
    origins: str | Sequence[str] = "draft"
    scores: Scores | None = field(default=None, compare=False, repr=False)
    proposal: Proposal | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        fields = self.__dict__  # faster than the frozen dataclass's way of setting fields
        tokens = fields["tokens"] = as_integers("token", self.tokens)
        rows = len(tokens)
        parents = self.parents
        if type(parents) is not range:
            parents = fields["parents"] = as_integers("parent", parents)
        if self.accept is not None:
            fields["accept"] = _flags(self.accept)
        if rows == 0 or len(parents) != rows or (self.accept is not None and len(self.accept) != rows):
            raise ValueError("a token tree needs at least the root, and as many parents and accept flags as tokens")
        if type(self.origins) is not str:
            fields["origins"] = _words(self.origins, rows)
        if self.scores is not None and not callable(self.scores):
            fields["scores"] = _scores(self.scores, rows)
        if parents[0] != -1:
            raise ValueError(f"row 0 is the root and has parent -1, not {parents[0]}")
        if type(parents) is not range or parents.step != 1:  # a range with step 1 is a chain
            for row in range(1, rows):
                if not 0 <= parents[row] < row:
                    raise ValueError(f"row {row} has parent {parents[row]}; parents come before their children")
        if self.proposal is not None:
            if not isinstance(self.proposal, Proposal):
                raise ValueError(f"the proposal has type {type(self.proposal).__name__:.40}; give a Proposal")
            if not self.is_chain or not all(self.accept or ()):
                raise ValueError("a tree with a proposal must be a chain whose rows may all be emitted")
            if len(self.proposal.probabilities) != rows - 1:
                raise ValueError(f"{rows - 1} drafts have a proposal of {len(self.proposal.probabilities)} rows")

    def __len__(self) -> int:
        return len(self.tokens)

    def row_scores(self) -> Sequence[float | None] | None:
        """Return the scores of the rows, computing them if necessary; None if the drafter has none."""
        found = self.scores(self) if callable(self.scores) else self.scores
        return None if found is None else _scores(found, len(self))

    @property
    def depth(self) -> int:
        """Rows on the longest path, without the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return max(depths)

    @property
    def is_chain(self) -> bool:
        """Whether the parent of each row is the row before it."""
        return all(map(eq, self.parents, count(-1)))

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        drafts_only: bool = False,
        origins: str | Sequence[str] = "draft",
        scores: Scores | None = None,
        proposal: Proposal | None = None,
    ) -> TokenTree:
        """Return a tree without branches: ``tokens[0]`` is the root, and each later token is a child of the one before.

        ``drafts_only``: mark all rows but the root as draft-only.
        """
        accept = [True] + [False] * (len(tokens) - 1) if drafts_only else None
        return cls(tokens, range(-1, len(tokens) - 1), accept, origins, scores, proposal)


@dataclass(frozen=True)
class Branch:
    """The best path of a drafted tree according to the drafter's scores.

    Attributes:
        step: number of the forward that verified the tree, from 0 after the prefill.
        tokens: the best-scored child at each depth, from below the root to a leaf; at least one.
        logp: sum of the drafter's natural log-probabilities of these tokens, at temperature 1.
    """

    step: int
    tokens: Sequence[int]
    logp: float


@dataclass(frozen=True, init=False)
class StepResult:
    """Result of one target forward for one slot, as host data.

    Attributes:
        emitted: tokens emitted by this forward, at least one: the accepted drafts, then the bonus token.
        path: accepted rows, root first; ``len(emitted) == len(path)``.
        next_tokens: the target's next token after each row of the tree, shape [rows].
        top: with ``top_k``: (scores, ids), each [rows, k], highest first; the sampler maximises these scores.
        hidden: with ``taps``: concatenated outputs of the tapped layers for the tokens that this call added to the
            cache, in their order, [tokens, taps × hidden size]. On the device, and valid only until the next step.
        probabilities: with ``probabilities``: the distribution of the token after each row, after penalties and all
            filters (greedy: at temperature 1), float32 [rows, V]. On the device, and valid only until the next step.
    """

    emitted: list[int]
    path: list[int]
    next_tokens: list[int]
    top: tuple[Tensor, Tensor] | None = None
    hidden: Tensor | None = None
    probabilities: Tensor | None = None

    def __init__(
        self,
        emitted: list[int],
        path: list[int],
        next_tokens: list[int],
        top: tuple[Tensor, Tensor] | None = None,
        hidden: Tensor | None = None,
        probabilities: Tensor | None = None,
    ) -> None:
        # For speed: created for every sequence and step, and a frozen dataclass sets fields with one call each.
        fields = self.__dict__
        fields["emitted"], fields["path"], fields["next_tokens"] = emitted, path, next_tokens
        fields["top"], fields["hidden"], fields["probabilities"] = top, hidden, probabilities


#: Entry for a row without a forced token, whose next token is the target's own.
COMPUTED = -1
