from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import gsm8k as own
from support.asserting import data_folder
from support.oracles import lm_eval_run, needs
from support.wording import wording

from specbench.common import options
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import lm_eval_tasks
from specbench.evals.data import read_jsonl
from specbench.tasks.gsm8k import task
from specbench.tasks.gsm8k.numbers import final_number
from specbench.tasks.gsm8k.task import Options, Task

TEST, TRAIN = "gsm8k_test.jsonl", "gsm8k_train.jsonl"

pytestmark = needs("lm_eval")


@pytest.fixture(scope="module")
def styled(task_data: Path) -> Callable[[str], Task]:
    """A task of this style, on data of our own; one for all tests, since lm-eval takes its time to load one."""
    return cache(lambda style: Task(options.parse_options(Options, {"style": style}, "gsm8k"), task_data))


@pytest.fixture
def scorer(styled: Callable[[str], Task]) -> Task:
    return styled("completion")


@pytest.fixture(params=["own", pytest.param("published", marks=pytest.mark.slow)])  # 1,319 problems, 53,000 verdicts
def folder(request: pytest.FixtureRequest, task_data: Path) -> Path:
    return task_data if request.param == "own" else data_folder(TEST, TRAIN)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("chat", task.CHAT.replace("{{question}}", "{}")),
        ("completion", None),
        ("cot", None),
        ("cllm", "Question:\n{}\nAnswer:\nLet's think step by step.\n"),
        ("jf", "Problem: {}\nMark your solution with \\boxed\nAnswer:"),
    ],
)
def test_every_question_is_asked_once_by_its_id(styled: Callable[[str], Task], style: str, text: str | None) -> None:
    prompts = styled(style).prompts(chat=True)
    assert [p.id for p in prompts] == [f"gsm8k/{n}" for n in range(len(own.TEST))]
    assert {p.chat for p in prompts} == {style in ("chat", "jf")}
    for prompt, row in zip(prompts, own.TEST, strict=True):
        assert prompt.text == text.format(row["question"]) if text else row["question"] in prompt.text


def test_shots_of_a_chat_are_turns_and_come_from_the_training_data(task_data: Path) -> None:
    training = {(row["question"], row["answer"]) for row in own.TRAIN}
    made = Task(Options(shots=3), task_data)
    drawn = set()
    for prompt in made.prompts(chat=True):
        assert [role for role, _ in prompt.history] == ["user", "assistant"] * 3
        asked = [(q.partition("\n\nReason step by step.")[0], a) for (_, q), (_, a) in _pairs(prompt.history)]
        assert set(asked) <= training
        assert len(set(asked)) == 3
        drawn.add(tuple(asked))
    assert len(drawn) > 9
    assert made.options == Options(style="chat", shots=3)


def _pairs(turns: Any) -> Any:
    return zip(turns[::2], turns[1::2], strict=True)


@pytest.mark.parametrize(
    ("style", "config", "shots"), [("completion", "gsm8k/gsm8k.yaml", 5), ("cot", "gsm8k/gsm8k-cot.yaml", 8)]
)
def test_completions_are_lm_evals_contexts(
    styled: Any, task_data: Path, tmp_path: Path, style: str, config: str, shots: int
) -> None:
    """Its examples are drawn at random: they are only the same when all of its seeds and calls are."""
    files = {"test": task_data / TEST, "train": task_data / TRAIN}
    model, _ = lm_eval_run(config, files, tmp_path, lambda n: "", limit=None)
    made = styled(style)
    prompts = made.prompts(chat=False)
    assert {n: p.text for n, p in enumerate(prompts)} == {n: text for n, (text, _) in model.requests.items()}
    assert {p.stops for p in prompts} == {tuple(arguments["until"]) for _, arguments in model.requests.values()}
    assert made.options.shots == shots
    assert prompts[0].text.count("\nAnswer:" if style == "completion" else "\nA:") == shots + 1


def test_an_example_that_is_asked_stops_the_prompts(task_data: Path, tmp_path: Path) -> None:
    lm_eval_tasks.disjoint(own.TRAIN, own.TEST, "question")
    planted = {"question": f"  {own.TEST[7]['question'].upper()}\n", "answer": "#### 1"}
    (tmp_path / TRAIN).write_text(small_data.lines([*own.TRAIN, planted]))
    style = task.STYLES["completion"]
    made = lm_eval_tasks.LmTask(style, {"test": task_data / TEST, "train": tmp_path / TRAIN})
    with pytest.raises(UsageError, check=wording):
        made.prompts("gsm8k", style, 5, "question")


def gold(row: dict[str, Any]) -> str:
    return str(row["answer"].split("####")[1].strip())


