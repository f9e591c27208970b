"""Suffix, recycling, sam and logitspec against their rules in :mod:`plain_lookup`, by hand and on random streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support.decoders import random_tree
from support.oracles import TREE_222, Both, LogitSpec, Recycling, Sam, Suffix, SuffixRow, SuffixTree

from specbench.common import registry
from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.sam import corpus

A, B, C, D, E = 1, 2, 3, 4, 5


def decided(emitted: list[int], *top: list[int]) -> StepResult:
    """A forward that accepts no draft, or of which no one looks at the path."""
    ids = torch.tensor(top)
    return StepResult(emitted, [0], emitted, (torch.zeros(ids.shape), ids) if top else None)


def both(method: str, shared: Any = None, **options: Any) -> Both:
    """A request that begins cold, with a vocabulary of ten tokens."""
    given = valid(method, **options)
    oracles: dict[str, Callable[[], Any]] = {
        "suffix": lambda: Suffix(given),
        "recycling": lambda: Recycling(given, [tuple(map(int, name)) for name in given.tree.split()]),
        "sam": lambda: Sam(given, 10, *(shared or ([], 0))),
        "logitspec": lambda: LogitSpec(given),
    }
    return Both(decoder(method, given, 10, corpus.of(*shared) if shared else None), oracles[method]())


def valid(method: str, **options: Any) -> Any:
    """Its options."""
    return registry.method(method).load().Options(**options)


def kind(method: str) -> Any:
    """Its class."""
    return registry.method(method).load().Decoder


def decoder(method: str, options: Any, vocab: int, shared: Any = None, state: Any = None) -> Any:
    return kind(method)(options, Context(vocab, 0, random.Random(0), shared, state))


# ---------------------------------------------------------------- by hand


# Children of A.
@pytest.mark.parametrize(
    ("text", "order"),
    [
        ([A, B, A, C], [B, C]),  # a new one goes to the end
        ([A, B, A, C, A, C], [C, B]),  # and overtakes who has less
        ([A, B, A, C, A, C, A, B], [B, C]),  # or as much as it now has
        ([A, B, A, C, A, D, A, D], [D, B, C]),  # in front of all that are like the one in front of it
        ([A, B, A, C, A, B, A, D, A, C], [C, B, D]),
        # C had three after B had them; D has not as many as B.
        ([A, B, A, B, A, B, A, C, A, C, A, C, A, D, A, D], [C, B, D]),
    ],
)
def test_suffix_orders_children_by_when_they_got_their_count(text: list[int], order: list[int]) -> None:
    tree = SuffixTree(4)
    tree.sequences[0] = []
    for token in text:
        tree.add(0, token)
    assert tree.children((A,)) == order


def test_suffix_forgets_a_sequence_from_its_first_token_on() -> None:
    tree = SuffixTree(3)
    tree.sequences = {1: [], 2: []}
    for token in [A, B]:
        tree.add(1, token)
    for token in [A, C, A, C, A, B]:
        tree.add(2, token)
    assert tree.children((A,)) == [B, C]  # two each
    assert [tree.count((A,)), tree.count((A, C)), tree.count((A, C, A))] == [4, 2, 2]
    tree.forget(1)
    assert tree.children((A,)) == [C, B]
    assert [tree.count((A,)), tree.count((A, C)), tree.count((A, B))] == [3, 2, 1]
    tree.forget(2)
    assert tree.children((A,)) == []
    assert tree.count((A,)) == 0


# After A B come C and D, once each of three places; after B the same, but a match of one drafts but one token.
FORKED = [A, B, C, A, B, D, A, B]


@pytest.mark.parametrize(
    ("options", "tokens", "parents", "score"),
    [
        ({}, [B, C, A], [-1, 0, 1], 2 / 3),
        ({"tree": True}, [B, C, D], [-1, 0, 0], 2 / 3),  # A after C is as likely as D, which was there first
        ({"tree": True, "offset": 2}, [B, C, D, A, A], [-1, 0, 0, 1, 2], 4 / 3),
        ({"draft_length": 1}, [B, C], [-1, 0], 1 / 3),
        ({"factor": 0.49}, [B], [-1], 0),  # 0.98 of a token
        ({"min_prob": 0.34}, [B], [-1], 0),
        ({"depth": 2, "offset": 5}, [B, C], [-1, 0], 1 / 3),  # only B is matched, and one token is counted after it
        ({"depth": 3, "offset": 5}, [B, C, A], [-1, 0, 1], 2 / 3),
    ],
)
def test_suffix_by_hand(options: dict[str, Any], tokens: list[int], parents: list[int], score: float) -> None:
    one = both("suffix", **options)
    assert one.after(FORKED[:-1], decided(FORKED[-1:])) == (tokens, parents)
    assert one.oracle.score == pytest.approx(score)


# Three of five As are followed by B, one of three A Bs by C: a fifth, and in doubles a little less.
def test_suffix_takes_what_is_as_probable_as_asked() -> None:
    text = [A, B, C, A, B, D, A, B, E, A, 0, A]
    for least, path, tree in ((0.2, [A, B, C, A, B], [A, B, 0, C, D]), (0.2001, [A, B], [A, B])):
        for branching, tokens in ((False, path), (True, tree)):
            one = both("suffix", offset=3, min_prob=least, tree=branching)
            assert one.after(text[:-1], decided(text[-1:]))[0] == tokens


@pytest.mark.parametrize(("cached", "tokens"), [(1, [B]), (2, [B, C])])
def test_suffix_finds_earlier_outputs_while_they_have_a_place(cached: int, tokens: list[int]) -> None:
    options = valid("suffix", cached_requests=cached)
    state = kind("suffix").state(options)
    row = SuffixRow(options.depth, cached)
    first, second = (Both(decoder("suffix", options, 10, state=state), Suffix(options, row)) for _ in "12")
    assert first.after([E, D], decided([A])) == ([A], [-1])
    first.observe([A], decided([B, C]))
    first.decoder.end()
    assert second.after([E, A], decided([B]))[0] == tokens


@pytest.mark.parametrize(("unknown", "tokens", "parents"), [("skip", [C], [-1]), ("zero", [C, 0, 0, 0], [-1, 0, 0, 1])])
def test_recycling_by_hand(unknown: str, tokens: list[int], parents: list[int]) -> None:
    one = both("recycling", tree="0 1 00", unknown=unknown)
    assert one.after([A, B], decided([C], [C, D])) == (tokens, parents)  # nothing is known of C
    # Of two rows of one token the last one counts, and none has to be accepted.
    top = [B, A], [A, E], [E, A]
    assert one.other([C, D, D], [-1, 0, 0], decided([B], *top)) == ([B, C, D, B], [-1, 0, 0, 1])
    assert one.other([B], [-1], decided([D], [C, D]))[0][:3] == [D, E, A]


def test_recycling_keeps_the_nodes_of_the_lowest_ranks() -> None:
    # Sums of rank + 1: 0 has 1; 00 and 1 have 2, and 1 is shorter; 000, 01, 10 and 2 have 3, and 2 is shorter.
    kept = {
        2: "0",
        3: "0 1",
        4: "0 1 00",
        5: "0 1 2 00",
        6: "0 1 2 00 01",
        7: "0 1 2 00 01 10",
        8: "0 1 2 00 01 10 000",
    }
    for budget, names in kept.items():
        one = both("recycling", tree="0 1 2 00 01 10 000", budget=budget, unknown="zero")
        assert ["".join(map(str, node)) for node in one.oracle.nodes] == names.split()
        assert len(one.after([A], decided([B], [1, 2, 3]))[0]) == budget


def test_recyclings_own_tree_is_the_published_one() -> None:
    assert [sum(len(node) == depth for node in TREE_222) for depth in range(1, 7)] == [8, 21, 25, 15, 8, 3]
    assert len(set(TREE_222)) == 80
    assert all(node[:-1] in TREE_222 for node in TREE_222 if len(node) > 1)


@pytest.mark.parametrize(
    ("text", "options", "copied"),
    [
        ([A, B, C, D, A, B], {"k": 2}, [C, D]),
        ([A, B, C, D, A, B], {"k": 4}, [C, D, A, B]),
        ([A, B, C, D, A, B], {"k": 5}, []),  # four tokens follow A B, and B too
        ([A, B, C, D, A, B], {"k": 5, "full_only": False}, [C, D, A, B]),
        ([A, B, C, D, A, B], {"k": 5, "full_only": False, "alpha": 1.4}, [C, D]),
        ([A, B, C, D, A, B], {"k": 2, "alpha": 0.4}, []),  # 0.8 of a token
        ([A, 5, A, 6, A, 7, A], {"k": 1}, [5]),  # the first
        # Three tokens follow A B; B alone has eight after it, and a match of one is worth two tokens.
        ([B, E, E, E, A, B, C, A, B], {"k": 3, "alpha": 2}, [C, A, B]),
        ([B, E, E, E, A, B, C, A, B], {"k": 4, "alpha": 2}, [E, E]),
        ([A, A, A, A], {"k": 1}, [A]),  # matches may overlap
        ([A, A, A, A], {"k": 3}, [A, A, A]),  # three As are followed by one token, one A by three
    ],
)
def test_sam_by_hand(text: list[int], options: dict[str, Any], copied: list[int]) -> None:
    assert both("sam", **options).after(text[:-1], decided(text[-1:]))[0][1:] == copied


@pytest.mark.parametrize(
    ("text", "separator", "options", "copied"),
    [
        ([7, A, B], 0, {"len_bias": 1, "k": 9}, [C, D, 0]),  # up to the first separator, if the model knows it
        ([7, A, B], 10, {"len_bias": 1, "k": 9}, [C, D]),
        ([7, A, B], 0, {"len_bias": 1, "k": 9, "alpha": 2}, [C, D]),  # of two matching tokens one counts
        ([7, A, B], 0, {"len_bias": 2, "k": 9}, []),
        ([A, B, E, A, B], 0, {"len_bias": 1, "full_only": False}, [E, A, B]),  # two are matched here, and one there
        ([7, A, B], 0, {"len_bias": 1, "k": 12}, [C, D, 0]),  # twelve tokens follow A B, whatever their texts
        ([7, A, B], 0, {"len_bias": 1, "k": 13}, []),
        ([7, 8], 0, {"len_bias": 0, "k": 2}, [9]),  # the model knows no 11
        ([7, 9, 0], 0, {"len_bias": 0, "k": 1}, [A]),  # nothing follows 9 0
    ],
)
def test_sam_with_a_corpus_by_hand(text: list[int], separator: int, options: dict[str, Any], copied: list[int]) -> None:
    texts = [[A, B, C, D], [A, B, E], [8, 9, 11, 9]]
    assert both("sam", (texts, separator), **options).after(text[:-1], decided(text[-1:]))[0][1:] == copied


def test_logitspec_by_hand() -> None:
    # Root B: after A B come C A B. After A B C come A B, after B A nothing, after the first A four tokens.
    prompt, result = [A, B, C, A], decided([B], [C, B, A, 7])
    assert both("logitspec").after(prompt, result) == ([B, C, A, B, A, B, C, A, 7], [-1, 0, 1, 2, 0, 4, 5, 6, 0])
    assert both("logitspec", budget=8).after(prompt, result) == ([B, C, A, B, A], [-1, 0, 1, 2, 0])  # 3 + 3 + 1 tokens
    assert both("logitspec", k=1, budget=8).after(prompt, result) == ([B, C, A, A, B, 7], [-1, 0, 1, 0, 3, 0])


# ---------------------------------------------------------------- streams


class Stream:
    """Stream: requests with random texts, two at a time; before each forward the decoder's tree is the oracle's."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng = random.Random(f"{name} {seed}")
        self.vocab = self.rng.randint(2, 6)
        self.texts = [self.some(self.rng.randint(3, 40))]
        self.drafted = 0

    def some(self, length: int) -> list[int]:
        return [self.rng.randrange(self.vocab) for _ in range(length)]

    def more(self, length: int) -> list[int]:
        """Tokens made up, or copied from any text so far, for then matches become long."""
        text = self.rng.choice(self.texts)
        at = self.rng.randrange(len(text))
        return text[at : at + length] if self.rng.random() < 0.7 else self.some(length)

    def prompt(self) -> list[int]:
        wanted, made = self.rng.choice([3, self.rng.randint(3, 40)]), list[int]()
        while len(made) < wanted:
            made += self.more(self.rng.randint(1, 12))
        return made[:wanted]

    def play(self, make: Callable[[], Both], requests: int, columns: int = 0) -> None:
        """Decodes requests, of which two at most run at a time."""
        running = list[Iterator[None]]()
        while requests or running:
            if requests and (not running or (len(running) < 2 and self.rng.random() < 0.3)):
                running.append(self.request(make(), columns))
                requests -= 1
            one = self.rng.choice(running)
            if next(one, running) is running:
                running.remove(one)

    def request(self, one: Both, columns: int) -> Iterator[None]:
        one.begin(self.prompt())
        self.texts.append(one.text)
        tree = TokenTree(one.text[-1:], [-1])
        for forward in range(self.rng.randint(0, 9)):
            yield
            asked = self.rng.random() < 0.9  # who stands next to another decoder is not always asked
            if forward and asked:
                tree = TokenTree(*one.draft())
                self.drafted += len(tree) - 1
            if forward and (not asked or self.rng.random() < 0.1):
                tree = random_tree(self.rng, one.text[-1], self.vocab, self.rng.randint(1, 8))
                one.decoder.instead(tree)
            one.observe(tree.tokens, self.forward(tree, columns, most=5 if forward else 1))
        one.decoder.end()

    def forward(self, tree: TokenTree, columns: int, most: int) -> StepResult:
        """What a forward over a tree decides, at random."""
        if not columns:
            emitted = self.more(self.rng.randint(1, most))
            return StepResult(emitted, list(range(len(emitted))), emitted)
        path = [0]
        while len(path) < most and self.rng.random() < 0.8:
            below = [row for row in range(len(tree)) if tree.parents[row] == path[-1]]
            path += self.rng.sample(below, min(1, len(below)))
        accepted = [tree.tokens[row] for row in path[1:]] if self.rng.random() < 0.7 else self.some(len(path) - 1)
        emitted = accepted + self.some(1)
        ids = torch.tensor([self.rng.sample(range(max(self.vocab, columns)), columns) for _ in tree.tokens])
        return StepResult(emitted, path, self.some(len(tree)), (-torch.arange(columns).expand_as(ids).float(), ids))


