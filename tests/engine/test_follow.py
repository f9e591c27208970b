"""A head's round that follows the target's step gives the same drafts as a separate round, with one host wait less."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support import decoders
from support.models import attached, prompt, tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding import Context, Method, TokenTree
from specbench.engine import graphs
from specbench.engine.heads import head_pass
from specbench.engine.heads.head_pass import HeadPass

VOCAB = 97


@pytest.fixture(autouse=True)
def _captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)


def decoded(method: Method, engine: Any, prompts: Sequence[Sequence[int]], *, trace: bool = False) -> list[Any]:
    found = decoders.served(engine, method, prompts, 12, engine.slots, trace)
    return [(r.output_ids, r.accepted_lengths, r.tree_rows, r.measures) for r in found]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jetspec", {"head": "random", "width": 40, "budget": 60}),
        ("eagle3", {"head": "random", "width": 12, "budget": 30, "depth": 3}),
        ("eagle", {"head": "random", "tree": "static"}),
        ("mtp", {"head": "random"}),
    ],
)
def test_rounds_follow_steps_and_draft_what_they_draft_alone(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(VOCAB, num_hidden_layers=8).double()
    prompts = [prompt(length, VOCAB, seed) for seed, length in enumerate((1, 33, 7, 16))]
    waits: list[str] = []
    monkeypatch.setattr(head_pass, "settle", lambda device: waits.append("head"))
    monkeypatch.setattr(graphs, "settle", lambda device: waits.append("step"))
    found, waited = [], []
    for follows in (True, False):
        with attached(model, slots=3, capacity=80, max_rows=64, graphs=True) as engine:
            method = decoders.ready(decoders.with_options(name, options), engine)
            if not follows:
                assert engine._graphs is not None
                engine._graphs.followers.clear()
            waits.clear()
            found.append(decoded(method, engine, prompts))
            waited.append((waits.count("head"), waits.count("step")))
    assert found[0] == found[1]
    assert len({str(ids) for ids, *_ in found[0]}) == len(prompts)
    (following, steps), (alone, _) = waited
    assert following <= len(prompts)  # the round after a prompt does not follow a step
    assert alone > steps / 2


def test_phases_are_distinguished_without_following(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    own = HeadPass.follow

    def follow(self: HeadPass, step: Any) -> None:
        launched.append(step)
        own(self, step)

    monkeypatch.setattr(HeadPass, "follow", follow)
    with attached(tiny_llama(VOCAB), capacity=60, max_rows=32, graphs=True) as engine:
        method = decoders.ready(decoders.with_options("jetspec", {"head": "random", "budget": 16}), engine)
        traced = decoded(method, engine, [prompt(5, VOCAB)], trace=True)
        assert not launched
        assert decoded(method, engine, [prompt(5, VOCAB)]) == traced
        assert launched


def test_what_is_deeper_than_a_round_takes_is_not_followed() -> None:
    """Such trees combine the head's drafts with matches from the text."""
    with attached(tiny_llama(VOCAB), capacity=90, max_rows=32, graphs=True) as engine:
        shallow = {"head": "random", "budget": 16, "depth": 1}
        method: Any = decoders.ready(decoders.with_options("jetspec", shallow), engine)
        passes, slot = method.shared.rounds, engine.alloc()
        assert passes.open(slot) == slot
        result = engine.prefill(slot, prompt(6, VOCAB), taps=method.taps)
        for rows, follows in ((2, True), (3, False), (1, True)):
            assert result.hidden is not None
            passes.append(slot, [result.emitted[-1]] * len(result.hidden), result.hidden)
            passes.marginals(slot)
            tree = TokenTree.chain([result.emitted[-1], *range(rows - 1)])
            result = engine.step({slot: tree}, taps=method.taps)[slot]
            assert passes._passes._seats[slot].followed == follows


def test_where_others_have_drafted_a_round_waits_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(tiny_llama(VOCAB), capacity=90, max_rows=32, graphs=True) as engine:
        method: Any = decoders.ready(decoders.with_options("jetspec", {"head": "random", "budget": 16}), engine)
        slot = engine.alloc()
        decoder = method.new(Context(VOCAB, 0, random.Random(0), slot=slot))
        decoder.begin(prompt(6, VOCAB))
        result = engine.prefill(slot, prompt(6, VOCAB), taps=method.taps)
        launched: list[int] = []
        own = head_pass.settle
        monkeypatch.setattr(head_pass, "settle", lambda device: launched.append(1) or own(device))  # type: ignore[func-returns-value]
        seat = method.shared.rounds._passes._seats[slot]
        for others, followed, waits in (
            (False, True, 1),
            (False, True, 0),
            (True, False, 0),
            (True, False, 0),
            (False, True, 1),
        ):
            launched.clear()
            decoder.observe(result)
            tree = TokenTree.chain([result.emitted[-1], 3])
            if others:
                decoder.instead(tree)
            else:
                tree = decoder.draft()
            result = engine.step({slot: tree}, taps=method.taps)[slot]
            assert (seat.followed, len(launched)) == (followed, waits)
