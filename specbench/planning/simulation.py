"""Simulated acceptance: a method's real trees and forwards, with the number of tokens each step emits drawn at random.

Dummy weights accept next to nothing. Here the target's tokens along one path of the tree are prescribed: acceptance,
commit and all kernels run as ever, only the text means nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from specbench.common import UsageError, unknown_name
from specbench.decoding import COMPUTED, TokenTree
from specbench.results import SimulatedAcceptance

_WRITE = "write MEAN[:SPREAD] or LABEL=MEAN[:SPREAD], as in --simulate-acceptance 4:1.5"


def parse(specs: Sequence[str], rows: Mapping[str, int], baselines: Collection[str]) -> dict[str, SimulatedAcceptance]:
    """What ``--simulate-acceptance`` asks of each method: label -> mean and spread.

    ``specs`` are ``MEAN[:SPREAD]`` or ``LABEL=MEAN[:SPREAD]``, comma-separated; ``rows`` are those of each method's
    largest tree, which no forward can emit more tokens than; ``baselines`` are never simulated. Raises UsageError for a
    spec that is none, of no method, twice, or that no tree can reach.
    """
    chosen: dict[str, SimulatedAcceptance] = {}
    for spec in [part.strip() for many in specs for part in many.split(",")]:
        label, equals, figures = spec.rpartition("=")
        if equals and label in baselines:
            raise UsageError(f"--simulate-acceptance {spec}: {label} emits one token a forward; leave it out")
        if equals and label not in rows:
            raise unknown_name("method in --simulate-acceptance (it must be in --method)", label, rows)
        asked = _figures(spec, figures)
        if label in chosen:
            raise UsageError(f"--simulate-acceptance {spec}: {label or 'every method'} is set twice; keep one")
        chosen[label] = asked
    everybody = chosen.pop("", None)
    if everybody is not None:
        chosen = {label: chosen.get(label, everybody) for label in rows if label not in baselines}
        if not chosen:
            raise UsageError("--simulate-acceptance goes with a method that drafts; name one in --method")
    for label, asked in chosen.items():
        if asked.mean > rows[label]:
            raise UsageError(
                f"{label} drafts at most {rows[label]} rows, so it cannot emit {asked.mean:g} tokens a forward; lower "
                "--simulate-acceptance or give it a larger tree with --set"
            )
        most = math.sqrt((asked.mean - 1) * (rows[label] - asked.mean))
        if asked.spread > max(most, math.sqrt(_variance(asked.mean, 0))):
            raise UsageError(
                f"{label} emits 1 to {rows[label]} tokens a forward: with a mean of {asked.mean:g} SPREAD is "
                f"{math.floor(100 * most) / 100:g} or less"
            )
    return chosen


def _figures(spec: str, figures: str) -> SimulatedAcceptance:
    mean_text, colon, spread_text = figures.partition(":")
    try:
        mean, given = float(mean_text), float(spread_text) if colon else None
    except ValueError:
        raise UsageError(f"--simulate-acceptance {spec}: {_WRITE}") from None
    if not 1 <= mean < math.inf:
        raise UsageError(f"--simulate-acceptance {spec}: a forward emits 1 token at least, so MEAN is 1 or more")
    least = math.sqrt(_variance(mean, 0))
    spread = least if given is None else given
    if not least - 0.005 <= spread < math.inf:  # tokens are whole, so a mean of 3.4 varies; two digits are near enough
        raise UsageError(
            f"--simulate-acceptance {spec}: with a mean of {mean:g} SPREAD is {least:.2f} or more; or leave it out"
        )
    return SimulatedAcceptance(mean=mean, spread=max(spread, least))


def _pair(mean: float, width: int) -> tuple[int, int]:
    """The whole numbers around ``mean``, and ``width`` further out on either side; 1 at least."""
    return max(1, math.floor(mean) - width), math.floor(mean) + 1 + width


def _variance(mean: float, width: int) -> float:
    """Of a draw between the two numbers of :func:`_pair` that keeps ``mean``."""
    low, high = _pair(mean, width)
    return (mean - low) * (high - mean)


class Lengths:
    """Draws whole numbers of 1 or more with exactly the mean and the standard deviation asked for.

    Two numbers around the mean, as far apart as the spread wants; nothing is claimed of the shape.
    """

    def __init__(self, asked: SimulatedAcceptance) -> None:
        self._mean = asked.mean
        variance = asked.spread**2
        self._width = 0
        while _variance(asked.mean, self._width + 1) <= variance and asked.mean > 1:
            self._width += 1
        inner, outer = (_variance(asked.mean, width) for width in (self._width, self._width + 1))
        # Mixing two draws of one mean mixes their variances.
        self._wider = 0.0 if asked.mean == 1 else max(0.0, (variance - inner) / (outer - inner))

    def draw(self, rng: random.Random) -> int:
        """One number."""
        low, high = _pair(self._mean, self._width + (rng.random() < self._wider))
        return high if rng.random() * (high - low) < self._mean - low else low


@dataclass
class Acceptance:
    """Decides, step by step, what one sequence of one method accepts, with a random generator of its own.

    ``stop_ids`` are never accepted and never emitted, so that the budget ends the answer.
    """

    lengths: Lengths
    rng: random.Random
    vocab_size: int
    stop_ids: Collection[int]

    def forced(self, tree: TokenTree) -> list[int]:
        """The target's next token after each row, shape [rows]; :data:`COMPUTED` where it may say what it likes.

        The step emits as many tokens as were drawn, or as the tree's longest path has where that is shorter.
        """
        return force(tree, self.lengths.draw(self.rng), self._strange, self.stop_ids)

    @classmethod
    def of(cls, asked: SimulatedAcceptance, seed: str, vocab_size: int, stop_ids: Collection[int]) -> Acceptance:
        """The acceptance of one sequence; two of one ``seed`` are alike."""
        return cls(Lengths(asked), random.Random(f"simulate/{seed}"), vocab_size, stop_ids)

    def _strange(self, known: Collection[int]) -> int:
        """A token that is neither in ``known`` nor a stop."""
        for _ in range(64):
            token = self.rng.randrange(self.vocab_size)
            if token not in known and token not in self.stop_ids:
                return token
        left = [token for token in range(self.vocab_size) if token not in known and token not in self.stop_ids]
        if not left:
            raise UsageError(
                f"a row drafts all {self.vocab_size} tokens of the vocabulary, so that no acceptance ends there; give "
                "--simulate-acceptance a model with a larger one, or the method smaller trees"
            )
        return self.rng.choice(left)


def force(
    tree: TokenTree, wanted: int, strange: Callable[[Collection[int]], int], stop_ids: Collection[int] = ()
) -> list[int]:
    """The target's next tokens with which the acceptance rule emits ``wanted`` tokens, if the tree has that many.

    Accepted are the rows down to the first one at the depth wanted, or at the greatest depth before it. Rows that
    repeat these tokens next to them are given the same next tokens: the deepest row wins. ``strange`` finds a token
    that is not among those it is given, which ends the path.
    """
    tokens, parents, accept = tree.tokens, tree.parents, tree.accept
    depths = [1]  # of each row that the target can be made to reach; 0 of the others
    last = 0
    for row in range(1, len(tokens)):
        depth = depths[parents[row]]
        if depth and (accept is None or accept[row]) and tokens[row] not in stop_ids:
            depths.append(depth + 1)
            if depths[last] <= depth < wanted:
                last = row
        else:
            depths.append(0)
    said = []  # after the rows of depth 1, 2, …
    row = last
    while row:
        said.append(tokens[row])
        row = parents[row]
    said.reverse()

    end = depths[last]
    forced = [COMPUTED] * len(tokens)
    reached = [False] * len(tokens)
    reached[0] = True
    behind: set[int] = set()  # drafts after the rows that the path ends with
    for row in range(1, len(tokens)):
        parent = parents[row]
        if reached[parent] and depths[row]:
            if depths[parent] == end:
                behind.add(tokens[row])
            elif tokens[row] == said[depths[parent] - 1]:
                reached[row] = True
    said.append(strange(behind))
    for row, taken in enumerate(reached):
        if taken:
            forced[row] = said[depths[row] - 1]
    return forced
