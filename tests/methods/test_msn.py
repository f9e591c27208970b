"""TR-Jacobi against the published tree, the table of what fills it, and a plain rendering of the published loop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.decoders import ToyTarget, greedy, language, walk

from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.jacobi import decoder as jacobi
from specbench.methods.msn.decoder import Decoder, Options
from specbench.methods.msn.trees import TREE, Shape
from specbench.planning.methods import plan_methods

VOCAB, PAD = 2000, 1999
Node = tuple[int, ...]

# The published list, in its own notation.
CHOICES = """
[0],[0,0],[1],[0,1],[2],[0,0,0],[1,0],[0,2],[3],[0,3],[4],[0,4],[2,0],[0,5],[0,0,1],[5],[0,6],[6],[0,7],[0,1,0],[1,1],
[7],[0,8],[0,0,2],[3,0],[0,9],[8],[9],[1,0,0],[0,2,0],[1,2],[0,0,3],[4,0],[2,1],[0,0,4],[0,0,5],[0,0,0,0],[0,1,1],
[0,0,6],[0,3,0],[5,0],[1,3],[0,0,7],[0,0,8],[0,0,9],[6,0],[0,4,0],[1,4],[7,0],[0,1,2],[2,0,0],[3,1],[2,2],[8,0],[0,5,0],
[1,5],[1,0,1],[0,2,1],[9,0],[0,6,0],[0,0,0,1],[1,6],[0,7,0]
"""
MEDUSA: list[Node] = [
    tuple(map(int, name.strip("[] \n").split(",")))
    for name in CHOICES.replace("\n", "").replace("],[", "]|[").split("|")
]
RETRIEVAL: list[Node] = [(10,) * depth for depth in range(1, 6)]
NODES: list[Node] = [(), *RETRIEVAL, *MEDUSA]
ROW = {node: row for row, node in enumerate(NODES)}


class Sentinel(random.Random):
    """Ahead noise that is always the first token of the prompt."""

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        return [population[0]] * k


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


# ------------------------------------------------------------------ the tree


def test_the_tree_is_the_published_list_after_the_retrieval_path() -> None:
    assert len(MEDUSA) == 63
    shape = Shape(TREE.known["mc_sim_7b_63"], 5)
    assert shape.nodes == NODES
    assert shape.parents == [-1, *(ROW[node[:-1]] for node in NODES[1:])]
    assert shape.depth == 5
    assert len(shape) == 69


@pytest.mark.parametrize(
    ("settings", "rows", "top_k"),
    [
        ([], 69, 10), (["retrieval=off"], 64, 10), (["retrieval=pld"], 69, 10), (["tree=chain", "m=4"], 5, 0),
        (["preset=jacobi"], 5, 0),  # the paper's chain of four guesses
    ],
)  # fmt: skip
def test_rows_and_lists_that_are_announced(settings: list[str], rows: int, top_k: int) -> None:
    method = plan_methods(["msn"], settings)[1]
    assert (method.max_rows, method.top_k) == (rows, top_k)
    made = method.new(Context(VOCAB, PAD, random.Random(0)))
    walked = walk(made, language(0), [1, 2, 3, 4, 5, 6, 7], 30, top_k=top_k, vocab=12)
    assert {len(tree) for tree in walked.trees} == {rows}


# ------------------------------------------------------------------ what fills it

TEXT = list(range(100, 130))  # no token twice: nothing to retrieve by, so the first window is


def reported(path: Sequence[Node], tree: TokenTree | None = None) -> StepResult:
    """A forward that accepts a path; row r's ten best tokens are 1000 + 10 r, 1001 + 10 r, ..."""
    rows = [ROW[node] for node in path]
    emitted = [tree.tokens[row] for row in rows[1:]] + [500] if tree else [500]
    result = [500] * 69
    for row, token in zip(rows, emitted, strict=True):
        result[row] = token
    top = 1000 + torch.arange(10 * 69).reshape(69, 10)
    return StepResult(emitted, rows, result, (-top.float(), top))


def table(made: Decoder) -> list[str]:
    """What the ten best guesses of each of the five positions ahead are: the row of their list, or noise."""
    found = []
    for position in made._drafter._table:  # type: ignore[union-attr]
        ten, first = position[:10], position[0]
        if first is None:
            assert set(ten) == {None}
            found.append("noise")
        else:
            row = (first - 1000) // 10
            assert ten == [1000 + 10 * row + rank for rank in range(10)]
            found.append(str(NODES[row]) if row else "root")
    return found


def sources(path: Sequence[Node], **options: Any) -> list[str]:
    """The table after a step that accepted ``path``."""
    made = decoder(**options)
    made.begin(TEXT)
    made.observe(reported([()]))
    made.observe(reported(path, made.draft()))
    return table(made)


def names(*nodes: Node) -> list[str]:
    return [str(node) for node in nodes]


R5 = names(*RETRIEVAL)


def down(leaf: Node, length: int | None = None) -> list[Node]:
    """The path to a node, cut to ``length`` accepted drafts."""
    return [leaf[:depth] for depth in range((len(leaf) if length is None else length) + 1)]


