"""Lookahead decoding as llama.cpp's example has it, against an independent rendering of its batches and rings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from support.decoders import ToyTarget, greedy, language, walk

from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.engine.ops import ancestors
from specbench.methods.lookahead.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

VOCAB = 3000
PROMPT = [7, 3, 5, 3, 8, 1, 0, 4]
SIZES = [(5, 4, 2), (7, 5, 7), (15, 5, 15), (3, 2, 2), (1, 3, 1), (4, 3, 3)]


@dataclass(frozen=True)
class Entry:
    """A token of a batch: where it stands, and the sequences that it belongs to."""

    token: int
    position: int
    sequences: tuple[int, ...]


class LlamaCpp:
    """The example's loop: a batch is a list of tokens with sequence ids, and a token sees what shares its first one."""

    def __init__(self, target: ToyTarget, w: int, n: int, g: int) -> None:
        self.target, self.w, self.n, self.g = target, w, n, g
        self.window = [[100 + i for i in range(w)] for _ in range(n - 1)]
        self.stored: dict[int, list[tuple[int, ...]]] = {}
        self.heads: dict[int, int] = {}
        self.out = [target(PROMPT, [])]

    def batch(self) -> list[Entry]:
        """The last token in all sequences; the n-grams, token by token; row 0; the rows below."""
        guesses = self.stored.get(self.out[-1], [])
        found = [Entry(self.out[-1], 0, tuple(range(self.w + self.g + 1)))]
        for j in range(self.n - 1):
            found += [Entry(guess[j], j + 1, (self.w + 1 + k,)) for k, guess in enumerate(guesses)]
        found += [Entry(self.window[0][i], i, tuple(range(i + 1, self.w + 1))) for i in range(1, self.w)]
        for j in range(1, self.n - 1):
            found += [Entry(self.window[j][i], j + i, (i + 1,)) for i in range(self.w)]
        return found

    def result(self, batch: Sequence[Entry], at: int) -> int:
        """What the model says after entry ``at``."""
        return self.target(PROMPT, self.out[:-1] + [batch[k].token for k in seen(batch, at)])

    def step(self) -> list[int]:
        batch, last = self.batch(), self.out[-1]
        guesses = list(self.stored.get(last, []))
        # Of the last row, and of the root where the window is row 0 alone: its column 0 is the root's.
        lowest = [0, *range(len(batch) - self.w + 1, len(batch))]
        if self.n > 2:
            lowest = list(range(len(batch) - self.w, len(batch)))
        row = [self.result(batch, at) for at in lowest]
        active, emitted, at = list(range(len(guesses))), list[int](), 0
        for v in range(self.n):
            if v > 0:
                if not active:
                    break
                at = 1 + (v - 1) * len(guesses) + active[0]
            token = self.result(batch, at)
            emitted.append(token)
            active = [k for k in active if v < self.n - 1 and guesses[k][v] == token]
            first = list(self.window[0])
            for j in range(self.n - 2):
                self.window[j] = self.window[j + 1]
            self.window[self.n - 2] = list(row) if v == 0 else list(self.window[0])
            if v == 0:
                for i, key in enumerate(first):
                    self.observe(key, tuple(self.window[j][i] for j in range(self.n - 1)))
        self.out += emitted
        return emitted

    def observe(self, key: int, ngram: tuple[int, ...]) -> None:
        ring = self.stored.setdefault(key, [])
        if ngram in ring:
            return
        head = self.heads.get(key, 0)
        if len(ring) < self.g:
            ring.append(ngram)
        else:
            ring[head] = ngram
        self.heads[key] = (head + 1) % self.g


def seen(batch: Sequence[Entry], at: int) -> list[int]:
    """Entries that entry ``at`` sees, by position: those in its first sequence, up to its own position."""
    sequence = batch[at].sequences[0] if at else None
    own = [k for k, each in enumerate(batch[: at + 1]) if sequence in each.sequences] if at else [0]
    return sorted((k for k in own if batch[k].position <= batch[at].position), key=lambda k: batch[k].position)


def visible(tree: TokenTree) -> list[list[int]]:
    """Rows that each row sees, itself included."""
    return [row.nonzero().flatten().tolist() for row in ancestors(torch.tensor([0, *tree.parents[1:]]))]


def as_llama_cpp(w: int, n: int, g: int, seed: int = 0) -> Decoder:
    chosen = plan_methods(["lookahead"], ["preset=llama.cpp", f"W={w}", f"N={n}", f"G={g}"])[1].options
    return Decoder(chosen, Context(VOCAB, 0, random.Random(seed)))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
def test_batches_masks_and_tokens_are_llama_cpps(size: tuple[int, int, int]) -> None:
    counts, most = set[int](), 0
    for seed in range(8):
        target = language(seed, words=6, memory=1 + seed % 3, period=5 if seed % 2 else 0)
        walked = walk(as_llama_cpp(*size), target, PROMPT, 90, vocab=VOCAB)
        assert walked.prefill is None
        theirs = LlamaCpp(target, *size)
        for tree, emitted in zip(walked.trees, walked.emitted, strict=True):
            batch = theirs.batch()
            assert list(tree.tokens) == [entry.token for entry in batch]
            assert visible(tree) == [sorted(seen(batch, at)) for at in range(len(batch))]
            depths = [len(rows) - 1 for rows in visible(tree)]
            assert depths == [entry.position for entry in batch]
            verified = [at == 0 or entry.sequences[0] > size[0] for at, entry in enumerate(batch)]
            assert list(tree.accept or ()) == verified
            assert emitted == theirs.step()
            counts.add(len(emitted))
        assert walked.output == greedy(target, PROMPT, len(walked.output))
        most = max(most, *(len(ring) for ring in theirs.stored.values()))
    assert counts >= {1, size[1]}  # whole n-grams have been accepted, and none
    assert most == size[2]  # and rings were full


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shares", [True, False])
def test_the_layout_changes_the_order_of_rows_and_nothing_else(size: tuple[int, int, int], shares: bool) -> None:
    w, n, g = size
    moved = 0
    for seed in range(6):
        target = language(seed, words=5, memory=1 + seed % 2)
        one, other = (
            walk(
                Decoder(
                    Options(window_size=w, ngram_size=n, guess_set_size=g, share_prefixes=shares, layout=layout),
                    Context(VOCAB, 0, random.Random(seed)),
                ),
                target, PROMPT, 60, vocab=VOCAB,
            )
            for layout in ("window", "ngrams")
        )  # fmt: skip
        assert one.emitted == other.emitted
        for mine, its in zip(one.trees, other.trees, strict=True):
            assert sorted(spelt(mine)) == sorted(spelt(its))
            moved += list(mine.accept or ()) != list(its.accept or ())
    assert moved


def spelt(tree: TokenTree) -> list[tuple[tuple[int, ...], bool, str]]:
    """Each row's tokens from the root down, whether it may be emitted, and how it came."""
    accept, origins = list(tree.accept or ()), list(tree.origins)
    rows = enumerate(visible(tree))
    return [(tuple(tree.tokens[k] for k in path), accept[row], "" if row == 0 else origins[row]) for row, path in rows]
