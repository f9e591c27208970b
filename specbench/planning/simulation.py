"""Simulated acceptance: a method's real trees and forwards, with a random number of tokens emitted by each step.

With dummy weights almost no draft is accepted. Here the target's tokens along one path of the tree are prescribed:
acceptance, commit and all kernels run as usual, only the text means nothing.
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
    """Parse ``--simulate-acceptance``: label -> mean and spread of the tokens per forward.

    ``specs`` are ``MEAN[:SPREAD]`` or ``LABEL=MEAN[:SPREAD]``, comma-separated; ``rows`` has the rows of each method's
    largest tree, the maximum of tokens per forward; ``baselines`` are never simulated. Raises UsageError for a
    malformed or repeated spec, an unknown method, or figures that no tree can reach.
    """
    chosen: dict[str, SimulatedAcceptance] = {}
    for spec in [part.strip() for many in specs for part in many.split(",")]:
        label, equals, figures = spec.rpartition("=")
        if equals and label in baselines:
            raise UsageError(f"--simulate-acceptance {spec}: {label} verifies no drafts; leave it out")
        if equals and label not in rows:
            raise unknown_name("method", label, rows, "in --simulate-acceptance", choose="name one of --method")
        asked = _figures(spec, figures)
        if label in chosen:
            raise UsageError(f"--simulate-acceptance {spec}: {label or 'every method'} is set twice; keep one")
        chosen[label] = asked
    everybody = chosen.pop("", None)
    if everybody is not None:
        chosen = {label: chosen.get(label, everybody) for label in rows if label not in baselines}
        if not chosen:
            raise UsageError("--simulate-acceptance needs a method that drafts; name one in --method")
    for label, asked in chosen.items():
        if asked.mean > rows[label]:
            raise UsageError(
                f"{label} drafts at most {rows[label]} rows, so it cannot emit {asked.mean:g} tokens per forward; "
                "lower --simulate-acceptance or give it a larger tree with --set"
            )
        most = math.sqrt((asked.mean - 1) * (rows[label] - asked.mean))
        if asked.spread > max(most, math.sqrt(_variance(asked.mean, 0))):
            raise UsageError(
                f"--simulate-acceptance: {label} emits 1 to {rows[label]} tokens per forward; with a mean of "
                f"{asked.mean:g} SPREAD has to be {math.floor(100 * most) / 100:g} or less"
            )
    return chosen


def _figures(spec: str, figures: str) -> SimulatedAcceptance:
    mean_text, colon, spread_text = figures.partition(":")
    try:
        mean, given = float(mean_text), float(spread_text) if colon else None
    except ValueError:
        raise UsageError(f"--simulate-acceptance {spec}: {_WRITE}") from None
    if not 1 <= mean < math.inf:
        raise UsageError(f"--simulate-acceptance {spec}: a forward emits at least 1 token; MEAN has to be 1 or more")
    least = math.sqrt(_variance(mean, 0))
    spread = least if given is None else given
    if not least - 0.005 <= spread < math.inf:  # a mean of 3.4 whole tokens needs some spread; two digits suffice
        raise UsageError(
            f"--simulate-acceptance {spec}: with a mean of {mean:g} SPREAD has to be {least:.2f} or more; or leave it "
            "out"
        )
    return SimulatedAcceptance(mean=mean, spread=max(spread, least))


def _pair(mean: float, width: int) -> tuple[int, int]:
    """Return the integers around ``mean``, widened by ``width`` on either side; the lower one is at least 1."""
    return max(1, math.floor(mean) - width), math.floor(mean) + 1 + width


def _variance(mean: float, width: int) -> float:
    """Variance of a random choice between the two numbers of :func:`_pair` with this mean."""
    low, high = _pair(mean, width)
    return (mean - low) * (high - mean)


class Lengths:
    """Generator of random integers from 1 with exactly the requested mean and standard deviation.

    It chooses between two numbers around the mean, as far apart as the spread requires. The shape of the distribution
    is arbitrary.
    """

    def __init__(self, asked: SimulatedAcceptance) -> None:
        self._mean = asked.mean
        variance = asked.spread**2
        self._width = 0
        while _variance(asked.mean, self._width + 1) <= variance and asked.mean > 1:
            self._width += 1
        inner, outer = (_variance(asked.mean, width) for width in (self._width, self._width + 1))
        # A mixture of two distributions with the same mean has the mixture of their variances.
        self._wider = 0.0 if asked.mean == 1 else max(0.0, (variance - inner) / (outer - inner))

    def draw(self, rng: random.Random) -> int:
        """Return one random number."""
        low, high = _pair(self._mean, self._width + (rng.random() < self._wider))
        return high if rng.random() * (high - low) < self._mean - low else low


@dataclass
class Acceptance:
    """Simulated acceptance of one sequence of one method, with its own random generator.

    ``stop_ids`` are never accepted or emitted, so that the answer ends at the token budget.
    """

    lengths: Lengths
    rng: random.Random
    vocab_size: int
    stop_ids: Collection[int]

    def forced(self, tree: TokenTree) -> list[int]:
        """Return the target's prescribed token after each row, shape [rows]; :data:`COMPUTED` leaves it to the model.

        The step emits a random number of tokens, limited by the longest path of the tree.
        """
        return force(tree, self.lengths.draw(self.rng), self._strange, self.stop_ids)

    @classmethod
    def of(cls, asked: SimulatedAcceptance, seed: str, vocab_size: int, stop_ids: Collection[int]) -> Acceptance:
        """Make the acceptance of one sequence; equal seeds give equal acceptance."""
        return cls(Lengths(asked), random.Random(f"simulate/{seed}"), vocab_size, stop_ids)

    def _strange(self, known: Collection[int]) -> int:
        """Return a random token that is neither in ``known`` nor a stop token."""
        for _ in range(64):
            token = self.rng.randrange(self.vocab_size)
            if token not in known and token not in self.stop_ids:
                return token
        left = [token for token in range(self.vocab_size) if token not in known and token not in self.stop_ids]
        if not left:
            raise UsageError(
                f"cannot simulate acceptance: a row drafts all {self.vocab_size} tokens of the vocabulary, so every "
                "token is accepted; use a model with a larger vocabulary or a smaller tree"
            )
        return self.rng.choice(left)


def force(
    tree: TokenTree, wanted: int, strange: Callable[[Collection[int]], int], stop_ids: Collection[int] = ()
) -> list[int]:
    """Return the target's next tokens for which the acceptance rule emits ``wanted`` tokens, if the tree allows it.

    The path ends at the first row of the wanted depth, or of the greatest smaller depth. Other rows that repeat the
    tokens of the path get the same next tokens, because the acceptance rule takes the deepest row. ``strange`` returns
    a token that is not among those it is given; it ends the path.
    """
    tokens, parents, accept = tree.tokens, tree.parents, tree.accept
    depths = [1]  # depth of each row that can be accepted; 0 for other rows
    last = 0
    for row in range(1, len(tokens)):
        depth = depths[parents[row]]
        if depth and (accept is None or accept[row]) and tokens[row] not in stop_ids:
            depths.append(depth + 1)
            if depths[last] <= depth < wanted:
                last = row
        else:
            depths.append(0)
    emitted = []  # the target's tokens after the rows of depth 1, 2, …
    row = last
    while row:
        emitted.append(tokens[row])
        row = parents[row]
    emitted.reverse()

    end = depths[last]
    forced = [COMPUTED] * len(tokens)
    reached = [False] * len(tokens)
    reached[0] = True
    children: set[int] = set()  # drafts after the rows at which the path ends
    for row in range(1, len(tokens)):
        parent = parents[row]
        if reached[parent] and depths[row]:
            if depths[parent] == end:
                children.add(tokens[row])
            elif tokens[row] == emitted[depths[parent] - 1]:
                reached[row] = True
    emitted.append(strange(children))
    for row, taken in enumerate(reached):
        if taken:
            forced[row] = emitted[depths[row] - 1]
    return forced
