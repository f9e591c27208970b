"""Suffix decoding, Token Recycling, SAM-Decoding and LogitSpec as their rules: plain searches over lists, no index.

Each one has ``begin(prompt)``, ``observe(fed, result)`` with the tokens of the rows that the forward was over, and
``draft()``: tokens and parents of the next tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Any, TypeAlias

from specbench.decoding.tree import StepResult, TokenTree

#: Tokens and parents, row 0 the root.
Tree: TypeAlias = tuple[list[int], list[int]]
Tokens: TypeAlias = tuple[int, ...]


def chain(tokens: Sequence[int]) -> Tree:
    """Each token under the one before."""
    return list(tokens), list(range(-1, len(tokens) - 1))


def starts(wanted: list[int], text: list[int]) -> list[int]:
    """Where it occurs in a text, first place first."""
    size = len(wanted)
    return [at for at in range(len(text) - size + 1) if text[at : at + size] == wanted]


# ---------------------------------------------------------------- suffix


class SuffixTree:
    """Suffix tree: its sequences, and of each string what happened to its children, in the order in which it did."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.sequences: dict[int, list[int]] = {}
        self.journal: dict[Tokens, list[tuple[int, int]]] = {}  # string -> (+1 or -1, child)

    def add(self, owner: int, token: int) -> None:
        """One more token behind a sequence."""
        before = tuple(self.sequences[owner])
        for length in range(1, min(len(before), self.depth - 1) + 1):
            self.journal.setdefault(before[-length:], []).append((1, token))
        self.sequences[owner].append(token)

    def forget(self, owner: int) -> None:
        """A sequence goes, its suffixes from its first token on."""
        gone = self.sequences.pop(owner)
        for first in range(len(gone)):
            for child in range(first + 1, min(len(gone), first + self.depth)):
                self.journal[tuple(gone[first:child])].append((-1, gone[child]))

    def count(self, string: Tokens) -> int:
        """Places where it occurs."""
        return sum(len(starts(list(string), sequence)) for sequence in self.sequences.values())

    def children(self, string: Tokens) -> list[int]:
        """What followed it, most frequent first: all that happened, once more."""
        order, counts = list[int](), dict[int, int]()
        for change, child in self.journal.get(string, []):
            if change > 0 and child not in order:
                order.append(child)
                counts[child] = 1
            elif change > 0:
                place = order.index(child)
                if place > 0 and counts[order[place - 1]] <= counts[child] + 1:
                    alike = counts[order[place - 1]]
                    order.remove(child)
                    order.insert([counts[other] for other in order].index(alike), child)
                counts[child] += 1
            else:
                behind = max(place for place, other in enumerate(order) if counts[other] == counts[child])
                order.remove(child)
                order.insert(behind, child)
                counts[child] -= 1
                if counts[child] == 0:
                    order.remove(child)
        return order


class SuffixRow:
    """What the requests of a row share: a tree of their outputs, with places for so many of them."""

    def __init__(self, depth: int, most: int) -> None:
        self.tree = SuffixTree(depth)
        self.most = most
        self.begun = 0

    def begin(self) -> int:
        """A request's number; it has the newest place, and the oldest one's is lost where there are too many."""
        self.begun += 1
        if self.most:
            self.tree.sequences[self.begun] = []
        if len(self.tree.sequences) > self.most:
            self.tree.forget(min(self.tree.sequences))
        return self.begun

    def add(self, request: int, token: int) -> None:
        """One more token of a request's output, if it has a place yet."""
        if request in self.tree.sequences:
            self.tree.add(request, token)


