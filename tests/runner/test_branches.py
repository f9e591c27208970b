"""Branches: what the target says of them, by transformers' own forward of each; and what is asked, kept and counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import attached, prepared, prompt, request_record, supported
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.decoding import TokenTree
from specbench.decoding.tree import Branch
from specbench.decoding.trees.paths import best_path
from specbench.results.branches import BRANCHES, RatedBranch, branch_calibration, read_branches
from specbench.results.request_schema import DraftedBranch, RequestRecord
from specbench.runner.grades import branches, likelihood
from specbench.runner.grades.branches import rate_branches, rate_request
from specbench.runner.trace import SPREAD, spread_branches


def record(ids: list[int], accepted: list[int], drafted: Sequence[tuple[int, list[int]]]) -> RequestRecord:
    request = prepared([Prompt("p0", "one", True)]).request("p0")
    mine = [DraftedBranch(step=step, ids=tokens, log_probability=-1.0) for step, tokens in drafted]
    return request_record("jetspec", request).model_copy(
        update={"output_ids": ids, "output_tokens": len(ids), "accepted_lengths": accepted, "branches": mine}
    )


@torch.inference_mode()
def by_transformers(model: Any, before: Sequence[int], branch: Sequence[int]) -> float:
    """Of one whole forward of the model as it is without an engine."""
    scores = model(torch.tensor([[*before, *branch]])).logits[0, len(before) - 1 : -1].float().log_softmax(-1)
    return float(scores.gather(1, torch.tensor(branch)[:, None]).sum())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_branch_stands_after_the_root_of_its_own_tree(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "ROWS", 5)  # so that some branches share a forward and some do not
    model = supported(family)
    vocab = model.config.vocab_size
    asked, answer = prompt(9, vocab), prompt(8, vocab, seed=3)
    # The first token is the prefill's; trees of the steps have the roots 0, 2, 3 and 6.
    drafted = [(0, prompt(3, vocab, seed=4)), (1, prompt(1, vocab, seed=5)), (3, prompt(4, vocab, seed=6))]
    mine = record(answer, [2, 1, 3, 1], drafted)
    roots = {0: 0, 1: 2, 3: 6}
    expected = [by_transformers(model, [*asked, *answer[: roots[step] + 1]], ids) for step, ids in drafted]
    with attached(model, slots=1, capacity=40) as engine:
        found = rate_request(engine, asked, mine)
        assert engine.alloc() == 0, "its slot is free again"
    assert [each.target for each in found] == pytest.approx(expected, abs=1e-4)
    assert [(each.tokens, each.promised) for each in found] == [(3, -1.0), (1, -1.0), (4, -1.0)]


def test_the_best_branch_takes_the_best_scored_child_each_time() -> None:
    #                  root 11  10  21  20  30
    tree = TokenTree([5, 11, 10, 21, 20, 30], [-1, 0, 0, 2, 2, 3], scores=[None, -2.0, -0.1, -0.6, -0.5, -0.2])
    assert best_path(tree) == ([10, 20], pytest.approx(-0.6)), "21 has a child, and a lower score"
    assert best_path(TokenTree([5], [-1])) == ([], 0.0)


def test_eight_branches_of_a_request_are_spread_over_it() -> None:
    drawn = [Branch(step, [step] if step % 10 else [], -float(step)) for step in range(30)]
    kept = spread_branches(drawn, 29)  # the last tree's forward did not come
    assert len(kept) == SPREAD == 8
    assert (kept[0].step, kept[-1].step) == (1, 25)
    assert all(each.ids == [each.step] for each in kept), "empty ones are none"
    assert [each.step for each in spread_branches(drawn[:4], 4)] == [1, 2, 3]
    assert spread_branches([], 5) == []


def test_what_is_on_disk_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def rating(engine: Any, ids: Sequence[int], mine: RequestRecord) -> list[RatedBranch]:
        calls.append(mine.request_id)
        return [RatedBranch(tokens=len(each.ids), promised=-1.0, target=-4.0) for each in mine.branches or ()]

    monkeypatch.setattr(branches, "rate_request", rating)
    asked, mine = prepared([Prompt("p0", "one", True)]), record([1, 2], [1], [(0, [7, 8])])
    without = mine.model_copy(update={"request_id": "ar|p0|0", "method": "ar", "branches": None})
    for _ in range(2):
        rate_branches(None, asked, [without, mine], tmp_path, pytest.fail)  # type: ignore[arg-type]
    assert calls == [mine.request_id]
    assert read_branches(tmp_path) == {mine.request_id: [RatedBranch(tokens=2, promised=-1.0, target=-4.0)]}
    anew = mine.model_copy(update={"branches": [DraftedBranch(step=0, ids=[7], log_probability=-1.0)]})
    rate_branches(None, asked, [anew], tmp_path, pytest.fail)  # type: ignore[arg-type]
    assert read_branches(tmp_path)[mine.request_id][0].tokens == 1, "decoded anew, it is asked anew"
    (tmp_path / BRANCHES).write_text('{"request": 3}\n')
    with pytest.raises(UsageError, check=wording):
        read_branches(tmp_path)


def test_shares_of_promises_kept_and_broken() -> None:
    mine = record([1, 2], [1], [(0, [7])])
    gaps = [0.0, 4.9, 5.0, -3.0, 80.0, 79.9, 120.0, 6.0]
    rated = [RatedBranch(tokens=2 + at % 2, promised=-1.0, target=-1.0 - gap) for at, gap in enumerate(gaps)]
    found = branch_calibration([mine], {mine.request_id: rated})
    assert found is not None
    assert (found.branches, found.tokens) == (8, 2.5)
    assert (found.kept_share, found.broken_share) == (3 / 8, 2 / 8)
    assert found.gap_median == pytest.approx(5.5)
    assert branch_calibration([mine], {}) is None
