"""Training prompts: what may be learnt from, and nothing that is measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.evals import data
from specbench.training.data.given_answers import has_answers
from specbench.training.data.training_prompts import check_sets, training_prompts


def test_sets_that_are_refused() -> None:
    for name in ("gsm8k", "gsm8k-test", "mbpp", "mbpp-test", "humaneval", "humaneval-train", "mt-bench"):
        with pytest.raises(UsageError, check=wording):
            check_sets(["gsm8k-train", name])
    with pytest.raises(UsageError, check=wording):
        check_sets(["gsm8k-trian"])
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        check_sets(["nowhere.jsonl"])


@pytest.mark.parametrize(("name", "chat", "count"), [("gsm8k", True, 8), ("mbpp", False, 371)])
def test_a_training_split_has_no_prompt_of_the_test(
    task_data: Path, monkeypatch: pytest.MonkeyPatch, name: str, chat: bool, count: int
) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    pytest.importorskip("lm_eval" if name == "gsm8k" else "evalplus")
    module = registry.task(name).load()
    tested = module.Task(module.Options()).prompts(chat)
    trained = training_prompts([f"{name}-train"], chat)
    assert len(trained) == len({prompt.id for prompt in trained}) == count
    asked, learnt = ({" ".join(prompt.text.split()) for prompt in prompts} for prompts in (tested, trained))
    assert not asked & learnt
    one, other = trained[0], tested[0]
    assert (one.chat, one.prefill, one.stops) == (other.chat, other.prefill, other.stops)
    if name == "mbpp":
        numbers = {prompt.id for prompt in tested}
        assert not numbers & {prompt.id.removeprefix("mbpp-train/") for prompt in trained}


def test_a_file_of_test_questions_is_refused_as_a_test_split_is(
    task_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    (question, *_) = (json.loads(line)["question"] for line in (task_data / "gsm8k_test.jsonl").open())
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("Once", f"Question: {question}\nAnswer:")))
    with pytest.raises(UsageError, check=wording):
        training_prompts([str(file)], chat=False)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"prompt": "Once"}) + "\n" + json.dumps({"id": "b", "prompt": "Twice"}) + "\n")
    assert [prompt.text for prompt in training_prompts([str(file)], True)] == ["Once", "Twice"]
    file.write_text(json.dumps({"turns": ["One", "Two"]}) + "\n")
    with pytest.raises(UsageError, check=wording):
        training_prompts([str(file)], True)


def test_published_training_splits_are_asked_as_the_test_is(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    spider = training_prompts(["spider-train"], chat=False)
    assert [prompt.id for prompt in spider] == ["spider-train/spider/0", "spider-train/spider/1"]
    module = registry.task("spider").load()
    tested = module.Task(module.Options()).prompts(False)
    assert [prompt.text.replace("Please: ", "") for prompt in spider] == [prompt.text for prompt in tested[:2]]
    (function,) = training_prompts(["codesearchnet-train"], chat=True)
    assert "Twice the number." in function.text


def test_of_sharegpts_conversations_the_first_question_is_asked(tmp_path: Path) -> None:
    def said(*turns: tuple[str, str]) -> dict[str, object]:
        return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}

    file = tmp_path / "sharegpt.json"
    rows = [
        said(("human", "One"), ("gpt", "1"), ("human", "Two"), ("gpt", "2")),
        said(("gpt", "the rest of an answer"), ("human", "Three")),
        said(),
        said(("system", "Be brief."), ("human", "Four"), ("gpt", "4")),
    ]
    file.write_text(json.dumps(rows))
    found = training_prompts([str(file)], chat=True)
    assert [(prompt.id, prompt.text, prompt.turns) for prompt in found] == [
        ("sharegpt/1", "One", 1),
        ("sharegpt/4", "Four", 1),
    ]
    assert [prompt.history for prompt in found] == [(), (("system", "Be brief."),)]
    assert not has_answers(file)
    file.write_text("[]")
    with pytest.raises(UsageError, match="no prompts"):
        training_prompts([str(file)], chat=True)