def state_of(method: str, options: Any, stateful: bool) -> Any:
    """What the requests of a row hand on, if these options have them do so."""
    state = kind(method).state(options)
    assert (state is not None) == stateful
    return state


def suffix(seed: int) -> Stream:
    stream = Stream("suffix", seed)
    pick = stream.rng.choice
    options = valid(
        "suffix",
        depth=pick([2, 3, 5, 8, stream.rng.randint(2, 24), 24]),
        draft_length=pick([1, 3, 8, 24]),
        factor=pick([0, 0.5, 0.7, 1, 1, 2, 3.3]),
        offset=pick([-2, -0.5, 0, 0.9, 1, 4]),
        min_prob=pick([0, 0.1, 0.1, 0.2, 0.25, 0.5, 1]),
        tree=pick([False, True]),
        cached_requests=pick([0, 1, 2, 5]),
    )
    # Without a state each request begins cold.
    state = state_of("suffix", options, options.cached_requests > 0) if pick([True, True, False]) else None
    row = SuffixRow(options.depth, options.cached_requests) if state is not None else None
    stream.play(
        lambda: Both(decoder("suffix", options, stream.vocab, state=state), Suffix(options, row)),
        requests=pick([1, 2, 4, 8]) if options.cached_requests else 1,
    )
    return stream


