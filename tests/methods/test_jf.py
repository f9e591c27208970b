"""Jacobi Forcing: Jacobi's with one block and one chain; more of either by hand and by plain renderings."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.decoders import ToyTarget, Walk, decided, language, walk

from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.methods.jacobi import decoder as jacobi
from specbench.methods.jf.decoder import Decoder, Options
from specbench.methods.jf.pool import Pool
from specbench.planning.methods import plan_methods

VOCAB, PAD = 50, 49
PROMPT = [20, 21, 22, 20]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


def decoded(target: ToyTarget, tokens: int = 60, seed: int = 0, **options: Any) -> Walk:
    return walk(decoder(seed, **options), target, PROMPT, tokens)


def started(first: int, **options: Any) -> Decoder:
    """A decoder after its prefill, which brought nothing but the first token; fresh guesses are pads."""
    made = decoder(init="pad", prefill_draft=False, **options)
    made.begin(PROMPT)
    made.observe(decided([first]))
    return made


def shape(tree: TokenTree) -> tuple[list[int], list[int]]:
    return list(tree.tokens), list(tree.parents)


def counting(prompt: Sequence[int], out: Sequence[int]) -> int:
    """A language in which only the place decides: every guess that has been through a forward is right."""
    return len(out)


# ------------------------------------------------------------------ one block, one chain: Jacobi

LANGUAGES = [language(seed, words=6, memory=seed % 3, period=7) for seed in range(6)]


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 1, "recycling": False},
        {"multiblock": False, "recycling": False},
        {"multiblock": False, "pool_size": 1},
        {"num_blocks": 1, "variant": "released", "pool_size": 1},
        {"num_blocks": 1, "variant": "released", "pool_size": 2},
        {"multiblock": False, "variant": "released", "recycling": False, "num_blocks": 7},
    ],
    ids=str,
)
def test_one_block_and_one_chain_are_jacobi(options: dict[str, Any]) -> None:
    for n, prefill_draft, (seed, target) in product((1, 2, 5, 16), (True, False), enumerate(LANGUAGES)):
        plain = jacobi.Options(block_size=n, prefill_draft=prefill_draft)
        theirs = walk(jacobi.Decoder(plain, Context(VOCAB, PAD, random.Random(seed))), target, PROMPT, 80)
        mine = decoded(target, 80, seed, block_size=n, prefill_draft=prefill_draft, **options)
        assert (mine.prefill and shape(mine.prefill)) == (theirs.prefill and shape(theirs.prefill))
        assert (mine.drafts, mine.output) == (theirs.drafts, theirs.output)


# ------------------------------------------------------------------ blocks ahead (paper)


def test_a_block_ahead_is_the_real_one_when_its_turn_comes() -> None:
    # n=4, r=0.25: a block ahead as soon as 1 token of the newest is right.
    made, alone = (
        decoder(
            block_size=4, activation_ratio=0.25, num_blocks=blocks, recycling=False, init="pad", prefill_draft=False
        )
        for blocks in (2, 1)
    )
    walked = walk(made, counting, PROMPT, 13)
    pads = [PAD] * 3
    assert [list(tree.tokens) for tree in walked.trees] == [
        [0, *pads],
        [1, 2, 3, 4, *pads],  # three of the real block; 4 is the last row's own next token, pads after it
        [5, 6, 7, 8, *pads],  # 5 6 7 were the block ahead: its first token 4 went along with the real block's
        [9, 10, 11, 12, *pads],
    ]
    assert walked.emitted == [[1], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
    # Forwards 2, 3 and 4 accept three tokens of the real block's chain, the last emitted one included, and one beyond.
    assert made.measures(13, False) == {"recycled": 0, "carried": 3}
    assert len(walk(alone, counting, PROMPT, 13).trees) > 4  # a fresh block follows each: 4 tokens in 2 forwards
    assert alone.measures(13, False) == {"recycled": 0, "carried": 0}


def multiblock(target: ToyTarget, n: int, most: int, r: float, tokens: int) -> tuple[list[list[int]], list[list[int]]]:
    """(drafts, emitted tokens) of each forward, block by block; fresh guesses are PAD."""
    out = [target(PROMPT, [])]
    blocks = [[out[0]] + [PAD] * (n - 1)]
    drafts, emitted = [], []
    while len(out) < tokens:
        draft = [token for block in blocks for token in block]
        result = [target(PROMPT, [*out[:-1], *draft[: at + 1]]) for at in range(len(draft))]
        m = 0
        while m + 1 < len(draft) and draft[m + 1] == result[m]:
            m += 1
        if len(blocks) == 1:
            right = n - len(blocks[0]) + m + 1
        else:
            at = len(draft) - len(blocks[-1])
            right = 0
            while right < len(blocks[-1]) and draft[at + right] == result[at + right - 1]:
                right += 1
        drafts.append(draft)
        emitted.append(result[: m + 1])
        out += emitted[-1]
        refreshed, at = [], 0
        for block in blocks:
            refreshed.append([result[at + t - 1] for t in range(len(block)) if at + t > m])
            at += len(block)
        blocks = [block for block in refreshed if block]
        if not blocks:
            blocks = [[result[m]] + [PAD] * (n - 1)]
        elif len(blocks) < most and right >= math.ceil(r * n):
            blocks.append([result[-1]] + [PAD] * (n - 1))
    return drafts, emitted


@pytest.mark.parametrize("r", [0, 0.3, 0.5, 0.85, 1])
def test_blocks_are_those_of_a_plain_rendering(r: float) -> None:
    for n, most, seed in product((1, 2, 5, 8), (1, 2, 3, 4), range(6)):
        target = language(seed, words=3, memory=seed % 4, period=7)
        walked = decoded(
            target, 60, block_size=n, num_blocks=most, activation_ratio=r, recycling=False, init="pad",
            prefill_draft=False,
        )  # fmt: skip
        drafts, emitted = multiblock(target, n, most, r, 60)
        assert [list(tree.tokens) for tree in walked.trees] == drafts
        assert all(list(tree.parents) == list(range(-1, len(tree) - 1)) for tree in walked.trees)
        assert walked.emitted == emitted
        assert max(map(len, drafts)) <= most * n


# ------------------------------------------------------------------ recycled guesses (paper)


def test_a_rejected_draft_is_tried_again_where_it_meets_the_last_token() -> None:
    made = started(1, block_size=6, num_blocks=1)
    made.observe(decided([2, 3, 9, 4, 8, 30]))
    assert shape(made.draft()) == ([2, 3, 9, 4, 8], [-1, 0, 1, 2, 3])
    made.observe(decided([9, 2, 4, 6, 31]))
    # 9 is verified; the draft of the forward before went on with 4 8 after a 9. It is a token short, so the draft's
    # own 6 stays at its place.
    assert shape(made.draft()) == ([9, 2, 4, 6, 4, 8, 6], [-1, 0, 1, 2, 0, 4, 5])
    # The candidate's 4 is right, the draft's 2 is not: what the target says after the candidate's rows is the next
    # guess (11), never what it says after the draft's (71).
    made.observe(decided([4, 70, 71, 72, 5, 11, 12], path=(0, 4)))
    assert made.draft().tokens[:2] == (5, 11)
    assert made.measures(4, False) == {"recycled": 1, "carried": 0}


def test_row_0_wins_ties() -> None:
    # Draft and candidate begin alike, and nothing but their common beginning is right.
    made = started(1, block_size=6, num_blocks=1)
    made.observe(decided([2, 3, 9, 4, 8, 30]))
    made.observe(decided([9, 4, 2, 6, 31]))
    tree = made.draft()
    assert shape(tree) == ([9, 4, 2, 6, 8, 6], [-1, 0, 1, 2, 1, 4])
    made.observe(decided([4, 5, 71, 72, 11, 12], path=(0, 1)))
    assert made.draft().tokens[:2] == (5, 71)
    assert made.measures(4, False)["recycled"] == 0


def test_a_candidate_goes_next_to_the_real_block_only() -> None:
    # A block ahead is drafted after the draft. A candidate is as long as what is left of the real block.
    made = started(1, block_size=6, num_blocks=2, activation_ratio=0.3)
    made.observe(decided([2, 3, 9, 4, 8, 30]))
    made.observe(decided([9, 2, 4, 6, 31]))
    tokens, parents = shape(made.draft())
    assert tokens == [9, 2, 4, 6, 31, *[PAD] * 5, 4, 8, 6]
    assert parents == [-1, *range(9), 0, 10, 11]
    # When it wins, its rows refresh what they reach, its last one the first token of the block ahead; the others of
    # that block are refreshed where they stand, after the draft.
    made.observe(decided([4, 70, 71, 72, 73, 74, 75, 76, 77, 78, 5, 11, 12], path=(0, 10)))
    assert made.draft().tokens == (5, 11, 12, 73, 74, 75, 76, 77)


def pool(output: Sequence[int], *rejected: Sequence[int], candidates: int = 3) -> Pool:
    made = Pool(candidates)
    made.see(output)
    for draft in rejected:
        made.reject(draft)
    return made


def naive_candidates(output: Sequence[int], rejected: Sequence[Sequence[int]], draft: Sequence[int]) -> list[list[int]]:
    """What followed the last 3, 2, 1 tokens of the output, latest first; then what followed the last in the drafts."""
    found = []
    for size in (3, 2, 1):
        for start in range(len(output) - size - 1, -1, -1):
            if output[start : start + size] == output[len(output) - size :]:
                found.append(output[start + size :])
    for old in reversed(rejected):
        found += [old[at + 1 :] for at in range(1, len(old)) if old[at] == output[-1]]
    distinct: list[list[int]] = []
    for continuation in found:
        candidate = [*continuation, *draft[len(continuation) :]][: len(draft)]
        if candidate != list(draft) and candidate not in distinct:
            distinct.append(candidate)
    return distinct


_ids = st.lists(st.integers(0, 3), min_size=1, max_size=14)


@given(_ids, st.lists(_ids, max_size=4), _ids, st.integers(1, 6))
def test_candidates_are_those_of_a_plain_search(
    output: list[int], rejected: list[list[int]], draft: list[int], most: int
) -> None:
    found = pool(output, *rejected, candidates=most).candidates(output[-1], draft)
    assert found == naive_candidates(output, rejected[-most:], draft)[:most]


# ------------------------------------------------------------------ what the published code does


class Call:
    """The published multiblock call from its description, on plain lists; rows are whole chains."""

    def __init__(self, target: ToyTarget, out: list[int], n: int, most: int, r: float, size: int) -> None:
        self.target, self.out, self.n, self.most, self.size = target, out, n, most, size
        self.threshold = math.ceil(r * n)
        self.rows = [[out[-1]] + [PAD] * (n - 1)]
        self.done: list[int] = []
        self.ahead: tuple[list[int], list[int]] | None = None
        self.pool: deque[list[int]] = deque(maxlen=size)

    def paths(self) -> set[tuple[tuple[int, ...], bool]]:
        """Every chain of tokens below the root that is computed, and whether its last may be emitted."""
        found = {(tuple(row[1 : end + 1]), True) for row in self.rows for end in range(1, len(row))}
        if self.ahead:
            block = self.ahead[0] + self.ahead[1]
            found |= {(tuple(self.rows[0][1:] + block[:end]), False) for end in range(1, len(block) + 1)}
        return found

    def result(self, tokens: Sequence[int]) -> list[int]:
        return [self.target(PROMPT, [*self.out[:-1], *tokens[: at + 1]]) for at in range(len(tokens))]

    def forward(self) -> tuple[list[int], bool]:
        """(tokens emitted, whether the call is over)."""
        best, matches, words = 0, -1, []
        for number, row in enumerate(self.rows):
            result = self.result(row)
            m = 0
            while m + 1 < len(row) and row[m + 1] == result[m]:
                m += 1
            if m > matches:
                best, matches, words = number, m, result
        row, m = self.rows[best], matches
        block = self.ahead[0] + self.ahead[1] if self.ahead else []
        after = self.result(self.rows[0] + block)[len(row) :]
        self.done += row[: m + 1]
        self.out += words[: m + 1]
        if m + 1 == len(row):
            return words[: m + 1], True
        tail = words[m + 1 : len(row) - 1]
        draft = [words[m], *tail]
        self.pool.append([token for token in self.done + draft + block if token != PAD])
        if tail:
            self.pool.append(tail)
        found = []
        for entry in reversed(list(self.pool)[:-1]):
            if draft[0] in entry:
                hit = entry[entry.index(draft[0]) :][: len(draft)]
                found.append(hit + draft[len(hit) :])
        self.rows = [draft, *found] if len(found) >= 2 else [draft]
        if self.ahead and self.ahead[1]:
            taken, guesses = self.ahead
            words_ahead = after[len(taken) :]
            m = 0
            while m + 1 < len(guesses) and guesses[m + 1] == words_ahead[m]:
                m += 1
            rest = [] if m + 1 == len(guesses) else words_ahead[m : len(guesses) - 1]
            self.ahead = (taken + guesses[: m + 1], rest)
        if self.most > 1 and self.ahead is None and len(self.done) >= self.threshold:
            self.ahead = ([], draft + [PAD] * (self.n - len(draft)))
        return self.out[-(matches + 1) :], False


def tree_paths(tree: TokenTree) -> list[tuple[tuple[int, ...], bool]]:
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, len(tree)):
        paths.append((*paths[tree.parents[row]], tree.tokens[row]))
    return list(zip(paths, tree.accept or [True] * len(tree), strict=True))[1:]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [2, 6, 12])
def test_released_trees_are_those_of_a_plain_rendering(n: int, size: int) -> None:
    for most, r in product((1, 2), (0, 0.5, 0.85)):
        rows = set()
        for seed in range(4):
            target = language(seed, words=5, memory=1 + seed % 2, period=7 * (seed // 2))
            walked = decoded(
                target, 60, block_size=n, num_blocks=most, pool_size=size, activation_ratio=r, init="pad",
                prefill_draft=False, variant="released",
            )  # fmt: skip
            call = Call(target, [target(PROMPT, [])], n, most, r, size)
            for tree, emitted in zip(walked.trees, walked.emitted, strict=True):
                paths = tree_paths(tree)
                assert set(paths) == call.paths()
                assert len(set(paths)) == len(paths)  # rows that begin alike are shared
                rows.add(len(call.rows))
                expected, over = call.forward()
                assert emitted == expected
                if over:
                    call = Call(target, call.out, n, most, r, size)
        # As observed of the published code: a pool of up to 2 never yields a candidate, larger ones never just one.
        if n == 12:
            assert rows == {1} | set(range(3, size + 1)) or size == 8
        assert 2 not in rows
        assert size > 2 or rows == {1}


def test_a_released_call_ends_after_128_forwards() -> None:
    # One token a forward: after 128 of them the driver starts over with fresh guesses, though 22 are left.
    made = started(1, block_size=150, num_blocks=1, variant="released", recycling=False)
    for forward in range(1, 129):
        assert len(made.draft()) == 150 - forward + 1
        made.observe(decided([40] * (150 - forward + 1)))
    assert list(made.draft().tokens) == [40] + [PAD] * 149


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(("preset", "blocks", "chains"), [("vanilla", 1, 1), ("M", 2, 1), ("R", 1, 4), ("MR", 2, 4)])
def test_the_four_settings_of_the_two_switches(preset: str, blocks: int, chains: int) -> None:
    options = plan_methods(["jf"], [f"preset={preset}", "n=6", "r=0.3", "init=pad"])[1].options
    assert isinstance(options, Options)
    assert (options.blocks, options.chains) == (blocks, chains)
    target = language(2, words=4, memory=1, period=5)
    made = Decoder(options, Context(VOCAB, PAD, random.Random(0)))
    plain = decoder(block_size=6, activation_ratio=0.3, num_blocks=blocks, pool_size=chains, init="pad")
    assert walk(made, target, PROMPT, 80).drafts == walk(plain, target, PROMPT, 80).drafts
    measures = made.measures(80, False)
    assert (measures["carried"] > 0, measures["recycled"] > 0) == (blocks > 1, chains > 1)
