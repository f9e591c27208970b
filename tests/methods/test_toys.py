"""The toy engine decides about a tree what the real one decides: the tests of the methods rest on it."""

from __future__ import annotations

import random

from support.decoders import Clock, ToyEngine, accepted, greedy, hiding_tree, language

from specbench.decoding.tree import TokenTree

PROMPT = [3, 1, 4]


def test_the_toy_engine_accepts_what_the_real_rule_accepts() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        target = language(seed, words=3)  # few words: guesses are often right, siblings often equal
        engine = ToyEngine(Clock())
        engine.target = target
        slot = engine.alloc()
        first = engine.prefill(slot, PROMPT)
        told = greedy(target, PROMPT, 20)
        assert first.emitted == told[:1]
        tree = hiding_tree(rng, told[0], told[1 : 1 + seed % 5], 3, 12)
        result = engine.step({slot: tree})[slot]

        rows, bonus = accepted(tree, result.next_tokens)
        assert result.path == rows
        assert result.emitted == [tree.tokens[row] for row in rows[1:]] + [bonus]
        assert engine.outputs[slot] == told[: 1 + len(result.emitted)]
        assert len(rows) > seed % 5  # the hidden path is found


def test_a_row_of_the_toy_engine_sees_the_output_and_its_ancestors_only() -> None:
    engine = ToyEngine(Clock())
    seen: list[list[int]] = []
    engine.target = lambda prompt, out: seen.append(list(out)) or 5  # type: ignore[func-returns-value]
    slot = engine.alloc()
    engine.prefill(slot, PROMPT)
    engine.step({slot: TokenTree([5, 8, 9, 7, 6], [-1, 0, 0, 1, 2])})
    assert seen == [[], [5], [5, 8], [5, 9], [5, 8, 7], [5, 9, 6]]


def test_the_toy_engine_lists_what_the_model_says_first() -> None:
    engine = ToyEngine(Clock())
    engine.target, engine.vocab = (lambda prompt, out: 9), 10
    slot = engine.alloc()
    top = engine.prefill(slot, PROMPT, top_k=3).top
    assert top is not None
    assert top[1].tolist() == [[9, 0, 1]]
    assert top[0][0, 0] > top[0][0, 1] > top[0][0, 2]
