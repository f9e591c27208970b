"""How each method says its tokens came, on examples worked out by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support.decoders import ToyTarget, Walk, language, walk

from specbench import decoding
from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.decoding.trees.builders import BUILDERS, Knobs
from specbench.decoding.trees.marginals import Marginals
from specbench.methods.cllm import decoder as cllm
from specbench.methods.jacobi import decoder as jacobi
from specbench.methods.jf import decoder as jf
from specbench.methods.lookahead import decoder as lookahead
from specbench.methods.msn import decoder as msn
from specbench.methods.msn.trees import RETRIEVED
from specbench.methods.pld import decoder as pld
from specbench.results.request_schema import BONUS
from specbench.runner.trace import verified

VOCAB, PAD = 50, 49
LANGUAGES = [language(seed, words=6, memory=1 + seed % 2, period=7) for seed in range(4)]


def made(module: Any, **options: Any) -> Any:
    return module.Decoder(module.Options(**options), Context(VOCAB, PAD, random.Random(0)))


def origins(walked: Walk) -> list[list[str]]:
    """Of the tokens of each step."""
    pairs = zip(walked.trees, walked.results[1:], strict=True)
    return [[*verified(tree, result.path, whole=False).origins, BONUS] for tree, result in pairs]


def decoded(
    decoder: decoding.Decoder, target: ToyTarget, prompt: Sequence[int], tokens: int, top_k: int = 0
) -> list[list[str]]:
    return origins(walk(decoder, target, prompt, tokens, top_k=top_k, vocab=VOCAB))


def words(tree: TokenTree) -> list[str]:
    """Of each row but the root."""
    return [tree.origins] * (len(tree) - 1) if isinstance(tree.origins, str) else list(tree.origins[1:])


def counting(prompt: Sequence[int], out: Sequence[int]) -> int:
    """A language in which only the place decides: every guess that has been through a forward is right."""
    return len(out)


def cycling(prompt: Sequence[int], out: Sequence[int]) -> int:
    """1, 2, 3, 1, 2, 3, …"""
    return 1 + [*prompt, *out][-1] % 3


@pytest.mark.parametrize("module", [jacobi, cllm])
def test_jacobi_guesses_once_a_forward_has_refreshed_them(module: Any) -> None:
    prefilled = module is jacobi  # the first chain has been through the prompt's forward; CLLM's has not
    found = decoded(made(module, n=4, init="pad"), counting, [1], 12)
    # A fresh block of pads: none is right, then the forward has given the two guesses after the first token.
    fresh = [[BONUS], ["guess", "guess", BONUS]]
    assert found[:3] == ([["guess"] * 3 + [BONUS], *fresh] if prefilled else [*fresh, fresh[0]])
    if prefilled:  # noise that happens to be right is noise
        found = decoded(made(jacobi, n=4, init="pad", prefill_draft=False), lambda prompt, out: PAD, [1], 9)
        assert found == [["noise"] * 3 + [BONUS]] * 2


def test_a_sliding_chain_ends_in_noise() -> None:
    decoder = made(jacobi, n=4, init="pad", window="sliding")
    decoder.begin([1])
    decoder.observe(StepResult([5], [0], [5, 6, 7, 8]))
    decoder.observe(StepResult([6, 9], [0, 1], [6, 9, 3, 4]))  # two tokens on, so one guess is new
    assert list(decoder.draft().tokens) == [9, 3, 4, PAD]
    assert words(decoder.draft()) == ["guess", "guess", "noise"]


def test_lookahead_hits_its_pool() -> None:
    # The prompt's n-grams are pooled: 1 is followed by 2, 3.
    found = decoded(made(lookahead, W=1, N=3, G=1, pool_from_prompt=True), cycling, [1, 2, 3, 1, 2, 3], 7)
    assert found == [["pool", "pool", BONUS]] * 2


def test_lookahead_says_window_only_where_window_rows_may_be_accepted() -> None:
    seen = {accept: Counter[str]() for accept in (False, True)}
    for accept, count in seen.items():
        for target in LANGUAGES:
            for step in decoded(made(lookahead, W=4, N=3, G=2, accept_window=accept), target, [1, 2, 1], 80):
                count.update(step)
    assert seen[False]["pool"] > 0
    assert seen[False].keys() == {"pool", BONUS}
    assert seen[True]["window"] > 0


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_jacobi_forcing_recycles_as_often_as_it_counts(variant: str) -> None:
    recycled = 0
    for target in LANGUAGES:
        decoder = made(jf, n=6, K=2, r=0.5, pool=4, variant=variant)
        count = Counter(word for step in decoded(decoder, target, [1, 2, 1], 80) for word in step)
        assert count["pool"] == decoder.measures(80, False)["recycled"]
        assert count.keys() <= {"guess", "noise", "pool", "block", "block-noise", BONUS}
        recycled += count["pool"]
    assert recycled > 0


def test_jacobi_forcing_carries_guesses_of_the_block_ahead() -> None:
    # Blocks of 4; from half of the first on there is a second one ahead. Its guesses have been through a forward
    # before the first one ends, and all of the chain is then right at once.
    decoder = made(jf, n=4, K=2, r=0.0, recycling=False, init="pad", prefill_draft=False)
    walked = walk(decoder, counting, [1], 10)
    assert [words(tree) for tree in walked.trees[:2]] == [
        ["noise"] * 3,
        ["guess", "guess", "block", *["block-noise"] * 3],
    ]
    found = Counter(word for step in origins(walked) for word in step)
    assert found["block"] == decoder.measures(10, False)["carried"] > 0


def test_prompt_lookup_copies() -> None:
    text = [1, 2, 3, 7, 8, 9, 1, 2]
    assert decoded(made(pld, k=3), lambda prompt, out: [3, 7, 8, 9, 5][len(out)], text, 5) == [["lookup"] * 3 + [BONUS]]


def test_make_some_noise_tells_lookups_from_guesses_and_noise() -> None:
    # In a cycle the retrieval path is right, and being the longest one it wins.
    assert decoded(made(msn), cycling, [1, 2, 3, 1, 2, 3], 7, RETRIEVED)[-1] == ["lookup"] * 5 + [BONUS]
    without = Counter[str]()
    for target in LANGUAGES:
        for step in decoded(made(msn, retrieval="off"), target, [1, 2, 1], 40, RETRIEVED):
            without.update(step)
    assert without["guess"] > 0
    assert "lookup" not in without


def test_trees_of_a_head_are_the_heads() -> None:
    marginals = Marginals(0, [[1, 2], [3, 4]], [[-0.1, -3.0], [-0.2, -2.0]])
    for builder in BUILDERS.values():
        tree = builder(marginals, 4, Knobs(2, 2.0, 1.0, True, {4: 1.0}))
        assert len(tree) > 1
        assert set(words(tree)) == {"head"}
