"""Degeneration: how much of an answer is one loop up to its end, how many of its n-grams differ, and agreement.

A text that repeats itself is easy to draft. Figures are of the token ids of an answer's text, without the stop token
and what belongs to a stop string: a loop that was stopped is a loop too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import mean

from specbench.results import RequestRecord

#: Tokens of the longest round looked for: a long sentence. Recipes drop the rounds of such answers before they learn.
LONGEST = 48

#: Rounds of a closing loop. Two of a longer one are also what a text with two equal paragraphs ends in.
ROUNDS = 3

#: Tokens of the shortest closing loop, all rounds together. Shorter ones end sound texts, too: "1000000", ")))", four
#: empty lines, a row of a table.
LEAST = 16

#: Lengths of the n-grams that are counted: 1 and 2 as Li et al. (2016) have them, 4 as Welleck et al. (2020).
GRAMS = (1, 2, 4)


@dataclass(frozen=True)
class Loop:
    """A suffix that repeats its first ``period`` tokens to its end; the last round may be broken off."""

    start: int
    period: int


def closing_loops(ids: Sequence[int], rounds: int, longest: int = LONGEST) -> Iterator[Loop]:
    """The loops that token ids end in, shortest round first; at least ``rounds`` whole rounds of at most ``longest``
    tokens.
    """
    for period in range(1, min(longest, len(ids) // rounds) + 1):
        same = len(ids)
        while same > period and ids[same - 1] == ids[same - 1 - period]:
            same -= 1
        if len(ids) - same >= (rounds - 1) * period:  # a first round, and at least so many that repeat it
            yield Loop(same - period, period)


def closing_loop(ids: Sequence[int]) -> Loop | None:
    """The longest loop that token ids end in; None where they end in none of :data:`LEAST` tokens."""
    found = min(closing_loops(ids, ROUNDS), key=lambda loop: loop.start, default=None)
    return found if found is not None and len(ids) - found.start >= LEAST else None


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Different n-grams of token ids over all of them; None of a text that is shorter."""
    count = len(ids) - n + 1
    return len({*zip(*(ids[at:] for at in range(n)), strict=False)}) / count if count > 0 else None


@dataclass(frozen=True)
class Degeneration:
    """Loops and n-grams of some answers.

    ``share`` is tokens of closing loops over all kept tokens; ``distinct`` is by n the mean over answers of
    :func:`distinct`.
    """

    looping: int
    share: float | None
    distinct: dict[int, float | None]


def text_ids(record: RequestRecord) -> Sequence[int]:
    """The token ids of an answer's text."""
    return record.output_ids[: max(0, record.text_tokens)]


def loops_at_its_end(record: RequestRecord) -> bool:
    """Whether an answer ends in a closing loop."""
    return closing_loop(text_ids(record)) is not None


def degeneration(answers: Sequence[tuple[Sequence[int], int]]) -> Degeneration:
    """The figures of some answers: of each the token ids of its text, and how many tokens were kept in all."""
    found = [(ids, closing_loop(ids)) for ids, _ in answers]
    lengths = [len(ids) - loop.start for ids, loop in found if loop]
    tokens = sum(kept for _, kept in answers)
    shares = {n: [one for ids, _ in answers if (one := distinct(ids, n)) is not None] for n in GRAMS}
    return Degeneration(
        looping=len(lengths),
        share=sum(lengths) / tokens if tokens else None,
        distinct={n: mean(known) if known else None for n, known in shares.items()},
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement over pairs of answers: share of equal positions (over those that either answer has), mean common
    prefix.
    """

    share: float
    prefix_tokens: float


def agreement(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Agreement | None:
    """Compare pairs of token ids, two rows' answers to the same request; None without any position."""
    prefixes, same, positions = list[int](), 0, 0
    for mine, other in pairs:
        equal = [a == b for a, b in zip(mine, other, strict=False)]
        same += sum(equal)
        positions += max(len(mine), len(other))
        prefixes.append(sum(takewhile(bool, equal)))
    return Agreement(same / positions, sum(prefixes) / len(prefixes)) if positions else None
