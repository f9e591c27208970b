"""SAM-Decoding by hand: the longest match and its first occurrence, in the text and in a corpus; and how it grows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.decoders import decided
from support.processes import bytes_taken, lines_run

from specbench.decoding.protocol import Context
from specbench.methods.sam import corpus
from specbench.methods.sam.automaton import Automaton
from specbench.methods.sam.corpus import NO_TOKEN
from specbench.methods.sam.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

A, B, C, D, X, P, Q = range(1, 8)
END = 0


def decoder(text: Sequence[int], held: Any = None, vocab: int = 50, **options: Any) -> Decoder:
    """After a text, whose last token is the prefill's."""
    made = Decoder(Options(**options), Context(vocab, 49, random.Random(0), shared=held))
    made.begin(list(text[:-1]))
    made.observe(decided([text[-1]]))
    return made


def draft(text: Sequence[int], held: Any = None, vocab: int = 50, **options: Any) -> list[int]:
    tree = decoder(text, held, vocab, **options).draft()
    assert tree.is_chain
    assert tree.tokens[0] == text[-1]
    return list(tree.tokens[1:])


# ------------------------------------------------------------------ by hand

# A B C at the end occurred a moment ago, and C alone long before that.
PASSED = [C, 9, 8, A, B, C, X, A, B, C]


HELD = corpus.of([[A, B, C, D, X, Q], [P, P, C, 9]], END)


@pytest.mark.parametrize(
    ("text", "options", "expected", "origin"),
    [
        # A B C matches in the corpus and nothing in the text; the first text ends after Q, and the draft with it.
        ([9, A, B, C], {"len_bias": 0, "k": 6}, [D, X, Q, END], "corpus"),
        ([9, A, B, C], {"len_bias": 0, "k": 2}, [D, X], "corpus"),
        # A bias of two leaves one token of the match, which allows two; a bias of three leaves none.
        ([9, A, B, C], {"len_bias": 2, "k": 4, "alpha": 2.0}, [D, X], "corpus"),
        ([9, A, B, C], {"len_bias": 3, "k": 4}, [], "lookup"),
        # The text's own match is of B C, two tokens: three less one are no more than these.
        ([B, C, 8, 8, A, B, C], {"len_bias": 1, "k": 2}, [8, 8], "lookup"),
        ([B, C, 8, 8, A, B, C], {"len_bias": 0, "k": 2}, [D, X], "corpus"),
        # P C is only in the second text, C occurs first in the first one.
        ([9, P, C], {"len_bias": 0, "k": 2}, [9, END], "corpus"),
        ([9, C], {"len_bias": 0, "k": 2}, [D, X], "corpus"),
        # Where fewer tokens follow than are wanted, the shorter match it is, or none.
        ([9, P, C], {"len_bias": 0, "k": 3}, [D, X, Q], "corpus"),
        ([9, P, C], {"len_bias": 0, "k": 3, "full_only": False}, [9, END], "corpus"),
    ],
)
def test_by_hand_from_a_corpus(text: list[int], options: dict[str, Any], expected: list[int], origin: str) -> None:
    assert draft(text, HELD, **options) == expected
    tree = decoder(text, HELD, **options).draft()
    assert tree.origins == origin


# ------------------------------------------------------------------ what it says


def test_the_released_settings_are_the_default() -> None:
    released, default = (plan_methods(["sam"], settings)[1] for settings in (["preset=released"], []))
    assert released.options == default.options == Options(
        draft_length=40, alpha=4.0, full_only=True, corpus=None, len_bias=5, min_match=5
    )  # fmt: skip
    assert (default.max_rows, default.top_k, default.stateful) == (41, 0, False)


def test_its_figures_are_means_over_its_drafts() -> None:
    made = decoder(PASSED, k=4)
    assert made.measures(1, True) == {}
    made.draft()  # A B C
    made.observe(decided([40]))
    made.draft()  # nothing
    assert made.measures(2, True) == {"match_length": 1.5}
    made = decoder([9, A, B, C], HELD, len_bias=1)
    made.draft()
    assert made.measures(1, True) == {"match_length": 0.0, "seen": 0.0}, "40 tokens follow nowhere in it"
    made = decoder([9, A, B, C], HELD, len_bias=1, k=2)
    made.draft()
    assert made.measures(1, True) == {"match_length": 2.0, "seen": 0.0}, "what is left of it by the bias"


def test_with_a_fallback_the_length_of_the_match_decides() -> None:
    for least, matched in ((3, True), (4, False)):
        made = decoder(PASSED, k=4, fallback="recycling", min_match=least)
        made.draft()
        assert made.matched() == matched


# ------------------------------------------------------------------ how it grows


def texts(count: int) -> dict[str, list[int]]:
    rng = random.Random(0)
    passage = [rng.randrange(1000) for _ in range(count // 2)]
    return {
        "two words": [rng.randrange(2) for _ in range(count)],
        "words": [rng.randrange(1000) for _ in range(count)],
        "one token": [5] * count,
        "a loop": [at % 7 for at in range(count)],
        "a passage twice": passage * 2,
        "worst": [A, *[B] * (count - 2), C],
    }


@pytest.mark.parametrize("name", texts(2))
def test_it_keeps_two_states_a_token_at_most(name: str) -> None:
    made = Automaton(texts(3000)[name])
    assert len(made._link) <= 2 * 3000
    assert sum(map(len, made._next)) <= 3 * 3000, "and three ways between them"


@pytest.mark.parametrize("name", ["words", "one token", "a loop", "a passage twice"])
def test_a_step_is_no_more_work_when_the_text_is_long(name: str) -> None:
    text, static = texts(8000)[name], corpus.of([texts(400)[name]], NO_TOKEN)
    made = decoder(text[:200], static, vocab=1000, len_bias=0)

    def steps(begin: int, count: int) -> None:
        for token in text[begin : begin + count]:
            made.observe(decided([token]))
            made.draft()

    early = lines_run("methods.sam", lambda: steps(200, 100))
    made.observe(decided(text[300:7700], range(7400)))
    assert lines_run("methods.sam", lambda: steps(7700, 100)) < 3 * early
    assert bytes_taken(lambda: steps(7900, 5)) < 30_000, "a copy of the text would be more"
