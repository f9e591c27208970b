"""Lookahead decoding against the worked step of its published code, and an independent rendering of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoders import Clock, ToyEngine, ToyTarget, Walk, decided, greedy, language, walk

from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.lookahead.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

VOCAB, PAD = 3000, 2999
# The letters of the worked example. E to J are drawn from the prompt, so they are known when the drawing is done.
A, B, C, D, E, F, Q, Z = range(1001, 1009)
K, L, M, N, O, P = range(1011, 1017)  # noqa: E741
R, S, T, U, V = range(1021, 1026)
FILLED = [1020, R, S, T, U, V]  # the first is dropped
X = [1030, 1031, 1032, 1033, 1034]
PROMPT = [*range(2000, 2900), A]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


def filled(**options: Any) -> tuple[Decoder, list[int]]:
    """A decoder of W=5, N=4, G=2 after its two filling forwards, and the letters E to J that it drew."""
    made = decoder(window_size=5, ngram_size=4, guess_set_size=2, **options)
    tree = made.begin(PROMPT)
    assert tree is not None
    drawn = list(tree.tokens[1:])
    made.observe(decided([B, K, L, M, N, O, P]))
    made.observe(decided([C, *[0] * len(drawn[1:]), *FILLED]))
    return made, drawn


# ------------------------------------------------------------------ the window fills


def test_the_window_fills_as_in_the_worked_example() -> None:
    made = decoder(window_size=5, ngram_size=4, guess_set_size=2)
    tree = made.begin(PROMPT)
    assert tree is not None
    # Row 0 goes with the prompt: W+N-3 tokens drawn from it, after its last token; no row of them may be emitted.
    a, *drawn = tree.tokens
    assert (a, len(drawn)) == (A, 6)
    assert set(drawn) <= set(PROMPT)
    assert len(set(drawn)) == 6, "this seed draws six different ones; the mask below tells them apart"
    assert list(tree.parents) == [-1, 0, 1, 2, 3, 4, 5]
    assert list(tree.accept or ()) == [True] + [False] * 6
    _, f, g, h, i, j = drawn
    # Forward 1 gives B, and row 1 = K..P.
    made.observe(decided([B, K, L, M, N, O, P]))
    tree = made.draft()
    assert list(tree.tokens) == [B, f, g, h, i, j, K, L, M, N, O, P]
    assert list(tree.parents) == [-1, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]  # K sees B; L sees B F; M sees B F G; ...
    assert list(tree.accept or ()) == [True] + [False] * 11
    # Forward 2 gives C, and Q R S T U V after row 1; every row drops its first token.
    made.observe(decided([C, 0, 0, 0, 0, 0, *FILLED]))
    tree = made.draft()
    assert list(tree.tokens) == [C, g, h, i, j, L, M, N, O, P, R, S, T, U, V]


def pooled(**options: Any) -> tuple[Decoder, list[int]]:
    """The state before the worked step: the window is full, two n-grams begin with the last token."""
    made, drawn = filled(**options)
    made._pool.insert(C, (D, E, F))
    made._pool.insert(C, (D, E, Z))
    return made, drawn


# ------------------------------------------------------------------ the worked step


def stepped(tree: TokenTree, result: dict[tuple[int, ...], int]) -> StepResult:
    """A forward of a model that says after a sequence what ``result`` holds, and 0 after any other."""
    engine = ToyEngine(Clock())
    engine.target = lambda prompt, out: result.get(tuple(out), 0)
    engine.prompts[0], engine.outputs[0] = PROMPT, [tree.tokens[0]]
    return engine.step({0: tree})[0]


def worked(**options: Any) -> tuple[Decoder, StepResult, list[int]]:
    """The decoder after the step, what the step decided, and the letters G to J."""
    made, (_, _, g, h, i, j) = pooled(**options)
    continuation = {(C,): D, (C, D): E, (C, D, E): F, (C, D, E, F): Q}
    columns = [(C, L, R), (C, g, M, S), (C, g, h, N, T), (C, g, h, i, O, U), (C, g, h, i, j, P, V)]
    step = stepped(made.draft(), {**continuation, **dict(zip(columns, X, strict=True))})
    made.observe(step)
    return made, step, [g, h, i, j]


LAYOUTS = pytest.mark.parametrize("share_prefixes", [True, False])


@LAYOUTS
@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("lru", ["used", "generated"])
def test_the_worked_step(lru: str, bonus: bool, share_prefixes: bool) -> None:
    made, step, (g, h, i, j) = worked(full_accept_bonus=bonus, lru=lru, share_prefixes=share_prefixes)
    assert step.next_tokens[10:15] == X  # the columns give the new row
    assert step.emitted == ([D, E, F, Q] if bonus else [D, E, F])
    # The window moves one column, however many tokens were accepted.
    assert list(made.draft().tokens[:15]) == [step.emitted[-1], M, N, O, P, R, S, T, U, V, *X]
    # Two n-grams are kept per first token: the one that came first is dropped, unless being right has renewed it.
    kept = (D, E, F) if lru == "used" else (D, E, Z)
    assert made._pool.of(C) == [kept, (L, R, X[0])]
    for head, ngram in ((g, (M, S, X[1])), (h, (N, T, X[2])), (i, (O, U, X[3])), (j, (P, V, X[4]))):
        assert made._pool.of(head) == [ngram]


@pytest.mark.parametrize(("bonus", "k"), [(True, 3), (False, 2)])
@pytest.mark.parametrize("init", ["prompt", "vocabulary"])
def test_shift_accepted_moves_it_as_many_columns_as_tokens_came_out(bonus: bool, k: int, init: str) -> None:
    # One column for the first token, and k for the k accepted ones; each row is filled up from the text so far,
    # wherever the first one came from.
    made, step, _ = worked(shift="accepted", full_accept_bonus=bonus, init=init)
    assert len(step.emitted) == k + 1
    root, *rest = made.draft().tokens[:15]
    assert root == step.emitted[-1]
    rows = [rest[:4], rest[4:9], rest[9:]]
    for row, whole in zip(rows, ([M, N, O, P], [R, S, T, U, V], X), strict=True):
        assert row[:-k] == whole[k:]
        assert set(row[-k:]) <= {*PROMPT, B, C, *step.emitted}
    assert rows[1][-k:] != rows[2][-k:]  # drawn for each row
    none, _ = pooled(shift="accepted")
    none.observe(stepped(none.draft(), {(C,): 7}))
    assert list(none.draft().tokens[:10]) == [7, M, N, O, P, R, S, T, U, V]


# ------------------------------------------------------------------ further options


@pytest.mark.parametrize("accepted", [True, False])
def test_window_rows_are_emitted_with_accept_window_only(accepted: bool) -> None:
    # The model says G H after C, then what row 1 has in the column of H, then row 2's: N, T, and a token of its own.
    made, (_, _, g, h, _, _) = pooled(accept_window=accepted)
    result = {(C,): g, (C, g): h, (C, g, h): N, (C, g, h, N): T, (C, g, h, N, T): X[2]}
    step = stepped(made.draft(), result)
    assert step.emitted == ([g, h, N, T, X[2]] if accepted else [g])
    made.observe(step)
    assert made._pool.of(h) == [(N, T, X[2])]
    assert list(made.draft().tokens[:10]) == [step.emitted[-1], M, N, O, P, R, S, T, U, V]


def test_pool_from_prompt_holds_every_ngram_of_prompt_and_output() -> None:
    made, without = (
        decoder(window_size=2, ngram_size=3, guess_set_size=5, pool_from_prompt=on) for on in (True, False)
    )
    for each in (made, without):
        each.begin([1, 2, 3, 4, 1, 5, 6, 7])
    ngrams = [[(2, 3), (5, 6)], [(3, 4)], [(4, 1)], [(1, 5)], [(6, 7)], [], []]
    assert [made._pool.of(head) for head in range(1, 8)] == ngrams
    for each in (made, without):
        each.observe(decided([1, 901, 902]))
    assert len(without.draft()) == 4
    assert made._pool.of(6) == [(7, 1)]
    tree = made.draft()
    # Verified at once: what followed 1 before, after a window of 2 × 2 rows.
    assert list(tree.tokens[4:]) == [2, 3, 5, 6]
    assert list(tree.parents[4:]) == [0, 4, 0, 6]
    made.observe(stepped(tree, {(1,): 2, (1, 2): 8}))
    assert made._pool.of(7) == [(1, 2)]
    assert (2, 8) in made._pool.of(1)


# ------------------------------------------------------------------ against an independent rendering


class Rendering:
    """Lookahead decoding from the text alone: a dict of lists for the pool, lists for the window."""

    def __init__(
        self, target: ToyTarget, prompt: Sequence[int], row0: Sequence[int], w: int, n: int, g: int, bonus: bool
    ) -> None:
        self.target, self.prompt = target, prompt
        self.w, self.n, self.g, self.bonus = w, n, g, bonus
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self.rows = [list(row0)]
        self.out = [target(prompt, [])]
        assert len(row0) == w + n - 3
        if n > 2:
            row1 = [target(prompt, row0[: i + 1]) for i in range(len(row0))]
            self.rows = [list(row0[1:]), row1]

    def columns(self) -> list[int]:
        """Column i is the last token, row 0 up to column i, then column i of each row below it."""
        result = []
        for i in range(len(self.rows[0]) + 1):
            column = self.rows[0][:i] + [row[i] for row in self.rows[1:]]
            result.append(self.target(self.prompt, self.out + column))
        return result

    def step(self) -> tuple[list[int], list[tuple[int, ...]], list[int]]:
        """(the window, the last token first; the n-grams that are verified; tokens emitted)."""
        window = [self.out[-1]] + [token for row in self.rows for token in row]
        new = self.columns()
        if len(self.rows) < self.n - 1:
            emitted = [self.target(self.prompt, self.out)]
            self.rows = [row[1:] for row in self.rows] + [new[1:]]
            self.out += emitted
            return window, [], emitted
        best: list[int] = []
        guesses = list(self.pool.get(self.out[-1], []))
        most = self.n - 1 if self.bonus else self.n - 2
        for guess in guesses:
            m = 0
            while m < most and guess[m] == self.target(self.prompt, [*self.out, *guess[:m]]):
                m += 1
            if m > len(best):
                best = list(guess[:m])
        emitted = [*best, self.target(self.prompt, self.out + best)]
        for i, last in enumerate(new):
            key = self.out[-1] if i == 0 else self.rows[0][i - 1]
            value = (*(row[i] for row in self.rows[1:]), last)
            kept = self.pool.setdefault(key, [])
            if value in kept:
                kept.remove(value)
            elif len(kept) == self.g:
                kept.pop(0)
            kept.append(value)
        self.rows = [*self.rows[1:], new]
        self.rows[0] = self.rows[0][1:]
        self.out += emitted
        return window, guesses, emitted


def beginnings(tree: TokenTree, window: int) -> set[tuple[int, ...]]:
    """Every path below the root through rows after the window."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(window, len(tree)):
        paths[row] = (*paths[tree.parents[row]], tree.tokens[row])
    return set(paths.values()) - {()}


