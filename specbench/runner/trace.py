"""Record how each token of an answer was drafted; computed after the request, when its clock has stopped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from specbench.decoding import FILLED, Branch, TokenTree
from specbench.results import BONUS, LETTERS, PREFILL, Draft, DraftedBranch, TokenTrace, acceptance_histogram
from specbench.runner.stop import Decode, Output

_HALF = "\ufffd"  # half a character decodes to this


class Verified(NamedTuple):
    """One step of one sequence; ``origins`` are of the accepted drafts without the root.

    ``accept``: flag per row whether it may be accepted; None if all may.
    """

    rows: int
    accept: Sequence[bool] | None
    origins: Sequence[str]
    whole: tuple[TokenTree, Sequence[int]] | None


def verified(tree: TokenTree, path: Sequence[int], *, whole: bool) -> Verified:
    """The recorded part of a step with the accepted rows ``path``, root first."""
    words, accepted = tree.origins, path[1:]
    origins = [words] * len(accepted) if isinstance(words, str) else [words[row] for row in accepted]
    return Verified(len(tree), tree.accept, origins, (tree, path) if whole else None)


def filled(rows: int, tokens: int) -> Verified:
    """The recorded part of a pass over ``rows`` masked positions after which ``tokens`` more are final."""
    return Verified(rows, [True] + [False] * (rows - 1), [FILLED] * tokens, None)


def acceptance(steps: Sequence[Verified]) -> dict[str, Any]:
    """The record's ``draft_tokens`` and ``acceptance_histogram``."""
    drafted = [(sum(step.accept) if step.accept else step.rows) - 1 for step in steps]
    accepted = [len(step.origins) for step, nodes in zip(steps, drafted, strict=True) if nodes > 0]
    return {"draft_tokens": sum(drafted), "acceptance_histogram": acceptance_histogram(accepted)}


def token_trace(output: Output, accepts: Sequence[int], steps: Sequence[Verified], first: int = 1) -> TokenTrace:
    """The trace of a finished answer whose prefill emitted ``first`` tokens.

    Raises ValueError if its drafts have more origins than there are letters."""
    letters = _Letters()
    origins = [letters[PREFILL]] * first
    for kept, step in zip(accepts, steps, strict=True):
        origins += [letters[word] for word in (*step.origins, BONUS)[:kept]]
    decode, text = output.rule.decode, output.text()
    trees = [step.whole for step in steps if step.whole]
    drafts = [_draft(tree, path, letters) for tree, path in trees]
    return TokenTrace(
        words=list(letters),
        origins="".join(origins),
        rows=[step.rows for step in steps],
        chars=characters(output.ids, decode),
        tail=decode(output.ids)[len(text) :],
        drafts=drafts or None,
        pieces=pieces({token for draft in drafts for token in draft.ids}, output.ids, decode) if drafts else None,
    )


#: Number of trees per request whose best branch is kept, evenly spread over the answer.
SPREAD = 8

_NATS = 1e15  # larger values are not log-probabilities


def spread_branches(branches: Sequence[Branch], kept: int) -> list[DraftedBranch]:
    """Up to :data:`SPREAD` of a request's branches with tokens and a finite score, from its beginning to its end."""
    mine = [
        branch
        for branch in branches
        if len(branch.tokens) and 0 <= branch.step < kept and -_NATS <= branch.logp <= _NATS
    ]
    count = min(SPREAD, len(mine))
    chosen = [mine[at * len(mine) // count] for at in range(count)]
    return [DraftedBranch(step=each.step, ids=list(each.tokens), log_probability=each.logp) for each in chosen]


class _Letters(dict[str, str]):
    """A letter for each word, in order of appearance."""

    def __missing__(self, word: str) -> str:
        if len(self) == len(LETTERS):
            raise ValueError(f"a trace holds {len(LETTERS)} different origins at most; '{word}' is one more")
        self[word] = LETTERS[len(self)]
        return self[word]


def _draft(tree: TokenTree, path: Sequence[int], letters: _Letters) -> Draft:
    words = [tree.origins] * len(tree) if isinstance(tree.origins, str) else tree.origins
    parents = list(tree.parents[1:])
    return Draft(
        ids=list(tree.tokens[1:]),
        parents=None if parents == list(range(len(parents))) else parents,
        origins="".join(letters[word] for word in words[1:]),
        draft_only=[row for row, accept in enumerate(tree.accept or ()) if not accept],
        path=list(path[1:]),
        scores=_scores(tree),
    )


_DIGITS = 4  # decimals of nats; smaller differences do not matter


def _scores(tree: TokenTree) -> list[float | None] | None:
    """The drafter's scores of the rows below the root; None without scores."""
    found = [
        round(score, _DIGITS) if score is not None and -_NATS <= score <= _NATS else None
        for score in (tree.row_scores() or ())[1:]
    ]
    return found if any(score is not None for score in found) else None


def characters(ids: Sequence[int], decode: Decode) -> list[int]:
    """How many characters of ``decode(ids)`` each id brings, shape [ids]; they add up to all of them.

    Only adjacent ids are decoded together, because decoding every prefix is quadratic. A token's characters are those
    that no later token changes.
    """
    counts: list[int] = []
    text = ""
    start = read = 0  # text after ``read`` may still change; ``start`` lies before it, for the context
    for end in range(1, len(ids) + 1):
        now = decode(ids[start:end])
        if now.endswith(_HALF) and end < len(ids):
            counts.append(0)
            continue
        piece = now[len(decode(ids[start:read])) :]
        counts.append(len(piece))
        text += piece
        start, read = read, end
    whole = decode(ids)
    return counts if text == whole else _by_prefixes(ids, decode, whole)


def _by_prefixes(ids: Sequence[int], decode: Decode, text: str) -> list[int]:
    counts: list[int] = []
    settled = 0
    for end in range(1, len(ids) + 1):
        common = len(text)
        if end < len(ids):
            common = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(decode(ids[:end]), text, strict=False))
            )
        counts.append(max(0, common - settled))
        settled = max(settled, common)
    return counts


def pieces(wanted: set[int], text: Sequence[int], decode: Decode) -> dict[int, str]:
    """Decode each ``wanted`` id after a word of ``text``, because some tokenizers drop a leading space."""
    word = next(([one] for one in text if decode([one]).strip(f" {_HALF}")), [])
    before = len(decode(word))
    return {token: decode([*word, token])[before:] for token in sorted(wanted)}
