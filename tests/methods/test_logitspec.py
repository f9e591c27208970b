"""LogitSpec by hand: the runners-up of the last logits, each with what followed it before; and how it grows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.processes import bytes_taken, lines_run

from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.logitspec.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

A, B, C, D, E = range(1, 6)


def decided(emitted: Sequence[int], best: Sequence[Sequence[int]], path: Sequence[int] = (0,)) -> StepResult:
    """A forward whose rows have these best tokens."""
    ids = torch.tensor([list(row) for row in best])
    return StepResult(list(emitted), list(path), [row[0] for row in best], (torch.zeros(ids.shape), ids))


def decoder(text: Sequence[int], best: Sequence[int], **options: Any) -> Decoder:
    """After a text, whose last token is the prefill's, with the best tokens of its logits."""
    made = Decoder(Options(**options), Context(1000, 0, random.Random(0)))
    made.begin(list(text[:-1]))
    made.observe(decided([text[-1]], [best]))
    return made


def shape(tree: TokenTree) -> tuple[list[int], list[int]]:
    return list(tree.tokens), list(tree.parents)


# ------------------------------------------------------------------ by hand

TEXT = [A, B, C, D, E, A, B]


def test_runners_up_are_carried_on_by_what_followed_them_before() -> None:
    # After A B it was C D E A B. Of the logits that gave B, B itself is no guess; C after A B was followed by D E A,
    # four tokens with it, which stand there already; D was followed by E A B; 9 by nothing.
    tree = decoder(TEXT, [B, C, D, 9]).draft()
    assert shape(tree) == ([B, C, D, E, A, B, D, E, A, B, 9], [-1, 0, 1, 2, 3, 4, 0, 6, 7, 8, 0])
    assert list(tree.origins)[1:] == ["lookup"] * 5 + ["guess", "lookup", "lookup", "lookup", "guess"]


def test_the_logits_are_those_that_gave_the_last_token() -> None:
    made = decoder([A, B, C], [30, 31])
    assert shape(made.draft()) == ([C, 30, 31], [-1, 0, 0])
    # The guess 31 was right, in row 2; its logits gave D, before E and 9.
    made.observe(decided([31, D], [[31, 32], [40, 41], [D, E]], path=(0, 2)))
    assert shape(made.draft()) == ([D, E], [-1, 0])
    made.observe(decided([9], [[9, 10], [11, 12]]))
    assert shape(made.draft()) == ([9, 10], [-1, 0])


# ------------------------------------------------------------------ what it says


def test_the_released_settings_are_the_default() -> None:
    released, default = (plan_methods(["logitspec"], settings)[1] for settings in (["preset=released"], []))
    assert released.options == default.options == Options(max_ngram=3, draft_length=20, budget=64)
    assert (default.max_rows, default.top_k, default.stateful) == (64, 64, False)
    assert plan_methods(["logitspec"], ["B=9"])[1].top_k == 9


# ------------------------------------------------------------------ how it grows


@pytest.mark.parametrize("period", [0, 1, 9])
def test_a_step_is_no_more_work_when_the_text_is_long(period: int) -> None:
    def stream(at: int) -> int:
        return at % period if period else random.Random(at).randrange(60)

    candidates = list(range(32))
    made = decoder([stream(at) for at in range(300)], candidates, budget=32)

    def steps(begin: int, count: int) -> None:
        for at in range(begin, begin + count):
            made.observe(decided([stream(at)], [candidates]))
            made.draft()

    early = lines_run("methods.logitspec", lambda: steps(300, 20))
    for at in range(320, 6000):
        made.observe(decided([stream(at)], [candidates]))
    assert sum(len(ends) for sizes in made._text._ends for ends in sizes.values()) <= 3 * 6000
    assert lines_run("methods.logitspec", lambda: steps(6000, 20)) < 2 * early
    assert bytes_taken(lambda: steps(6020, 3)) < 30_000, "a copy of the text would be more"