# The published table of consequences: accepted path, and the source of each position's guesses.
RELEASED = [
    (down((10,), 0), R5),  # nothing: the retrieval chain's five rows
    (down((0,)), [*names((0, 0), (0, 0, 1)), "root", "root", "noise"]),
    *((down((k,)), [*names((k, 1 if k < 3 else 0)), "root", "root", "root", "noise"]) for k in range(1, 10)),
    (down((0, 1, 0)), ["root", "root", "noise", "noise", "noise"]),  # a leaf of depth 3
    (down((0, 0, 1)), ["root", "root", "noise", "noise", "noise"]),  # the first leaf
    (down((10,) * 5), ["noise"] * 5),  # all that was retrieved
]


@pytest.mark.parametrize(("path", "expected"), RELEASED, ids=str)
def test_the_first_path_fills_the_tree_as_released(path: list[Node], expected: list[str]) -> None:
    assert sources(path, tie="first", fill="stale_root") == expected
    # With noise nothing is read off the root.
    assert sources(path, tie="first", fill="noise") == ["noise" if row == "root" else row for row in expected]


# ------------------------------------------------------------------ retrieval


def window_scan(pool: Sequence[int]) -> list[int]:
    """The published retrieval: every window of three in front of the last three, scored from its right end."""
    if len(pool) < 6:
        return []
    best, at = -1, 0
    for start in range(len(pool) - 5):
        score = 0
        while score < 3 and pool[start + 2 - score] == pool[-1 - score]:
            score += 1
        if score > best:
            best, at = score, start
    return list(pool[at + 3 : at + 8])


def lookup_scan(pool: Sequence[int]) -> list[int]:
    """Prompt lookup: earliest of the longest matches of 3 to 1 tokens that five tokens follow."""
    for size in (3, 2, 1):
        for start in range(len(pool) - size - 4):
            if list(pool[start : start + size]) == list(pool[-size:]):
                return list(pool[start + size : start + size + 5])
    return []


def retrieved(text: Sequence[int], how: str) -> tuple[list[int], list[int | None]]:
    """The first five tokens of the retrieval path after a text, and their column before noise went into it."""
    made = decoder(retrieval=how)
    made.begin(text[:-1])
    top = torch.zeros(69, 10, dtype=torch.int64)
    made.observe(StepResult([text[-1]], [0], [text[-1]] * 69, (top, top)))
    column = [position[10] for position in made._drafter._table]  # type: ignore[union-attr]
    tree = made.draft()
    chain = [tree.tokens[ROW[node]] for node in RETRIEVAL]
    assert [token for token in column if token is not None] == chain[: 5 - column.count(None)]
    assert set(chain) <= set(text)
    return chain, column


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_retrieval_is_a_plain_scan(text: list[int]) -> None:
    chain, column = retrieved(text, "soft3")
    expected = window_scan(text)
    assert column == [*expected, *[None] * (5 - len(expected))]
    assert chain[: len(expected)] == expected
    followed: list[int | None] = [*lookup_scan(text)]
    assert retrieved(text, "pld")[1] == (followed or [None] * 5)


