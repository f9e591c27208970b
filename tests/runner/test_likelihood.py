"""How likely texts are: transformers' own log-softmax says the same, and each different text is asked for once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.asserting import known
from support.models import (
    RECURRENT,
    SHARING,
    SUPPORTED,
    attached,
    prepared,
    prompt,
    request_record,
    supported,
    tiny_llama,
)
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.results.likelihoods import LIKELIHOODS, Likelihood, per_token, read_likelihoods
from specbench.results.request_schema import RequestRecord
from specbench.runner.grades import likelihood
from specbench.runner.grades.likelihood import log_likelihoods, rate

VOCAB = 128  # those of the prompts' characters
PROMPTS = [Prompt("p0", "one", True), Prompt("p1", "two", True)]


@torch.inference_mode()
def by_transformers(model: Any, ids: Sequence[int], answer: Sequence[int]) -> float:
    """The same of one whole forward of the model as it is without an engine."""
    scores = model(torch.tensor([[*ids, *answer]])).logits[0, len(ids) - 1 : -1].float().log_softmax(-1)
    return float(scores.gather(1, torch.tensor(answer)[:, None]).sum())


@pytest.mark.parametrize("family", [*SUPPORTED, *SHARING, *RECURRENT])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3, top_p=0.5, seed=2)])
def test_it_is_that_of_the_plain_softmax_whatever_was_sampled(
    family: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "ROWS", 7)  # so that longer answers take several forwards
    model = supported(family)
    vocab = model.config.vocab_size
    cases = [(prompt(11, vocab), [prompt(length, vocab, seed=length) for length in (1, 7, 20)])]
    cases.append(([5], [prompt(9, vocab)]))  # a prompt of one token leaves nothing to feed before it
    expected = [by_transformers(model, ids, answer) for ids, answers in cases for answer in answers]
    with attached(model, slots=1, capacity=40, sampling=sampling) as engine:
        found = [value for ids, answers in cases for value in log_likelihoods(engine, ids, answers)]
        assert engine.alloc() == 0, "its slot is free again"
    tokens = [len(answer) for _, answers in cases for answer in answers]
    for value, right, count in zip(found, expected, tokens, strict=True):
        assert value / count == pytest.approx(right / count, abs=1e-4)


class Counting:
    """Stands in for :func:`log_likelihoods` and counts what is asked."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[tuple[list[int], list[int]]] = []
        self.fail_at = fail_at

    def __call__(self, engine: Any, ids: Sequence[int], answers: Sequence[Sequence[int]]) -> list[float]:
        for answer in answers:
            if len(self.asked) == self.fail_at:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
            self.asked.append(([*ids], [*answer]))
        return [-float(sum(answer)) for answer in answers]


def record(label: str, prompt_id: str, ids: list[int]) -> RequestRecord:
    request = prepared(PROMPTS).request(prompt_id)
    return request_record(label, request).model_copy(update={"output_ids": ids, "output_tokens": len(ids)})


#: Two exact methods and one that is not, on two prompts that have the same answer.
RECORDS = [
    *(record(label, prompt_id, [1, 2]) for label in ("ar", "jf") for prompt_id in ("p0", "p1")),
    record("other", "p0", [1, 9, 9]), record("other", "p1", [1, 2]),
]  # fmt: skip


def rated(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    records: Sequence[RequestRecord] = RECORDS,
    fail_at: int | None = None,
) -> tuple[dict[str, Likelihood], Counting, list[str]]:
    """What is found, what was asked for it, and what was noted."""
    counting, notes = Counting(fail_at), list[str]()
    monkeypatch.setattr(likelihood, "log_likelihoods", counting)
    engine: Any = SimpleNamespace()
    return rate(engine, prepared(PROMPTS), records, folder, notes.append), counting, notes


def test_a_text_is_a_prompt_with_its_answer_and_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, counting, _ = rated(tmp_path, monkeypatch)
    assert len(counting.asked) == 3, "the same ids after another prompt are another text"
    assert found.keys() == {record.request_id for record in RECORDS}
    assert {key: line.log_likelihood for key, line in found.items() if "|p0|" in key} == {
        "ar|p0|0": -3, "jf|p0|0": -3, "other|p0|0": -19,
    }  # fmt: skip
    assert len((tmp_path / LIKELIHOODS).read_text().splitlines()) == 3
    again, counting, _ = rated(tmp_path, monkeypatch)
    assert (again, counting.asked) == (found, []), "what is on disk is not asked for again"


def test_what_was_broken_off_goes_on_with_the_texts_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _, _ = rated(tmp_path / ".", monkeypatch)
    lines = (tmp_path / LIKELIHOODS).read_text().splitlines(keepends=True)
    (tmp_path / LIKELIHOODS).write_text(lines[0] + lines[1][:20])  # the second was being written
    found, counting, _ = rated(tmp_path, monkeypatch)
    assert found == whole
    assert len(counting.asked) == 2


def test_a_request_that_was_decoded_anew_has_the_likelihood_of_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated(tmp_path, monkeypatch)
    other = [*RECORDS[:-1], record("other", "p1", [7, 7])]
    found, counting, _ = rated(tmp_path, monkeypatch, other)
    assert [ids for _, ids in counting.asked] == [[7, 7]]
    assert (found["other|p1|0"].log_likelihood, found["other|p1|0"].tokens) == (-14, 2)
    assert found["ar|p1|0"].log_likelihood == -3
    # And one whose text another request had already: without asking, but with a line of its own.
    found, counting, _ = rated(tmp_path, monkeypatch, [*other[:-1], record("other", "p1", [1, 2])])
    assert counting.asked == []
    assert found["other|p1|0"].log_likelihood == -3


def test_without_memory_the_run_has_no_such_figure_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, notes = rated(tmp_path, monkeypatch, fail_at=2)
    assert notes == ["no memory to ask the model how likely the texts are; their log-likelihood is left out"]
    assert per_token([one for one in RECORDS if one.method == "ar"], found) is None, "of some prompts it says nothing"


def test_the_figure_of_a_row_is_the_mean_over_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = rated(tmp_path, monkeypatch)
    assert per_token([one for one in RECORDS if one.method == "other"], found) == pytest.approx(-(19 + 3) / 5)
    assert per_token([], found) is None
    assert per_token(RECORDS, {}) is None


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / LIKELIHOODS).write_text(json.dumps({"text": "a", "requests": [], "tokens": 1}) + "\n")
    with pytest.raises(UsageError, check=wording):
        read_likelihoods(tmp_path)
    assert read_likelihoods(tmp_path / "elsewhere") == {}


def test_memory_of_a_forward_is_bounded_whatever_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "_LOGITS", 4 * VOCAB)
    seen: list[int] = []

    def counted(engine: Engine, chains: Any, following: Any) -> list[list[float]]:
        seen.append(len(chains[0].tokens))
        return [[0.0] * len(chains[0].tokens)]

    monkeypatch.setattr(likelihood, "log_probabilities", counted)
    with attached(tiny_llama(VOCAB), slots=1, capacity=64) as engine:
        known(log_likelihoods(engine, [1, 2, 3], [list(range(10))]))
    assert seen == [4, 4, 2]