def recycling(seed: int) -> Stream:
    stream = Stream("recycling", seed)
    pick = stream.rng.choice
    nodes = TREE_222
    if pick([True, True, False]):
        nodes, ranks = [(rank,) for rank in range(stream.rng.randint(1, 3))], stream.rng.randint(2, 8)
        for _ in range(stream.rng.randint(0, 20)):
            node = (*pick([(), *nodes]), stream.rng.randrange(ranks))
            nodes += [node] if node not in nodes else []
    options = valid(
        "recycling",
        tree="2.2.2" if nodes is TREE_222 else " ".join("".join(map(str, node)) for node in nodes),
        budget=pick([2, stream.rng.randint(2, 81), stream.rng.randint(2, len(nodes) + 2), 81]),
        warm=pick([False, True]),
        unknown=pick(["skip", "zero"]),
    )
    state = state_of("recycling", options, options.warm) if pick([True, True, False]) else None
    matrix: dict[int, list[int]] | None = {} if options.warm and state is not None else None
    stream.play(
        lambda: Both(decoder("recycling", options, 16, state=state), Recycling(options, nodes, matrix)),
        requests=pick([1, 2, 4]),
        columns=kind("recycling").top_k(options)
        + pick([0, 0, 2]),  # next to another method there may be more than it asked for
    )
    return stream