def test_nothing_is_retrieved_for_the_prefill() -> None:
    # Its guesses are ahead noise, retrieval path included; none of them may be emitted.
    noise = Decoder(Options(), Context(VOCAB, PAD, Sentinel()))
    tree = noise.begin([9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert tree is not None
    assert list(tree.tokens) == [3] + [9] * 68
    assert list(tree.accept or ()) == [True] + [False] * 68


def test_noise_is_drawn_from_prompt_and_output_for_each_cell() -> None:
    made = decoder()
    tree = made.begin(TEXT)
    assert tree is not None
    assert set(tree.tokens) <= set(TEXT)
    # Nodes of one depth and rank carry the same token, others their own draw.
    assert tree.tokens[ROW[1, 0]] == tree.tokens[ROW[0, 0]]
    assert len({tree.tokens[ROW[k,]] for k in range(10)}) > 5


# ------------------------------------------------------------------ against a plain rendering of the published loop


def rendering(
    target: ToyTarget,
    prompt: Sequence[int],
    tokens: int,
    vocab: int,
    tie: str,
    fill: str,
    retrieval: str,
    listed: Sequence[Node] = MEDUSA,
) -> tuple[list[list[int]], list[list[int]]]:
    """(tokens of the tree, emitted tokens) of each forward after the prefill; noise is the prompt's first token."""
    nodes = [*listed] if retrieval == "off" else [*RETRIEVAL, *listed]
    deep = max(map(len, nodes))
    inner = {node[:-1] for node in nodes}
    paths: list[list[Node | None]] = []
    for leaf in nodes:
        if leaf not in inner:
            path: list[Node | None] = [leaf[:depth] for depth in range(len(leaf) + 1)]
            paths.append(path + [None] * (deep + 1 - len(path)))

    def best_ten(path: Sequence[int]) -> list[int]:
        return [(target(prompt, [*out, *path]) + rank) % vocab for rank in range(10)]

    guesses: dict[tuple[int, int], int] = {}  # (position ahead, rank) -> token
    out: list[int] = []
    trees: list[list[int]] = []
    emitted: list[list[int]] = []
    while len(out) < tokens:
        token_of = {node: guesses.get((len(node) - 1, node[-1]), prompt[0]) for node in nodes}

        def words(node: Node, token_of: dict[Node, int] = token_of) -> list[int]:
            return [token_of[node[:depth]] for depth in range(1, len(node) + 1)]

        runs = []
        for path in paths:
            run = 0
            while out and run < deep:  # nothing is accepted along with the prompt
                node, parent = path[run + 1], path[run]
                if node is None or parent is None or token_of[node] != target(prompt, out + words(parent)):
                    break
                run += 1
            runs.append(run)
        most = max(runs)
        winners = [path for path, run in zip(paths, runs, strict=True) if run == most]
        chosen = winners[0] if tie == "first" else min(winners, key=lambda path: path.count(None))
        guesses = {}
        for ahead in range(deep - most):
            source = chosen[most + 1 + ahead]
            if source is not None or fill == "stale_root":
                best = target(prompt, out + words(source or ()))
                guesses.update({(ahead, rank): (best + rank) % vocab for rank in range(10)})
        end = chosen[most]
        assert end is not None
        new = words(end)
        new.append(target(prompt, out + new))
        if out:
            trees.append([out[-1]] + [token_of[node] for node in nodes])
            emitted.append(new)
        out += new
        found = {"soft3": window_scan, "pld": lookup_scan, "off": lambda pool: []}[retrieval]([*prompt, *out])
        guesses.update({(ahead, 10): token for ahead, token in enumerate(found)})
    return trees, emitted


@pytest.mark.parametrize("retrieval", ["soft3", "pld", "off"])
@pytest.mark.parametrize("tie", ["longest", "first"])
def test_trees_are_those_of_a_plain_rendering(tie: str, retrieval: str) -> None:
    prompt, vocab = [48, 1, 2, 3, 4, 5, 6], 13
    for fill in ("noise", "stale_root"):
        accepted = Counter[int]()
        for seed in range(4):
            target = language(seed, words=vocab, memory=1 + seed % 2, period=(0, 5)[seed // 2])
            options = Options.model_validate({"tie": tie, "fill": fill, "retrieval": retrieval})
            made = Decoder(options, Context(VOCAB, PAD, Sentinel()))
            walked = walk(made, target, prompt, 50, top_k=10, vocab=vocab)
            trees, emitted = rendering(target, prompt, 50, vocab, tie, fill, retrieval)
            assert [list(tree.tokens) for tree in walked.trees] == trees
            assert walked.emitted == emitted
            accepted.update(map(len, emitted))
        assert set(accepted) >= {1, 2, 3}  # several depths were reached


def other_tree(draw: random.Random) -> list[Node]:
    """A random tree, deeper than the published one, in some order in which a parent is before its child."""
    found: list[Node] = []
    while len(found) < 30:
        node = (*draw.choice([(), *found]), draw.randrange(10))
        found += [node] if node not in found else []
    return found


@pytest.mark.parametrize(("tie", "retrieval"), [("longest", "soft3"), ("first", "off")])
def test_other_trees_are_those_of_a_plain_rendering_too(tie: str, retrieval: str) -> None:
    prompt, vocab = [48, 1, 2, 3, 4, 5, 6], 11
    accepted = Counter[int]()
    for seed in range(6):
        listed = other_tree(random.Random(seed))
        target = language(seed, words=vocab, memory=1 + seed % 2, period=(0, 5)[seed % 2])
        options = Options.model_validate({"tie": tie, "retrieval": retrieval, "tree": str(list(map(list, listed)))})
        walked = walk(Decoder(options, Context(VOCAB, PAD, Sentinel())), target, prompt, 50, top_k=10, vocab=vocab)
        trees, emitted = rendering(target, prompt, 50, vocab, tie, "noise", retrieval, listed)
        assert [list(tree.tokens) for tree in walked.trees] == trees
        assert walked.emitted == emitted
        assert walked.output == greedy(target, prompt, len(walked.output))
        accepted.update(map(len, emitted))
    assert set(accepted) >= {1, 2, 3}


# ------------------------------------------------------------------ the chain


def test_the_chain_is_sliding_jacobi_of_one_more_token() -> None:
    for m, seed in product((1, 4, 9), range(5)):
        target = language(seed, words=6, memory=seed % 3, period=7)
        options = jacobi.Options(block_size=m + 1, window="sliding")
        theirs = walk(jacobi.Decoder(options, Context(VOCAB, PAD, random.Random(seed))), target, TEXT, 60)
        mine = walk(decoder(seed, tree="chain", draft_length=m), target, TEXT, 60)
        assert mine.prefill is not None
        assert theirs.prefill is not None
        assert list(mine.prefill.tokens) == list(theirs.prefill.tokens)
        assert (mine.drafts, mine.output) == (theirs.drafts, theirs.output)
        assert {len(tree) for tree in mine.trees} == {m + 1}