CORRUPTED: list[Callable[[dict[str, Any]], str]] = [
    lambda row: row["answer"].replace(f"#### {gold(row)}", f"#### {gold(row)}1"),
    lambda row: row["answer"].replace("#### ", "The answer is ") + ".",
    lambda row: row["answer"].partition("####")[0] + f"He pays ${gold(row)}.00.",
    lambda row: row["answer"].partition("####")[0] + f"So it is $\\boxed{{{gold(row)}}}$.",
    lambda row: row["answer"][: len(row["answer"]) // 2],
    lambda row: row["answer"] + "\n\nThen 7 apples are left..",
    lambda row: f"#### {gold(row)} and then #### {int(gold(row).replace(',', '')) - 1}",
    lambda row: f"The answer is -{gold(row)}. The answer is {gold(row)}.",
    lambda row: f"{int(gold(row).replace(',', '')):,}",
    lambda row: "I do not know.",
]


@pytest.mark.parametrize("style", ["completion", "cot"])
def test_verdicts_are_lm_evals(folder: Path, tmp_path: Path, style: str) -> None:
    """On every document's own solution, and on every document's solution spoilt in one of ten ways."""
    rows = read_jsonl(folder / TEST)
    files = {"test": folder / TEST, "train": folder / TRAIN}
    made = Task(options.parse_options(Options, {"style": style}, "gsm8k"), folder)
    for answer in (lambda n: rows[n]["answer"], lambda n: CORRUPTED[n % 10](rows[n])):
        _, theirs = lm_eval_run(task.STYLES[style].config, files, tmp_path, answer, None, num_fewshot=0)
        assert len(theirs["strict-match"]) == len(rows)
        outcomes = set()
        for n, sample in theirs["flexible-extract"].items():
            ours = made.score(f"gsm8k/{n}", answer(n))
            assert ours.passed == bool(sample["exact_match"]), (n, answer(n))
            assert ours.also["strict"] == bool(theirs["strict-match"][n]["exact_match"]), (n, answer(n))
            outcomes.add((ours.passed, ours.also["strict"]))
        if answer(0) == rows[0]["answer"]:
            assert outcomes == {(True, style == "completion")}
        else:
            assert len(outcomes) >= 3


@pytest.mark.parametrize("style", task.STYLES)
def test_reference_solutions_pass_in_every_style(folder: Path, style: str) -> None:
    made = Task(options.parse_options(Options, {"style": style}, "gsm8k"), folder)
    form = {"cot": "The answer is {}.", **dict.fromkeys(("jf", "jetspec"), "$\\boxed{{{}}}$")}.get(style, "#### {}")
    for n, row in enumerate(read_jsonl(folder / TEST)):
        verdict = made.score(f"gsm8k/{n}", row["answer"].partition("####")[0] + form.format(gold(row)))
        assert (verdict.passed, verdict.reason, verdict.also) == (True, "pass", {"strict": True, "numeric": True}), n


# The reference is 18. numeric is the verdict of a careful human, unless a comment says otherwise; flexible and strict
# are lm-eval's filters, whose blind spots are the reason for numeric.
HAND_WRITTEN = [
    # text, flexible, strict, numeric
    ("16 - 3 - 4 = 9 and 9 * 2 = 18\n#### 18", True, True, True),
    ("The answer is 18 dollars.", True, False, True),
    ("She makes $18.00.", False, False, True),  # flexible keeps the point of "18.00."
    ("She makes $18.", True, False, True),
    ("#### $18", True, False, True),  # strict wants a digit after the hashes
    ("#### 18.0", False, False, True),
    ("#### 18.00 dollars", False, False, True),
    ("She makes 18 dollars a day..", False, False, True),  # flexible takes ".." for a number
    ("She sells 9 eggs at $2 each for 18 dollars..", False, False, True),  # and of those before it, it is the last
    ("She makes 18 dollars, from 9 eggs at $2", False, False, False),  # a human knows: trailing text misleads all three
    ("9 eggs are left and 9 * 2 = 18%", True, False, True),
    ("\\boxed{18}", True, False, True),
    ("The answer is $\\boxed{18}$.", False, False, True),  # flexible takes "$." for a number
    ("\\boxed{\\$18.00}", False, False, True),
    ("\\boxed{18 \\text{ dollars}}", True, False, True),
    ("\\boxed{\\text{Janet makes } \\$18}", True, False, True),
    ("\\boxed{18\\%}", True, False, True),
    ("\\boxed{x = 18}", True, False, True),
    ("\\boxed{\\frac{36}{2}}", False, False, True),
    ("\\boxed{\\boxed{18}}", True, False, True),
    ("Maybe \\boxed{16}. No, she sells 9: \\boxed{18}", True, False, True),
    ("\\boxed{18}, which is 9 eggs at 2 dollars.", False, False, True),
    ("It is \\boxed{20}, not 18", True, False, False),  # what is boxed is the answer
    ("\\boxed{1/18}", True, False, False),
    ("\\boxed{9 \\text{ eggs}, 18 \\text{ dollars}}", True, False, False),  # two values are no answer
    ("\\boxed{18 \\text{ dollars}, 9 \\text{ eggs}}", False, False, False),
    ("#### 18\n\\boxed{unknown}", True, True, False),
    ("\\boxed{-18}", False, False, False),
    ("She has 16 - 3 - 4 = 9 eggs left and sells them for", False, False, False),  # cut off
    ("9 * 2 = \\boxed{1", False, False, False),  # cut off within the box
    ("eighteen", False, False, False),  # a human knows: no filter reads words
    ("#### 18\n\nQuestion: Tom has 7 apples", False, True, True),  # why completions stop at "Question:"
    ("#### 180", False, False, False),
    ("#### 17.9999999", False, False, True),  # within 1e-6
    ("#### 17.9999", False, False, False),
]


@pytest.mark.parametrize(("text", "flexible", "strict", "number"), HAND_WRITTEN)
def test_hand_written_answers(scorer: Task, text: str, flexible: bool, strict: bool, number: bool) -> None:
    verdict = scorer.score("gsm8k/0", text)
    assert (verdict.passed, verdict.also) == (flexible, {"strict": strict, "numeric": number}), verdict.detail


def test_a_boxed_style_is_strict_about_the_box(styled: Callable[[str], Task]) -> None:
    made = styled("jf")
    assert made.score("gsm8k/0", "\\boxed{17} or \\boxed{18}").also["strict"]
    assert not made.score("gsm8k/0", "#### 18").also["strict"]
    assert (made.versions, made.isolation) == ({"lm-eval": importlib.metadata.version("lm-eval")}, [])


def test_the_training_data_are_needed_for_shots_alone(task_data: Path, tmp_path: Path) -> None:
    (tmp_path / TEST).write_bytes((task_data / TEST).read_bytes())
    with small_data.accept(tmp_path):
        made = Task(Options(style="chat"), tmp_path)
        assert len(made.prompts(chat=True)) == len(own.TEST)
        assert made.score("gsm8k/0", "#### 18").passed
        made = Task(Options(style="completion"), tmp_path)
        with pytest.raises(UsageError, check=wording):
            made.prompts(chat=False)
        assert made.score("gsm8k/0", "#### 18").passed


def test_without_the_extra_it_says_what_to_install(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentRefused, check=wording):
        Task(Options(style="chat"), task_data).prompts(chat=True)

    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    with pytest.raises(EnvironmentRefused) as error:
        Task(Options(), task_data)
    assert str(error.value) == "gsm8k needs lm-eval, which is not installed: pip install 'specbench-llm[eval]'"


def test_neither_prompts_nor_verdicts_import_torch(task_data: Path) -> None:
    code = (
        "from specbench.tasks.gsm8k.task import Options, Task\n"
        "assert 'lm_eval' not in sys.modules, 'listing the tasks must stay quick'\n"
        "with small_data.accept(folder):\n"
        "    made = Task(Options(style='completion'), folder)\n"
        "    made.prompts(False)\n"
        "    assert made.score('gsm8k/0', '#### 18').passed\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    assert small_data.run(code, task_data) == (0, "", "")


def test_an_answer_to_a_training_prompt_is_judged_by_the_training_data(task_data: Path) -> None:
    made = Task(Options(), task_data)
    prompts = made.training_prompts(chat=True)
    assert [prompt.text for prompt in prompts] == [
        task.CHAT.replace("{{question}}", row["question"]) for row in own.TRAIN
    ]
    for prompt, row in zip(prompts, own.TRAIN, strict=True):
        assert made.score_training(prompt.id, f"So it is\n#### {gold(row)}").passed
        assert not made.score_training(prompt.id, f"So it is\n#### {gold(row)}1").passed
        assert not made.score(prompt.id, f"So it is\n#### {gold(row)}").passed  # of the test split, another problem
    with pytest.raises(UsageError, check=wording):
        made.score_training("gsm8k/8", "1")


@pytest.mark.parametrize(
    ("text", "number", "by"),
    [
        ("16 - 7 = 9 eggs, and 9 * 2 makes 18 dollars a day..", 18, "last number"),
        ("18 dollars a day, from 9 eggs..", 9, "last number"),
        ("Mark your solution with \\boxed\nAnswer: 9 * 2\n#### 18", 18, "'####'"),
        ("I put it within \\boxed{}.\n#### 18", 18, "'####'"), ("\\boxed{18}\n#### 9", 18, "last box"),
        ("#### 18\n\nQuestion: Tom has 7 apples", 18, "'####'"), ("#### 9 * 2 = 18 dollars of 20", 18, "'####'"),
        ("#### unknown\nThe answer is 18 for 9 eggs", 18, "'the answer is'"),
        ("Answer: 9.\n**Answer:** 18", 18, "'the answer is'"),
        ("9 eggs: $\\boxed 18$, each 2", 18, "last box"), ("#### −18", -18, "'####'"), ("no", None, "last number"),
    ],
)  # fmt: skip
def test_the_final_number_is_found_as_by_a_person(text: str, number: float | None, by: str) -> None:
    assert final_number(text) == (number, by)