class Suffix:
    """Suffix decoding, in fractions, of which equal ones are equal.

    Without ``row`` a request begins cold: there is nothing but its own text.
    """

    def __init__(self, options: Any, row: SuffixRow | None = None) -> None:
        self.options = options
        self.row = SuffixRow(options.depth, 0) if row is None else row
        self.text = SuffixTree(options.depth)
        self.text.sequences[0] = []
        self.least = Fraction(str(options.min_prob))  # as it is written: 0.1 is a tenth
        self.score = Fraction(0)

    def begin(self, prompt: Sequence[int]) -> None:
        self.number = self.row.begin()
        for token in prompt:
            self.text.add(0, token)

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        for token in result.emitted:
            self.text.add(0, token)
            self.row.add(self.number, token)

    def draft(self) -> Tree:
        text = self.text.sequences[0]
        local, own = self.best(self.text)
        earlier, shared = self.best(self.row.tree)
        self.score, (tokens, parents) = (local, own) if local >= earlier else (earlier, shared)
        return [text[-1], *tokens], [-1, *parents]

    def best(self, tree: SuffixTree) -> tuple[Fraction, Tree]:
        """The drafts of all match lengths: the highest score, of equal ones the longest match."""
        options, context = self.options, tuple(self.text.sequences[0][-self.options.depth :])
        found: tuple[Fraction, Tree] = Fraction(0), ([], [])
        for length in range(1, len(context)):
            match = context[-length:]
            if tree.count(match) == 0:
                break
            budget = max(0, min(options.draft_length, int(length * options.factor + options.offset + 1e-6)))
            drafted = (self.grown if options.tree else self.followed)(tree, match, budget)
            if drafted[0] >= found[0]:
                found = drafted
        return found

    def followed(self, tree: SuffixTree, string: Tokens, budget: int) -> tuple[Fraction, Tree]:
        """The most frequent child of the most frequent child, and so on."""
        tokens, prob, score = list[int](), Fraction(1), Fraction(0)
        while len(tokens) < budget and (children := tree.children(string)):
            child = (*string, children[0])
            prob *= Fraction(tree.count(child), tree.count(string))
            if prob < self.least:
                break
            tokens.append(children[0])
            score += prob
            string = child
        return score, (tokens, list(range(len(tokens))))

    def grown(self, tree: SuffixTree, string: Tokens, budget: int) -> tuple[Fraction, Tree]:
        """The most probable of all children seen so far, and so on."""
        tokens, parents, score = list[int](), list[int](), Fraction(0)
        # Probability, string that ends with the token, row that it hangs under.
        waiting = list[tuple[Fraction, Tokens, int]]()

        def wait(prob: Fraction, string: Tokens, row: int) -> None:
            for token in tree.children(string):
                likely = prob * Fraction(tree.count((*string, token)), tree.count(string))
                if likely < self.least:
                    break
                waiting.append((likely, (*string, token), row))

        wait(Fraction(1), string, 0)
        while len(tokens) < budget and waiting:
            first = max(waiting, key=lambda one: one[0])  # of equal ones the first in the list
            waiting.remove(first)
            prob, string, parent = first
            tokens.append(string[-1])
            parents.append(parent)
            score += prob
            wait(prob, string, len(tokens))
        return score, (tokens, parents)


# ------------------------------------------------------------- recycling

#: The published tree "2.2.2": how many children a node has, by its ranks; those not named have none.
_CHILDREN = {
    8: "- 0 00", 5: "000", 4: "1", 3: "2 01 0000", 2: "3 02 10 001 00000",
    1: "4 5 6 7 03 04 05 06 07 11 20 30 40 50 002 003 004 010 020 100 200 300 0001 0002 0010 0100 1000 00010",
}  # fmt: skip
TREE_222 = [
    (*(int(rank) for rank in name.strip("-")), child)
    for number, names in _CHILDREN.items()
    for name in names.split()
    for child in range(number)
]


class Recycling:
    """Token Recycling with a tree of ranks; ``matrix`` is what earlier requests left."""

    def __init__(
        self, options: Any, nodes: Iterable[Sequence[int]], matrix: dict[int, list[int]] | None = None
    ) -> None:
        self.matrix = {} if matrix is None else matrix
        self.options = options
        dear = sorted(map(tuple, nodes), key=lambda node: (sum(rank + 1 for rank in node), len(node), node))
        self.nodes: list[Tokens] = sorted(dear[: options.budget - 1], key=lambda node: (len(node), node))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        assert result.top is not None
        for token, best in zip(fed, result.top[1].tolist(), strict=True):
            self.matrix[token] = best
        self.root = result.emitted[-1]

    def draft(self) -> Tree:
        tokens, parents = [self.root], [-1]
        rows: dict[Tokens, int] = {(): 0}
        for node in self.nodes:
            if node[:-1] not in rows:
                continue
            above = tokens[rows[node[:-1]]]
            if above in self.matrix:
                token = self.matrix[above][node[-1]]
            elif self.options.unknown == "zero":
                token = 0
            else:
                continue
            rows[node] = len(tokens)
            tokens.append(token)
            parents.append(rows[node[:-1]])
        return tokens, parents


# ------------------------------------------------------------------- sam


