"""Jacobi decoding against the worked example of the papers' rule, its boundary cases, and an independent rendering."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.decoders import Clock, ToyEngine, decided

from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult
from specbench.methods.jacobi.decoder import Decoder, Options

VOCAB, PAD = 50, 49
a, b, c, d, e, f, g, x, y, z, w, q, r = range(13)
PROMPT = [20, 21, 22, 20]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


def result(next_tokens: Sequence[int], matches: int) -> StepResult:
    """What a forward over a chain decides that matched ``matches`` guesses."""
    return decided(next_tokens, range(matches + 1))


def started(chain: Sequence[int], **options: Any) -> Decoder:
    """A decoder whose first chain is ``chain``: guesses sent with the prompt came back as these."""
    made = decoder(block_size=len(chain), **options)
    made.begin(PROMPT)
    made.observe(result(chain, 0))
    assert list(made.draft().tokens) == list(chain)
    return made


P = PAD
# By window: the chains after three forwards of the papers' example with n = 6. A block that is done is followed by a
# fresh one; where it slides, what the target says after its last row is a guess as well, and pads fill it up.
EXAMPLE = {
    "block": [[b, c, d, q, r], [e, f], [g, P, P, P, P, P]],
    "sliding": [[b, c, d, q, r, 30], [e, f, 31, 32, P, P], [g, 33, 34, 35, 36, P]],
}


@pytest.mark.parametrize("window", EXAMPLE)
def test_worked_example(window: str) -> None:
    made = started([a, x, c, y, z, w], init="pad", window=window)
    # a is committed and b verified; then c and d match; then e and f, and g is the bonus.
    outcome = [b, c, d, q, r, 30], [c, d, e, f, 31, 32], [f, g, 33, 34, 35, 36]
    for words, matches, expected in zip(outcome, (0, 2, 1), EXAMPLE[window], strict=True):
        made.observe(result(words[: len(made.draft())], matches))
        assert list(made.draft().tokens) == expected


# ------------------------------------------------------------------ the worked example, n = 6


# ------------------------------------------------------------------ stops


# ------------------------------------------------------------------ against an independent rendering


def expected(target: Any, n: int, tokens: int, sliding: bool, sent: bool) -> tuple[list[int], list[list[int]]]:
    """Output and chains by the rule of the papers, on plain lists; fresh guesses are PAD."""
    chain = [target(PROMPT, [PAD] * i if sent else []) if sent or i == 0 else PAD for i in range(n)]
    kept: list[int] = []
    seen = []
    while len(kept) < tokens:
        seen.append(list(chain))
        outcome = [target(PROMPT, kept + chain[: i + 1]) for i in range(len(chain))]
        m = 0
        while m + 1 < len(chain) and chain[m + 1] == outcome[m]:
            m += 1
        kept += chain[: m + 1]
        rest = [outcome[m]] + [outcome[i] for i in range(m + 1, len(chain) if sliding else len(chain) - 1)]
        full = m + 1 == len(chain)
        chain = rest + [PAD] * (n - len(rest)) if sliding or full else rest
    return kept, seen


@given(st.integers(1, 9), st.integers(0, 10**6), st.integers(1, 3), st.booleans(), st.booleans())
def test_chains_are_those_of_an_independent_rendering(
    n: int, seed: int, memory: int, sliding: bool, sent: bool
) -> None:
    # A language whose next token depends on the position and the last few tokens: short memories converge early.
    def target(prompt: Sequence[int], out: Sequence[int]) -> int:
        return random.Random(f"{seed}/{len(out) % 7}/{list(out[-memory:])}").randrange(4)

    engine = ToyEngine(Clock())
    engine.target = target
    slot = engine.alloc()
    made = decoder(block_size=n, init="pad", window="sliding" if sliding else "block", prefill_draft=sent)
    first = engine.prefill(slot, PROMPT, made.begin(PROMPT))
    made.observe(first)
    output = list(first.emitted)
    while len(output) <= 30:
        step = engine.step({slot: made.draft()})[slot]
        made.observe(step)
        output += step.emitted
    kept, seen = expected(target, n, 31, sliding, sent)
    mine = [list(trees[slot].tokens) for trees in engine.trees]
    assert mine == seen[: len(mine)]
    assert output[:30] == kept[:30]


# ------------------------------------------------------------------ options


def fresh(**options: Any) -> list[int]:
    """Guesses of a first chain, without its verified token."""
    made = decoder(block_size=400, prefill_draft=False, **options)
    made.begin(PROMPT)
    made.observe(result([5], 0))
    return list(made.draft().tokens[1:])


def test_where_fresh_guesses_are_drawn_from() -> None:
    guesses = fresh(init="context")
    assert set(guesses) == {*PROMPT, 5}
    share = guesses.count(20) / len(guesses)  # twice in the prompt: drawn by occurrence, 2 of 5
    assert 0.3 < share < 0.5
    assert set(fresh(init="uniform")) == set(range(VOCAB))
    assert set(fresh(init="pad")) == {PAD}


def test_init_context_grows_with_the_output() -> None:
    made = decoder(block_size=400, init="context", window="sliding", prefill_draft=False)
    made.begin(PROMPT)
    made.observe(result([5], 0))
    made.observe(result([6] + [8] * 399, 0))  # 6 is emitted; the 8s are guesses, and no output
    made.observe(result([6] * 200 + [7] * 200, 399))
    guesses = set(made.draft().tokens[1:])
    assert {6, 7} <= guesses <= {*PROMPT, 5, 6, 7}


def test_prefill_draft_sends_rows_that_only_draft() -> None:
    made = decoder(block_size=5, init="uniform")  # the default
    tree = made.begin(PROMPT)
    assert tree is not None
    assert (tree.tokens[0], len(tree)) == (PROMPT[-1], 5)
    assert list(tree.accept or ()) == [True, False, False, False, False]
    # One token is emitted for every method; the draft-only rows give the first chain its refreshed guesses.
    made.observe(result([5, 6, 7, 8, 9], 0))
    assert list(made.draft().tokens) == [5, 6, 7, 8, 9]
    assert decoder(block_size=5, prefill_draft=False).begin(PROMPT) is None
