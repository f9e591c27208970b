"""Suffix decoding by hand: counts, the path and the tree that they promise, earlier answers, and how the tree grows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.decoders import decided
from support.processes import bytes_taken, lines_run

from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.methods.suffix.decoder import Decoder, Options
from specbench.methods.suffix.tree import Node, SuffixTree, Text
from specbench.planning.methods import plan_methods

A, B, C, D, X, P, Q = range(1, 8)


def decoder(text: Sequence[int], state: Any = None, **options: Any) -> Decoder:
    """After a text, whose last token is the prefill's."""
    made = Decoder(Options(**options), Context(50, 49, random.Random(0), state=state))
    made.begin(list(text[:-1]))
    made.observe(decided([text[-1]]))
    return made


def shape(tree: TokenTree) -> tuple[list[int], list[int]]:
    return list(tree.tokens[1:]), list(tree.parents[1:])


# ------------------------------------------------------------------ by hand

# A B occurs four times: before C, C, D, and at the end. B alone does too.
TEXT = [A, B, C, A, B, C, A, B, D, A, B]


def test_a_tree_takes_the_most_probable_strings_first() -> None:
    # C 1/2, A after it 1/2, B after that 1/2; then D, one of four after A B, was found before C and D after B.
    made = decoder(TEXT, factor=2.0, tree=True)
    assert shape(made.draft()) == ([C, A, B, D], [0, 1, 2, 0])
    assert made.score == 1.75
    tree = decoder(TEXT, factor=2.0, tree=True).draft()
    scores = tree.row_scores()
    assert scores is not None
    assert scores[1:] == pytest.approx([-0.6931, 0.0, 0.0, -1.3863], abs=1e-4), "of each token after the one before"


# ------------------------------------------------------------------ earlier answers


def answered(state: Any, prompt: Sequence[int], output: Sequence[int], **options: Any) -> Decoder:
    made = decoder([*prompt, output[0]], state, **options)
    for token in output[1:]:
        made.observe(decided([token]))
    return made


def test_answers_of_earlier_requests_are_drafted_from_and_their_prompts_are_not() -> None:
    options: dict[str, Any] = {"requests": 5}
    state = Decoder.state(Options(**options))
    answered(state, [P, P, P, Q, Q, Q], [A, B, C, D], **options).end()
    # A B occurs twice among the answers, this one's own included; one goes on, with C 1/2 and D 1/2.
    made = answered(state, [X], [A, B], **options)
    tree = made.draft()
    assert shape(tree) == ([C, D], [0, 1])
    assert (made.score, tree.origins) == (1.0, "earlier")
    assert shape(answered(state, [X], [P], **options).draft())[0] == [], "P P P was only asked"
    assert shape(answered(None, [X], [A, B], **options).draft())[0] == [], "without a state it is cold"


# ------------------------------------------------------------------ what it says


def test_presets_are_the_defaults_of_the_engines_and_warm() -> None:
    vllm, arctic = (plan_methods(["suffix"], [f"preset={name}"])[1] for name in ("vllm", "arctic"))
    assert vllm.options == Options(cached_requests=10_000)
    assert arctic.options == Options(depth=64, draft_length=64, cached_requests=1_000_000)
    assert [each.stateful for each in (vllm, arctic, plan_methods(["suffix"], [])[1])] == [True, True, False]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 13),  # 12 tokens after a match of 12; after a longer one the tree is at its end
        ({"tree": True}, 24),  # a tree goes in breadth: 23 after a match of 23
        ({"factor": 4.0}, 20),  # 19 after a match of 5
        ({"factor": 4.0, "k": 8}, 9),
        ({"factor": 0.0}, 1),
        ({"factor": 0.0, "offset": -3.0}, 1),
        ({"factor": 64.0, "tree": True, "k": 511}, 512),
        ({"depth": 2}, 2),
    ],
)
def test_rows_of_the_largest_tree(options: dict[str, Any], rows: int) -> None:
    assert Decoder.max_rows(Options(**options)) == rows
    # And there is a text that takes them all: one token over and over, whose drafts are all as probable.
    made = decoder([A] * 200 if not options.get("tree") else [A, B] * 150, min_prob=0.0, **options)
    drafted = len(made.draft())
    assert drafted <= rows
    assert options.get("tree") or drafted == rows


def test_its_figures_are_means_over_its_drafts() -> None:
    made = decoder(TEXT)
    assert made.measures(1, True) == {}
    made.draft()  # A B matched: 1.0 promised
    made.observe(decided([X]))
    made.draft()  # nothing matched
    assert made.measures(1, True) == {"expected": 0.5, "match_length": 1.0}


def test_with_a_fallback_its_score_decides() -> None:
    for least, matched in ((1.0, True), (1.01, False)):
        made = decoder(TEXT, fallback="recycling", min_score=least)
        made.draft()
        assert made.matched() == matched


# ------------------------------------------------------------------ how it grows


def nodes(tree: SuffixTree) -> int:
    count, rest = 0, list[Node](tree._first.values())
    while rest:
        node = rest.pop()
        count += 1
        rest += node.next.values()
    return count


def grown(tokens: Sequence[int], depth: int = 24) -> SuffixTree:
    tree = SuffixTree(depth)
    tree.extend(Text(), tokens)
    return tree


def words(count: int, vocab: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(count)]


@pytest.mark.parametrize("vocab", [2, 6, 100, 50_000])
def test_it_keeps_about_two_nodes_a_token_of_random_text(vocab: int) -> None:
    assert nodes(grown(words(3000, vocab))) < 2.6 * 3000


@pytest.mark.parametrize("period", [1, 7, 60])
def test_a_text_in_a_loop_takes_no_more_nodes(period: int) -> None:
    assert nodes(grown(list(range(period)) * (1000 // period))) <= 24 * period + 24
    assert nodes(grown(list(range(period)) * (3000 // period))) <= 24 * period + 24


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("period", [0, 30])
def test_a_step_is_no_more_work_when_the_text_is_long(tree: bool, period: int) -> None:
    def stream(at: int) -> int:
        return at % period if period else random.Random(at).randrange(40)

    made = decoder([stream(at) for at in range(100)], tree=tree, factor=2.0)

    def steps(begin: int, count: int) -> None:
        for at in range(begin, begin + count):
            made.observe(decided([stream(at)]))
            made.draft()

    early = lines_run("methods.suffix", lambda: steps(100, 60))
    made._local.extend(made._text, [stream(at) for at in range(160, 6000)])
    late = lines_run("methods.suffix", lambda: steps(6000, 60))
    assert late < 3 * early
    assert bytes_taken(lambda: steps(6060, 5)) < 40_000, "a copy of the text would be more"
