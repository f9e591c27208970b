"""lm-eval gets the same results from the engine as from its own transformers backend, item by item."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import decoders, models, oracles
from support.models import build
from support.wording import wording

from specbench.common import UsageError
from specbench.models import load
from specbench.quality.engine_lm import EngineLM
from specbench.quality.tasks import find_tasks, quiet
from specbench.runner.grades import likelihood

TASKS = (oracles.CHOICE, oracles.ROLLING, oracles.ANSWER)
LENGTH = 96  # tokens of a text: shorter than the longest one of each kind that is read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = oracles.write_tasks(tmp_path_factory.mktemp("tasks"))
    with oracles.caches_in(tmp_path_factory.mktemp("copies")):
        yield find_tasks(TASKS, made)


def evaluate(model: Any, tasks: Any, **how: Any) -> dict[str, Any]:
    import lm_eval

    with quiet():
        found: dict[str, Any] = lm_eval.simple_evaluate(model=model, tasks=list(TASKS), task_manager=tasks, **how)
    return found


@cache
def reference(folder: Path) -> Any:
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        return HFLM(
            pretrained=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            device="cpu",
            batch_size=1,
            max_length=LENGTH,
        )


@pytest.mark.parametrize("shots", [0, 1])
def test_each_item_is_that_of_lm_evals_own_backend(
    folder: Path, tasks: Any, shots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "ROWS", 24)
    printed: list[str] = []
    mine = evaluate(EngineLM(load(str(folder)), printed.append, LENGTH), tasks, num_fewshot=shots)
    theirs = evaluate(reference(folder), tasks, num_fewshot=shots)
    tokens = 0
    for name in TASKS:
        assert len(mine["samples"][name]) == len(theirs["samples"][name]) > 6
        for ours, its in zip(mine["samples"][name], theirs["samples"][name], strict=True):
            assert ours["prompt_hash"] == its["prompt_hash"]
            if name == oracles.ANSWER:
                assert ours["resps"] == its["resps"]
                tokens += len(ours["resps"][0][0])
                continue
            for (one,), (other,) in zip(ours["resps"], its["resps"], strict=True):
                value, expected = (one, other) if name == oracles.ROLLING else (one[0], other[0])
                assert value == pytest.approx(expected, rel=1e-5, abs=1e-4)
                if name == oracles.CHOICE:
                    assert one[1] is other[1]
    assert tokens > 20, "answers that say nothing are equal in all backends"
    for name, values in theirs["results"].items():
        for key, value in values.items():
            if key.startswith(("acc,", "acc_norm,", "exact_match,", "word_perplexity,", "bits_per_byte,")):
                assert mine["results"][name][key] == pytest.approx(value, rel=1e-4), (name, key)
    assert "8 answers: 8/8" in printed


def request(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@pytest.mark.parametrize(
    "how", [{"until": ["x"], "temperature": 0.7, "do_sample": True}, {"until": "x", "max_gen_toks": LENGTH}]
)
def test_answers_that_cannot_be_made_are_refused(folder: Path, how: dict[str, Any]) -> None:
    asked = EngineLM(load(str(folder)), lambda line: None, LENGTH)
    with pytest.raises(UsageError, check=wording):
        asked.generate_until([request("Q", how)])


def test_a_prompt_that_is_too_long_loses_its_start(folder: Path) -> None:
    asked = [request(f"{'once more ' * times}and then", {"until": ["e"], "max_gen_toks": 9}) for times in (30, 1, 0)]
    mine = EngineLM(load(str(folder)), lambda line: None, LENGTH).generate_until(asked)
    assert mine == reference(folder).generate_until(asked, disable_tqdm=True)
    assert all(mine)


def test_texts_without_tokens_and_too_long_ones_are_refused(folder: Path) -> None:
    asked = EngineLM(load(str(folder)), lambda line: None, LENGTH)
    with pytest.raises(UsageError, check=wording):
        asked.loglikelihood([request("What", "")])
    with pytest.raises(UsageError, check=wording):
        asked.loglikelihood([request("What", "x" * 120)])


def test_windows_fill_the_positions_that_a_model_has_and_no_more() -> None:
    sizes = {"vocab_size": 103, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32}
    loaded = decoders.loaded(build(("GPT2Config", "GPT2LMHeadModel", sizes)))
    asked = EngineLM(loaded, lambda line: None, max_length=32)
    text = "0123456789 " * 9
    (found,) = asked.loglikelihood_rolling([request(text)])
    ids, expected = [0, *text.encode()], 0.0
    for start, end in ((0, 32), (32, 64), (64, 96), (96, 99)):  # of the tokens foretold; each window is full
        first = max(0, end - 32)
        with torch.inference_mode():
            scores = loaded.model(torch.tensor([ids[first:end]])).logits[0].log_softmax(-1)
        rows = torch.arange(start - first, end - first)
        expected += float(scores[rows, torch.tensor(ids[start + 1 : end + 1])].sum())
    assert found == pytest.approx(expected, rel=1e-5)
    answers = asked.generate_until([request(text, {"until": [], "max_gen_toks": 9})])
    last = torch.tensor([[*text.encode()][-23:]])
    assert answers[0].encode() == bytes(loaded.model.generate(last, max_new_tokens=9, do_sample=False)[0, 23:].tolist())