def sam(seed: int) -> Stream:
    stream = Stream("sam", seed)
    pick, vocab = stream.rng.choice, stream.vocab
    options = valid(
        "sam",
        draft_length=pick([1, 2, 3, 5, 8, 40]),
        alpha=pick([0.3, 0.7, 1, 2.5, 4]),
        full_only=pick([True, False]),
        len_bias=pick([0, 1, 2, 5]),
    )
    separator = pick([0, vocab - 1, vocab, vocab + 2, -1])
    texts = [stream.some(stream.rng.randint(0, 40)) for _ in range(pick([0, 1, 2, 4]))]
    stream.texts += [list(text) for text in texts if text]
    for text in texts:
        if stream.rng.random() < 0.3:  # a tokenizer may know tokens that the model does not
            text.insert(stream.rng.randint(0, len(text)), vocab + 1)
    shared = corpus.of(texts, separator) if texts else None
    stream.play(
        lambda: Both(decoder("sam", options, vocab, shared), Sam(options, vocab, texts, separator)),
        requests=pick([1, 2]),
    )
    return stream


def logitspec(seed: int) -> Stream:
    stream = Stream("logitspec", seed)
    pick = stream.rng.choice
    stream.vocab = pick([stream.vocab, stream.vocab, 12, 40])
    options = valid(
        "logitspec", max_ngram=pick([1, 2, 3, 3, 6]), draft_length=pick([1, 2, 5, 20]), budget=pick([2, 3, 8, 20, 64])
    )
    columns = kind("logitspec").top_k(options) + pick([0, 0, 3])
    stream.play(
        lambda: Both(decoder("logitspec", options, 80), LogitSpec(options)),
        requests=1,
        columns=pick([columns, columns, min(columns, stream.vocab)]),  # a vocabulary may be smaller than the budget
    )
    return stream


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 1000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream", [suffix, recycling, sam, logitspec])
def test_a_decoders_trees_are_those_of_its_rules(stream: Callable[[int], Stream], seeds: Sequence[int]) -> None:
    played = [stream(seed) for seed in seeds]
    # Most streams draft something, or they compare nothing.
    assert sum(one.drafted > 0 for one in played) > len(played) / 2
