"""Head passes: several dependent tree passes on a cache of their own say what a head says that keeps nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support import small_heads
from support.decoders import alone, eager
from support.models import prompt, tiny_llama
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import EnvironmentRefused
from specbench.engine import HeadRows
from specbench.engine.heads import head_pass
from specbench.engine.heads.head_pass import HeadPass


def test_one_round_serves_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    work = HeadPass._work

    def counted(self: HeadPass, slots: int) -> None:
        asked.append(slots)
        work(self, slots)

    drafts = small_heads.rounds(slots=4, capacity=20)
    monkeypatch.setattr(HeadPass, "_work", counted)
    passes, size = drafts._passes, drafts.head.features
    for slot in range(4):
        assert passes.open() == slot
        passes.append(slot, [slot], torch.zeros(1, size))
    passes.close(1)
    for slot in (2, 0):
        passes.draft(slot)
    passes.append(2, [5, 6], torch.zeros(2, size))
    passes.draft(2)
    assert asked == [4, 3]
    passes.append(3, [5], torch.zeros(1, size))  # it never fetched what it got: that is out of date
    passes.draft(3)
    assert asked == [4, 3, 4]
    assert [passes.length(slot) for slot in (0, 2, 3)] == [1, 3, 2]


# ------------------------------------------------------------------ a whole small model

ROWS = 4  # of its two tree passes together


class Small:
    """A model that drafts a tree of two branches of three tokens, and feeds the first two of each."""

    def __init__(self, model: Any, capture: Any) -> None:
        self.reference = copy.deepcopy(model)  # with its own attention and without a cache
        config = model.config
        self._model = model
        shape = config.num_key_value_heads, config.head_dim, config.head_dim
        self.passes = HeadPass(
            alone(model, slots=3, capacity=60, capture=capture),
            self._scores,
            self._draft,
            shapes=dict.fromkeys(range(config.num_hidden_layers), shape),
            new_rows=4,
            draft_rows=ROWS,
            modules=[model],
        )

    def _scores(self, rows: HeadRows) -> Tensor:
        logits: Tensor = self._model(**rows.arguments()).logits
        return logits

    def _draft(self, rows: HeadRows, read: Tensor) -> Sequence[Tensor]:
        after_text = rows.last(read)
        ids = after_text[:, 0].topk(2).indices
        first = rows.branch(ids)
        after_first = self._scores(first)
        deeper = after_first.argmax(-1)
        second = first.branch(deeper, torch.arange(2).expand(len(ids), -1))
        after_second = self._scores(second)
        return ids, deeper, torch.cat([after_text, after_first, after_second], dim=1)

    @torch.inference_mode()
    def uncached(self, text: Sequence[int]) -> Tensor:
        logits: Tensor = self.reference(torch.tensor([[*text]]), use_cache=False).logits[0, -1]
        return logits


@pytest.mark.parametrize("capture", [eager, recorded_capture(torch.device("cpu"))], ids=["eager", "captured"])
def test_a_small_model_keeps_what_was_accepted_of_its_drafts(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_pass, "CHUNK", 8)
    small, rng = Small(tiny_llama(97).double(), capture), random.Random(2)
    passes = small.passes
    texts: dict[int, list[int]] = {}
    drafted: dict[int, list[list[int]]] = {}  # slot -> the tokens of each branch
    kept = set()
    for slot, length in enumerate((1, 21, 5)):
        assert passes.open() == slot
        texts[slot] = prompt(length, 97, slot)
        passes.append(slot, texts[slot][:3])
        if length > 3:  # more than a step brings, before anything was drafted
            passes.append(slot, texts[slot][3:])
    for _ in range(30):
        slot = rng.choice(list(texts))  # others hold drafts meanwhile, which its rounds must leave alone
        if slot not in drafted:
            ids, deeper, logits = passes.draft(slot)
            first = [[token] for token in ids.tolist()]
            second = [[*path, token] for path, token in zip(first, deeper.tolist(), strict=True)]
            drafted[slot] = second
            paths = [[], *first, *second]
            expected = torch.stack([small.uncached([*texts[slot], *path]) for path in paths])
            assert (logits - expected).abs().max() < 1e-4
            continue
        branch, count = rng.randrange(2), rng.randrange(3)
        accepted, own = drafted.pop(slot)[branch][:count], [rng.randrange(97) for _ in range(rng.randint(1, 2))]
        passes.keep(slot, [branch, 2 + branch][:count])
        passes.append(slot, own)
        texts[slot] += [*accepted, *own]
        assert passes.length(slot) == len(texts[slot])
        kept.add((branch, count))
    assert {(1, 1), (0, 2), (1, 2)} <= kept


def test_a_pass_over_a_single_row_sees_no_cell_after_it() -> None:
    model = tiny_llama(97)
    reference, config = copy.deepcopy(model), model.config

    def scores(rows: HeadRows) -> Tensor:
        logits: Tensor = model(**rows.arguments()).logits
        return logits

    def draft(text: HeadRows, read: Tensor) -> Sequence[Tensor]:
        ids = text.last(read).argmax(-1)
        return ids, scores(text.branch(ids)), scores(text.block(ids, look_ahead=True))

    shape = config.num_key_value_heads, config.head_dim, config.head_dim
    passes = HeadPass(
        alone(model, capacity=40), scores, draft,
        shapes=dict.fromkeys(range(config.num_hidden_layers), shape), new_rows=3, draft_rows=2, modules=[model],
    )  # fmt: skip
    slot, text = passes.open(), []
    for length in (9, 3, 1, 2):  # the cells after them hold rows of earlier passes
        some = prompt(length, 97)
        passes.append(slot, some)
        text += some
        ids, branch, block = passes.draft(slot)
        with torch.inference_mode():
            expected = reference(torch.tensor([[*text, *ids.tolist()]]), use_cache=False).logits[0, -1]
        assert (branch - expected).abs().max() < 1e-3
        assert (block - expected).abs().max() < 1e-3


@pytest.fixture
def passes() -> HeadPass:
    return small_heads.rounds(slots=1, capacity=20)._passes


def test_only_a_text_without_padding_gets_a_causal_mask(passes: HeadPass) -> None:
    groups = [passes._text_layout(5, 1, rows).groups for rows in (5, 7)]
    assert [[group.causal for group in each or ()] for each in groups] == [[True], [False]]


# ------------------------------------------------------------------ what is refused


def test_only_drafts_can_be_kept(passes: HeadPass) -> None:
    slot = passes.open()
    passes.append(slot, [1], torch.zeros(1, small_heads.head("tree").features))
    with pytest.raises(ValueError, check=wording):
        passes.keep(slot, [0])
    passes.draft(slot)
    with pytest.raises(ValueError, check=wording):
        passes.keep(slot, [7])
    passes.keep(slot, [0])
    assert passes.length(slot) == 2
    with pytest.raises(ValueError, check=wording):
        passes.draft(slot)
    passes.close(slot)
    with pytest.raises(ValueError, check=wording):
        passes.length(slot)


def test_a_cache_that_does_not_fit_is_refused_in_a_sentence() -> None:
    with pytest.raises(EnvironmentRefused, check=wording):
        small_heads.rounds(slots=1, capacity=4 * 10**12)
