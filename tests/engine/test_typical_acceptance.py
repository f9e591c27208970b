"""Typical acceptance against a rule written down candidate by candidate, and in an engine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from support.decoders import flat, random_tree
from support.models import attached, prompt, tiny_llama
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding import TokenTree, TypicalAcceptance
from specbench.engine import Sampling, graphs
from specbench.engine.engine import Engine
from specbench.engine.ops import TorchOps, typical_next

VOCAB = 11
RULE = TypicalAcceptance(0.09, 0.3)


def accepted(tree: TokenTree, shares: Tensor, rule: TypicalAcceptance) -> tuple[list[int], int]:
    """The released rule on every path: the longest probable prefix, then the likeliest; and the next token."""
    allowed = tree.accept or [True] * len(tree)
    best: tuple[int, float, list[int]] = (0, 0.0, [0])
    for leaf in range(len(tree)):
        path = [leaf]
        while path[0]:
            path.insert(0, tree.parents[path[0]])
        kept, likelihood = [0], 0.0
        for row, parent in zip(path[1:], path, strict=False):
            p = shares[parent].tolist()
            entropy = -math.fsum(each * math.log(each) for each in p if each)
            if not allowed[row] or p[tree.tokens[row]] <= min(rule.epsilon, rule.delta * math.exp(-entropy)):
                break
            likelihood += math.log(p[tree.tokens[row]])
            kept.append(row)
        if (len(kept) - 1, likelihood) > best[:2]:
            best = (len(kept) - 1, likelihood, kept)
    return best[2], int(shares[best[2][-1]].argmax())


def fed(engine: Engine, texts: Sequence[Sequence[int]]) -> dict[int, int]:
    """Slots with these prompts, and the token that each emits after its prompt."""
    return {slot: engine.prefill(slot, ids).emitted[0] for ids in texts for slot in [engine.alloc()]}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("rule", [RULE, TypicalAcceptance(0.5, 0.9), TypicalAcceptance(0.01, 0.01)], ids=str)
def test_steps_accept_what_the_rule_accepts(
    rule: TypicalAcceptance, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    rng, model = random.Random(1), tiny_llama(VOCAB, num_hidden_layers=2).double()
    texts = [prompt(length, VOCAB, length) for length in (1, 7, 19)]
    drafts = 0
    with attached(model, slots=3, capacity=80, max_rows=20, graphs=captured, sampling=Sampling(0.7)) as engine:
        roots = fed(engine, texts)
        said = {slot: [*ids, roots[slot]] for slot, ids in enumerate(texts)}
        for _ in range(6):
            trees = {slot: random_tree(rng, said[slot][-1], VOCAB, rng.randint(1, 18)) for slot in said}
            lengths = {slot: engine.length(slot) for slot in said}
            results = engine.step(trees, acceptance=rule)
            for slot, tree in trees.items():
                shares = []
                for row in range(len(tree)):
                    path: list[int] = []
                    at = row
                    while at:
                        path.insert(0, tree.tokens[at])
                        at = tree.parents[at]
                    with engine.detached(), torch.inference_mode():
                        logits = model(torch.tensor([[*said[slot], *path]])).logits[0, -1]
                    shares.append((logits / 0.7).softmax(-1))
                path, last = accepted(tree, torch.stack(shares), rule)
                found = results[slot]
                emitted = [*(tree.tokens[row] for row in path[1:]), last]
                assert [tree.tokens[row] for row in found.path[1:]] == emitted[:-1]
                assert found.emitted == emitted
                assert engine.length(slot) == lengths[slot] + len(path)
                said[slot] += emitted
                drafts += len(path) - 1
    assert drafts or rule != RULE


def test_an_unlikely_path_is_accepted_whole() -> None:
    fields, shares = flat({0: TokenTree.chain(range(8))}, 1, "cpu"), torch.full((8, 11), 1 / 11)
    depth = TorchOps().ancestry(fields.parents, fields.layout).depth
    tree = fields.tokens, fields.parents, fields.accept, depth, fields.layout
    assert typical_next(TypicalAcceptance(0.01, 0.5), shares, *tree)[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_greedy_steps_ignore_the_rule() -> None:
    model = tiny_llama(VOCAB, num_hidden_layers=2).double()
    rng = random.Random(2)
    with attached(model, slots=2, capacity=60, max_rows=20) as engine:
        roots = fed(engine, [prompt(5, VOCAB)] * 2)
        tree = random_tree(rng, roots[0], VOCAB, 18)
        exact = engine.step({0: tree})[0]
        typical = engine.step({1: tree}, acceptance=RULE)[1]
    assert (exact.emitted, exact.path, exact.next_tokens) == (typical.emitted, typical.path, typical.next_tokens)