class Sam:
    """SAM-Decoding; the corpus is the texts with the separator behind each."""

    def __init__(self, options: Any, vocab: int, texts: Sequence[Sequence[int]] | None, separator: int) -> None:
        self.options, self.vocab, self.separator = options, vocab, separator
        self.corpus = [token for text in texts or [] for token in [*text, separator]]
        self.text = list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.text += prompt

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        self.text += result.emitted

    def match(self, searched: list[int]) -> tuple[int, int]:
        """How many of the last tokens occur before the end of a text, and where they first end; 0, 0 if none do."""
        for length in range(len(self.text), 0, -1):
            for at in starts(self.text[-length:], searched[:-1])[:1]:
                if not self.options.full_only or at + length + self.options.draft_length <= len(searched):
                    return length, at + length
        return 0, 0

    def draft(self) -> Tree:
        worth, end = self.match(self.text)
        static, behind = self.match(self.corpus)
        if static - self.options.len_bias > worth:
            worth = static - self.options.len_bias
            copied = self.corpus[behind:]
            if self.separator in copied:
                copied = copied[: copied.index(self.separator) + 1]
            copied = list(takewhile(lambda token: 0 <= token < self.vocab, copied))
        else:
            copied = self.text[end:]
        longest = min(self.options.draft_length, int(self.options.alpha * worth))
        return chain([self.text[-1], *copied[:longest]])


# ------------------------------------------------------------- logitspec


class LogitSpec:
    """LogitSpec: branches under the root, of which those that begin alike share rows."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.text = list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.text += prompt

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        assert result.top is not None
        self.text += result.emitted
        self.candidates = result.top[1].tolist()[result.path[-1]][: self.options.budget]

    def look(self, ngram: list[int]) -> list[int]:
        """What followed an n-gram where most tokens did, of such places the last; nothing if nothing did."""
        following = [
            self.text[at + len(ngram) :][: self.options.draft_length]
            for at in starts(ngram, self.text)
            if at + len(ngram) < len(self.text)
        ]
        return max(reversed(following), key=len, default=[])

    def first(self, text: list[int]) -> list[int]:
        """What followed the longest of the last n-grams of a text that anything followed."""
        for size in range(self.options.max_ngram, 0, -1):
            if size <= len(text) and (found := self.look(text[-size:])):
                return found
        return []

    def draft(self) -> Tree:
        root = self.text[-1]
        room = self.options.budget - 1
        branches = [self.first(self.text)[:room]]
        room -= len(branches[0])
        for rank, token in enumerate(self.candidates):
            if token != root and room > 0:
                longest = 4 if rank <= 8 else 3 if rank <= 32 else 1
                branches.append([token, *self.first([*self.text, token])][:longest][:room])
                room -= len(branches[-1])
        tokens, parents = [root], [-1]
        for branch in branches:
            row = 0
            for token in branch:
                there = [below for below in range(len(tokens)) if parents[below] == row and tokens[below] == token]
                if not there:
                    there = [len(tokens)]
                    tokens.append(token)
                    parents.append(row)
                row = there[0]
        return tokens, parents


# ------------------------------------------------------------ comparison


class Both:
    """Both: a decoder and its oracle on the same request, who have to draft the same."""

    def __init__(self, decoder: Any, oracle: Any) -> None:
        self.decoder, self.oracle = decoder, oracle

    def begin(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)
        assert self.decoder.begin(list(prompt)) is None
        self.oracle.begin(list(prompt))

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        self.text += result.emitted
        self.decoder.observe(result)
        self.oracle.observe(fed, result)

    def draft(self) -> Tree:
        tree = self.decoder.draft()
        drafted = list(tree.tokens), list(tree.parents)
        assert drafted == self.oracle.draft(), (self.oracle.options, self.text)
        assert tree.accept is None
        if isinstance(self.oracle, Suffix):
            assert abs(self.decoder.score - self.oracle.score) <= 1e-9, (self.oracle.options, self.text)
        return drafted

    def behind(self, prompt: Sequence[int], result: StepResult) -> Tree:
        """The first draft, behind the prefill."""
        self.begin(prompt)
        self.observe(prompt[-1:], result)
        return self.draft()

    def other(self, tokens: list[int], parents: list[int], result: StepResult) -> Tree:
        """The draft behind a forward over another decoder's tree."""
        self.decoder.instead(TokenTree(tokens, parents))
        self.observe(tokens, result)
        return self.draft()
