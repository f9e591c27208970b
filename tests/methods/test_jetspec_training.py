"""``train.py``: heads learn, and the engine accepts as much as was counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import loaded
from support.head_training import answers, losses, rounds, train
from support.models import tiny_llama

from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead
from specbench.methods.jetspec.learning.held_out import HeldOut, branch_gaps, held_out
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.training.evaluation.accepted import Accepted
from specbench.training.recipe import Job, Text

VOCAB = 97


def target() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The tiny target's own greedy answers."""
    return answers(loaded(target()), tmp_path_factory.mktemp("answers"))


def test_a_head_learns_what_it_is_shown_and_the_engine_accepts_as_much(texts: list[Text], tmp_path: Path) -> None:
    result: list[str] = []
    texts = texts[:3]
    small = {"layers": 1, "block_size": 5, "anchors": 40, "steps": 100, "draft_vocab": 60}
    card = train("jetspec", Job(loaded(target()), texts, texts, tmp_path, 0, result.append), **small)
    falling = losses(result)
    assert len(falling) == 100
    assert sum(falling[-5:]) < 0.3 * sum(falling[:5])
    assert card["held_out_accepted_length"] > 2
    assert any("held out: accepted length" in line for line in result)

    # The same texts decoded by the engine with the head's chain take as many rounds as were counted without it.
    head = BlockHead.load(tmp_path / "head", dtype=torch.float32)
    assert head.draft_ids is not None
    assert len(head.draft_ids) == 60
    counted = held_out(Lesson(head, target(), anchors=1), texts, torch.device("cpu"))
    assert counted.accepted.accepted_length == pytest.approx(card["held_out_accepted_length"], abs=1e-3)
    chain = {"head": str(tmp_path / "head"), "tree": "chain", "budget": 5}
    assert rounds("jetspec", target(), texts, **chain) == counted.accepted.rounds


def test_the_drafted_tokens_are_the_most_frequent() -> None:
    from specbench.training.evaluation.draft_vocabulary import most_frequent

    texts = [Text("a", [9, 9, 8, 3], [4, 4, 4, 7]), Text("b", [8], [7, 2])]
    assert most_frequent(texts, 2, 10).tolist() == [4, 7]
    assert most_frequent(texts, 5, 10).tolist() == [2, 4, 7, 8, 9]
    assert most_frequent(texts, 7, 10).tolist() == [0, 2, 3, 4, 7, 8, 9]


def test_rounds_are_walked_as_the_engine_walks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of eight tokens; the drafts at each anchor right as far as stated."""
    model = target()
    config = BlockHeadConfig.for_target(model.config, mask_token_id=96, layers=1, block_size=4)
    lesson = Lesson(BlockHead.random(config), model, anchors=1)
    text = Text("a", [1, 2], [10, 11, 12, 13, 14, 15, 16, 17])
    right = [2, 9, 9, 0, 3, 9, 9]  # at anchors 10, 13 (=0), 14: three, of which 15 to 17 are left

    def logits(ids: Any, blocks: Any) -> Any:
        row, anchors = ids[0].tolist() + [0] * 4, blocks.anchors[0].tolist()
        result = [[row[a + k] if k <= right[n] else 50 for k in (1, 2, 3)] for n, a in enumerate(anchors)]
        return torch.nn.functional.one_hot(torch.tensor(result), VOCAB).float()[None]

    monkeypatch.setattr(lesson, "logits", logits)
    found = held_out(lesson, [text], torch.device("cpu")).accepted
    assert (found.tokens, found.rounds) == (7, 3)
    assert found.depths == tuple(round(share, 4) for share in (6 / 7, 5 / 7, 3 / 7))


def test_a_branch_gap_is_the_heads_own_preference() -> None:
    """Against log-softmaxes summed token by token."""
    logits = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)) * 5
    known = torch.tensor([2, 3, 5, 7, 11, 13])  # what its columns stand for
    other = torch.tensor([[2, 2, 13, 7], [5, 3, 5, 11], [2, 4, 5, 7]])  # 4 cannot be drafted
    found = branch_gaps(logits, other, known).tolist()
    for row, gap in zip(range(3), found, strict=True):
        scores = logits[row].log_softmax(-1)
        best = sum(float(scores[at].max()) for at in range(4))
        own = [
            float(scores[at, known.tolist().index(t)]) if t in known else -math.inf
            for at, t in enumerate(other[row].tolist())
        ]
        assert gap == pytest.approx(best - sum(own), rel=1e-5)
    assert found[2] == math.inf
    own_best = logits.argmax(-1)
    for tokens, columns in ((known[own_best], known), (own_best, None)):
        assert branch_gaps(logits, tokens, columns).tolist() == [0, 0, 0]


def test_the_card_has_shares_of_held_out_texts() -> None:
    accepted = Accepted.of([torch.tensor([1, 0])], 2)
    figures = HeldOut(accepted, [1.0, 4.9, 5.0, 90.0]).figures
    assert (figures["branch_gap_nats"], figures["branches_below_5_nats"], figures["branches_from_80_nats"]) == (
        4.9,
        0.5,
        0.25,
    )
    assert "branch_gap_nats" not in HeldOut(accepted, [math.inf]).figures
    assert "branches_below_5_nats" not in HeldOut(accepted, []).figures