SIZES = [(5, 4, 2), (7, 5, 7), (3, 2, 2), (4, 3, 3)]
SHORT = [7, 3, 5, 3, 8, 1, 0, 4]


def decoded(
    size: tuple[int, int, int],
    seed: int,
    target: ToyTarget,
    tokens: int = 80,
    prompt: Sequence[int] = SHORT,
    **more: Any,
) -> Walk:
    w, n, g = size
    return walk(
        decoder(seed, window_size=w, ngram_size=n, guess_set_size=g, **more), target, prompt, tokens, vocab=VOCAB
    )


@pytest.mark.parametrize(("bonus", "init"), [(False, "prompt"), (True, "prompt"), (True, "vocabulary")])
@pytest.mark.parametrize("size", SIZES)
def test_windows_and_tokens_are_those_of_an_independent_rendering(
    size: tuple[int, int, int], bonus: bool, init: str
) -> None:
    w, n, _ = size
    counts: set[int] = set()
    for seed in range(8):
        target = language(seed, words=9, memory=1 + seed % 3, period=5 if seed % 2 else 0)
        more: dict[str, Any] = {"lru": "generated", "init": init, "share_prefixes": seed % 2 == 0}
        walked = decoded(size, seed, target, full_accept_bonus=bonus, **more)
        row0 = (walked.prefill or walked.trees[0]).tokens[1:]
        mine = Rendering(target, SHORT, row0 if walked.prefill else row0[: w - 1], *size, bonus)
        for tree, emitted in zip(walked.trees, walked.emitted, strict=True):
            window, guesses, expected = mine.step()
            assert list(tree.tokens[: len(window)]) == window
            assert beginnings(tree, len(window)) == {rest[:end] for rest in guesses for end in range(1, n)}
            assert emitted == expected
            counts.add(len(emitted))
    assert max(counts) == n - (not bonus)  # and full matches have occurred
    assert 1 in counts


