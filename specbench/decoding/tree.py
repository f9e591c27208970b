"""What goes into one target forward, a token tree, and what comes out of it (DESIGN §2). Host data, no torch needed."""

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


#: Words for how a draft was made, and what they mean. Methods may use others.
ORIGINS: Mapping[str, str] = {
    "draft": "drafted",
    "guess": "Jacobi guess: the target's token under the drafts before it",
    "noise": "fresh guess, drawn at random",
    "block": "guess of a block drafted ahead (pseudo-active)",
    "pool": "pooled or recycled n-gram",
    "window": "row of the lookahead window",
    "lookup": "copied from earlier text",
    "earlier": "copied from the answer to an earlier prompt",
    "corpus": "copied from a corpus",
    "adjacent": "what the target found likely behind the same token before",
    "head": "drafted by a head",
    "draft-model": "written by a draft model",
}


class BadTree(UsageError, ValueError):
    """A tree that no engine can step, whoever drafted it; the text says why."""


# Types that need no further look; there may be hundreds of values in each step.
_INTEGERS, _TRUTHS = frozenset({int}), frozenset({bool})
_TEXTS, _NUMBERS = frozenset({str}), frozenset({float, type(None)})


def _whole(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Integers as a tuple of Python's own."""
    found = tuple(values)
    if _INTEGERS.issuperset(map(type, found)):
        return found
    for each in found:
        if isinstance(each, bool) or not hasattr(each, "__index__"):
            raise ValueError(f"{what} {each!r:.40} is no integer")
    return tuple(int(index(each)) for each in found)


def _flags(values: Iterable[Any]) -> tuple[bool, ...]:
    """Truth values as a tuple of Python's own, those of numpy included."""
    found = tuple(values)
    if _TRUTHS.issuperset(map(type, found)):
        return found
    plain = tuple(each.item() if hasattr(each, "item") else each for each in found)
    for each in plain:
        if type(each) is not bool:
            raise ValueError(f"accept flag {each!r:.40} is neither True nor False")
    return plain


def _words(values: Iterable[Any], rows: int) -> str | tuple[str, ...]:
    """Origins, one for all rows or one for each."""
    if isinstance(values, str):
        return str(values)
    found = tuple(values)
    if len(found) != rows:
        raise ValueError(f"{rows} rows have {len(found)} origins; give one for all, or one for each")
    if not _TEXTS.issuperset(map(type, found)):
        for each in found:
            if not isinstance(each, str):
                raise ValueError(f"origin {each!r:.40} is no text")
    return found


def _scores(values: Iterable[Any], rows: int) -> tuple[float | None, ...]:
    """Scores of a tree's rows."""
    found = tuple(values)
    if len(found) != rows:
        raise ValueError(f"{rows} rows have {len(found)} scores; give one for each, or None for the tree")
    if not _NUMBERS.issuperset(map(type, found)) or any(map(ne, found, found)):  # NaN is not equal to itself
        for each in found:
            if each is not None and (isinstance(each, bool) or not isinstance(each, Real) or each != each):
                raise ValueError(f"score {each!r:.40} is neither a number nor None")
    return found


#: Of the rows of a tree, or what finds them in it.
Scores: TypeAlias = "Sequence[float | None] | Callable[[TokenTree], Sequence[float | None]]"


@dataclass(frozen=True)
class Proposal:
    """Proposal: what the drafts of a chain were drawn from.

    Each draft was drawn from its row, given the drafts before it, by numbers that nothing else is decided by: neither
    the target's noise, nor those of any earlier block, whose rejected drafts have had a say in where it ended. Nor may
    it hang on ``next_tokens`` or ``top`` of rows that were not accepted, which tell the target's noise ahead, whether a
    tree has a proposal. Above temperature 0 the engine then accepts by block verification
    (:mod:`specbench.engine.block_verification`): more of a block, and a text of AR's distribution in place of AR's
    text. A method whose trees have proposals says so in :meth:`~specbench.decoding.Decoder.own_noise`. Greedy, forced
    and in a prefill a proposal decides nothing.

    Attributes:
        probabilities: float32 [rows - 1, W] on the target's device: of the drafts in rows 1, 2, …; not negative, of sum
            1 in each row, and not to be changed any more.
        ids: int64 [W], the target's tokens that the columns are of, each once; None is the first W of them.
    """

    probabilities: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class TokenTree:
    """A draft to verify in one target forward.

    It is checked and copied when it is made, and does not change afterwards: a method may reuse the lists that it made
    a tree of. Integers and truth values of numpy are taken for Python's.

    Row 0 is the root: the last emitted token, whose KV is not cached yet. The position of a row is the cache length
    plus its depth; a row attends to the cache and to its ancestors. Duplicate siblings are allowed: the deepest
    reached path wins.

    Attributes:
        tokens: token id of each row, shape [rows].
        parents: row index of each row's parent, -1 for the root, shape [rows]; parents come before children.
        accept: rows that may be emitted, shape [rows]; None means all. A row that only generates drafts (a window
            column, a guess fed along with the prompt) is False: its next token is computed, it is never committed.
        origins: how the drafts were made, in the field's words (:data:`ORIGINS`): one word for all rows, or a word per
            row, shape [rows]; the root's own is never looked at. For people who read a trace; no decision hangs on it.
        scores: natural log-probability that the drafter gave each row's token under its parent, at temperature 1, shape
            [rows]; None for a row, or for the tree, of which the drafter has none. Or a function of the tree that finds
            them: it is called with ``--trace`` alone, once the clock has stopped. No decision hangs on it either, and
            trees that differ in nothing else are equal.
        proposal: what the drafts were drawn from, of a chain all of whose rows may be emitted; None where they were not
            drawn, or nobody says from what.

    Raises:
        ValueError: lengths or types are wrong, the root is not row 0, a parent does not come before its child, a score
            is NaN, or what has a proposal is no chain.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    accept: Sequence[bool] | None = field(default=None)
    origins: str | Sequence[str] = "draft"
    scores: Scores | None = field(default=None, compare=False, repr=False)
    proposal: Proposal | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        fields = self.__dict__  # a frozen class sets its fields one call at a time
        tokens = fields["tokens"] = _whole("token", self.tokens)
        rows = len(tokens)
        parents = self.parents
        if type(parents) is not range:
            parents = fields["parents"] = _whole("parent", parents)
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
        if type(parents) is not range or parents.step != 1:  # such a range is a chain
            for row in range(1, rows):
                if not 0 <= parents[row] < row:
                    raise ValueError(f"row {row} has parent {parents[row]}; parents come before their children")
        if self.proposal is not None:
            if not isinstance(self.proposal, Proposal):
                raise ValueError(f"its proposal is {type(self.proposal).__name__:.40}, where a Proposal is needed")
            if not self.is_chain or not all(self.accept or ()):
                raise ValueError("what has a proposal is a chain, all of whose rows may be emitted")
            if len(self.proposal.probabilities) != rows - 1:
                raise ValueError(f"{rows - 1} drafts have a proposal of {len(self.proposal.probabilities)}")

    def __len__(self) -> int:
        return len(self.tokens)

    def row_scores(self) -> Sequence[float | None] | None:
        """The scores of its rows, found now where they were not yet; None where the drafter has none."""
        found = self.scores(self) if callable(self.scores) else self.scores
        return None if found is None else _scores(found, len(self))

    @property
    def depth(self) -> int:
        """Rows on the longest path, the root not counted."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return max(depths)

    @property
    def is_chain(self) -> bool:
        """Whether each row hangs under the one before it."""
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
        """A tree without branches: ``tokens[0]`` is the root and each later token hangs under the one before.

        ``drafts_only``: mark every guess as a row that is never emitted.
        """
        accept = [True] + [False] * (len(tokens) - 1) if drafts_only else None
        return cls(tokens, range(-1, len(tokens) - 1), accept, origins, scores, proposal)


@dataclass(frozen=True)
class Branch:
    """Branch: the best path of a drafted tree by the scores of what drafted it, and what they promise.

    Attributes:
        step: which forward behind the prefill its tree went into, from 0.
        tokens: from below the root down to a leaf, the best-scored child each time; at least one.
        logp: sum over them of the natural log-probability that the drafter gave each, at temperature 1.
    """

    step: int
    tokens: Sequence[int]
    logp: float


@dataclass(frozen=True, init=False)
class StepResult:
    """What one target forward decided for one slot. Host data.

    Attributes:
        emitted: tokens committed by this forward, at least one: the accepted drafts, then the target's own next token.
        path: rows accepted, root first; ``len(emitted) == len(path)``.
        next_tokens: the target's next token after each row of the tree, shape [rows].
        top: with ``top_k``: (scores, ids), each [rows, k], highest first; the scores are what the sampler maximises.
        hidden: with ``taps``: the tapped layers' outputs, one beside the other, of the tokens that this call put in the
            cache, in their order, [tokens, taps × hidden size]. On the device, and only until the next step.
        probabilities: with ``probabilities``: what the token after each row is drawn from, behind temperature, top-k
            and top-p, float32 [rows, V]. On the device, and only until the next step.
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
        # One is made for each sequence and step, and a frozen class sets its fields one call at a time.
        fields = self.__dict__
        fields["emitted"], fields["path"], fields["next_tokens"] = emitted, path, next_tokens
        fields["top"], fields["hidden"], fields["probabilities"] = top, hidden, probabilities


#: Entry of a row that is not forced: its next token is the target's own.
COMPUTED = -1