@pytest.mark.parametrize("lru", ["used", "generated"])
@pytest.mark.parametrize("bonus", [False, True])
def test_sharing_rows_changes_no_token_of_any_step(lru: str, bonus: bool) -> None:
    for size in SIZES:
        saved = 0
        for seed in range(8):
            target = language(seed, words=6, memory=1 + seed % 3, period=5 if seed % 2 else 0)
            shared, apart = (
                decoded(size, seed, target, lru=lru, full_accept_bonus=bonus, share_prefixes=share)
                for share in (True, False)
            )
            assert shared.emitted == apart.emitted
            saved += sum(map(len, apart.trees)) - sum(map(len, shared.trees))
        assert saved > 0 or size[1] == 2  # n-grams of one token have no common beginnings


SWITCHES = ("pool_from_prompt", "full_accept_bonus", "accept_window", "share_prefixes")
CHOICES = {
    "shift": ["one", "accepted", "rows"], "init": ["prompt", "vocabulary", "const"],
    "lru": ["used", "generated", "never"], "first_key": ["last", "guess"], "layout": ["window", "ngrams"],
}  # fmt: skip
MORE = dict.fromkeys(SWITCHES, st.booleans()) | {name: st.sampled_from(words) for name, words in CHOICES.items()}


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.integers(2, 7), st.integers(1, 6), st.fixed_dictionaries(MORE), st.integers(0, 1000))
def test_no_setting_changes_the_output_or_drafts_more_than_announced(
    w: int, n: int, g: int, more: dict[str, Any], seed: int
) -> None:
    target = language(seed, words=4, memory=1 + seed % 3)
    made = decoder(seed, window_size=w, ngram_size=n, guess_set_size=g, **more)
    walked = walk(made, target, SHORT, 50, vocab=VOCAB)
    assert walked.output == greedy(target, SHORT, len(walked.output))
    largest = Decoder.max_rows(Options(window_size=w, ngram_size=n, guess_set_size=g, **more))
    assert max(len(tree) for tree in [*walked.trees, *filter(None, [walked.prefill])]) <= largest
    longest = w + n - 1 if more["accept_window"] else 0  # the last column, and what the target says after it
    assert max(map(len, walked.emitted)) <= max(longest, n - (not more["full_accept_bonus"]))


# ------------------------------------------------------------------ sizes that are announced, and those refused


def test_rows_of_the_published_settings() -> None:
    published = {(7, 5, 7): 56, (20, 7, 20): 240, (15, 5, 15): 120, (10, 3, 10): 40, (8, 4, 8): 48, (3, 2, 2): 5}
    for (w, n, g), rows in published.items():
        assert plan_methods(["lookahead"], [f"W={w}", f"N={n}", f"G={g}"])[1].max_rows == rows


def test_a_narrow_window_is_largest_while_it_fills() -> None:
    # W=1, N=9: in the middle of the filling, 4 rows of 1+9-1-4 = 5 tokens, while the full window is 8 rows of 1.
    method = plan_methods(["lookahead"], ["W=1", "N=9", "G=1"])[1]
    walked = walk(method.new(Context(VOCAB, PAD, random.Random(0))), language(0, words=4), SHORT, 30)
    assert method.max_rows == 20 + 8
    assert max(map(len, walked.trees)) >= 20
