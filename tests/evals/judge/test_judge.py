"""What is asked of a judge, what is not asked again, and what is left after it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support import engines
from support.engines import ToyJudge
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.evals.judge.judge import Answer, Unanswered, judge_all, judge_questions, rating
from specbench.evals.judge.judge import judged_answers as rated
from specbench.evals.judge.judge_prompts import JudgePrompt, JudgePrompts
from specbench.evals.task import Question
from specbench.results.judgments import JUDGMENTS, Judgment, judge_scores, read_judgments

# Equal to AR's throughout; in turn two only; in turn one only.
TEXTS: engines.Texts = {
    "ar": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "same": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "other": {"81": ["A blog.", "Aloha."], "111": ["12", "14"]},
}


@pytest.fixture(scope="module")
def asked(task_data: Path) -> Mapping[str, Question]:
    return judge_questions(engines.judged_config(TEXTS).task, task_data)


@pytest.fixture(scope="module")
def answers(asked: Mapping[str, Question], task_data: Path) -> list[Answer]:
    return engines.rated(TEXTS, asked, task_data)


def by_request(folder: Path) -> dict[str, Judgment]:
    return {judgment.request: judgment for judgment in read_judgments(folder)}


def lines(folder: Path) -> int:
    return len((folder / JUDGMENTS).read_text().splitlines())


def seven(prompt: JudgePrompt) -> str:
    return "Fine. [[7]]"


def test_answers_equal_to_ars_take_its_judgment_and_the_record_says_so(tmp_path: Path, answers: list[Answer]) -> None:
    judge = ToyJudge(lambda prompt: f"[[{5 + ('blog.' in prompt.user)}]]")
    judge_all(tmp_path, judge, answers)
    # AR's four, the other first turn of 81, both second turns: a conversation is judged as a whole.
    assert len(judge.asked) == 4 + 1 + 2
    found = by_request(tmp_path)
    assert len(found) == 12
    assert {name: j.same_as for name, j in found.items() if j.same_as} == {
        **{f"same|{tail}": f"ar|{tail}" for tail in ("81|0", "81|0|2", "111|0", "111|0|2")},
        "other|111|0": "ar|111|0",
    }
    for judgment in found.values():
        baseline = found[judgment.same_as or judgment.request]
        assert (judgment.rating, judgment.text) == (baseline.rating, baseline.text)
        assert judgment.prompt_sha256 == baseline.prompt_sha256
        assert judgment.judge == judge.spec


def test_the_judge_reads_both_turns_and_the_reference_where_there_is_one(answers: list[Answer]) -> None:
    by_key = {answer.record.request_id: answer.prompt for answer in answers}
    assert by_key["ar|81|0"].name == "single-v1"
    assert by_key["other|111|0"].name == "single-math-v1"
    second = by_key["other|111|0|2"]
    assert second.name == "single-math-v1-multi-turn"
    assert "### Assistant:\n12\n" in second.user
    assert "### Assistant:\n14\n" in second.user
    assert "### Right:\nmath {1}\n" in second.user


def test_under_forced_history_the_judge_reads_the_conversation_that_took_place(task_data: Path) -> None:
    forced = judge_questions(engines.judged_config(TEXTS, history="ar").task, task_data)
    by_key = {answer.record.request_id: answer.prompt.user for answer in engines.rated(TEXTS, forced, task_data)}
    assert wording(by_key["other|81|0|2"])
    assert "A travel blog." not in by_key["other|81|0"]


def test_the_same_command_asks_nothing_twice(tmp_path: Path, answers: list[Answer]) -> None:
    judge_all(tmp_path, ToyJudge(seven), answers)
    again = ToyJudge(seven)
    judge_all(tmp_path, again, answers)
    assert (again.asked, lines(tmp_path)) == ([], 12)


def test_another_judge_begins_anew_and_both_are_kept(tmp_path: Path, answers: list[Answer]) -> None:
    judge_all(tmp_path, ToyJudge(seven, "one"), answers)
    other = ToyJudge(lambda prompt: "[[3]]", "two")
    judge_all(tmp_path, other, answers)
    assert len(other.asked) == 7
    found = judge_scores(read_judgments(tmp_path), list(TEXTS))
    assert {each["judge"]["id"]: each["methods"]["ar"]["score"] for each in found} == {"one": 7, "two": 3}


@pytest.mark.parametrize("after", [0, 3, 6])
def test_a_judge_that_dies_loses_nothing_the_next_goes_on(tmp_path: Path, answers: list[Answer], after: int) -> None:
    def dies(prompt: JudgePrompt) -> str:
        if len(dying.asked) > after:
            raise EnvironmentRefused("the judge is gone")
        return "[[7]]"

    dying = ToyJudge(dies)
    with pytest.raises(EnvironmentRefused, check=wording):
        judge_all(tmp_path, dying, answers)
    kept = read_judgments(tmp_path)
    assert sum(judgment.same_as is None for judgment in kept) == after
    with (tmp_path / JUDGMENTS).open("a") as file:
        file.write('{"request": "torn')  # a kill in the middle of a line
    reached = []
    rest = ToyJudge(seven)
    judge_all(tmp_path, rest, answers, lambda done, total: reached.append((done, total)))
    assert len(rest.asked) == 7 - after
    assert (reached[0], reached[-1]) == ((len(kept), 12), (12, 12))
    assert len(by_request(tmp_path)) == lines(tmp_path) == 12


def test_words_without_a_rating_are_kept_as_none_and_not_asked_again(tmp_path: Path, answers: list[Answer]) -> None:
    judge_all(
        tmp_path, ToyJudge(lambda prompt: "As an AI I cannot." if "single-v1" in prompt.name else "[[4]]"), answers
    )
    found = by_request(tmp_path)
    assert (found["ar|81|0"].rating, found["ar|81|0"].text) == (None, "As an AI I cannot.")
    again = ToyJudge(seven)
    judge_all(tmp_path, again, answers)
    assert not again.asked
    (judged,) = judge_scores(read_judgments(tmp_path), list(TEXTS))
    ar = judged["methods"]["ar"]
    assert (ar["score"], ar["rated"], ar["judged"]) == (4, 2, 4)  # a nought for each would give 2
    assert ar["categories"]["writing"] == {"score": None, "rated": 0, "judged": 2}


def test_one_prompt_refused_is_noted_and_asked_again_by_the_next_command(tmp_path: Path, answers: list[Answer]) -> None:
    def refuses(prompt: JudgePrompt) -> str:
        if prompt.name == "single-math-v1-multi-turn":
            raise Unanswered("HTTP 400: too long")
        return "[[7]]"

    judge_all(tmp_path, ToyJudge(refuses), answers)
    found = by_request(tmp_path)
    assert (found["ar|111|0|2"].rating, found["ar|111|0|2"].error) == (None, "HTTP 400: too long")
    assert judge_scores(read_judgments(tmp_path), list(TEXTS))[0]["methods"]["ar"]["errors"] == 1
    again = ToyJudge(seven)
    judge_all(tmp_path, again, answers)
    assert {prompt.name for prompt in again.asked} == {"single-math-v1-multi-turn"}
    assert [judgment for judgment in read_judgments(tmp_path) if judgment.error] == []
    assert judge_scores(read_judgments(tmp_path), list(TEXTS))[0]["methods"]["ar"]["rated"] == 4


def test_an_answer_that_changed_is_judged_again(tmp_path: Path, asked: Mapping[str, Question], task_data: Path) -> None:
    judge_all(tmp_path, ToyJudge(seven), engines.rated(TEXTS, asked, task_data))
    changed = {**TEXTS, "other": {**TEXTS["other"], "81": ["Another blog.", "Aloha."]}}
    again = ToyJudge(lambda prompt: "[[2]]")
    judge_all(tmp_path, again, engines.rated(changed, asked, task_data))
    assert len(again.asked) == 2
    assert by_request(tmp_path)["other|81|0"].rating == 2


def test_the_score_is_the_mean_over_both_turns_with_the_categories_too(tmp_path: Path, answers: list[Answer]) -> None:
    values = {"single-v1": 8, "single-math-v1": 2, "single-v1-multi-turn": 6, "single-math-v1-multi-turn": 1}
    judge_all(tmp_path, ToyJudge(lambda prompt: f"[[{values[prompt.name]}]]"), answers)
    (judged,) = judge_scores(read_judgments(tmp_path), list(TEXTS))
    other = judged["methods"]["other"]
    assert (other["score"], other["rated"], other["same_as"]) == (17 / 4, 4, 1)
    assert {name: row["score"] for name, row in other["categories"].items()} == {"writing": 7, "math": 1.5}
    assert {turn: row["score"] for turn, row in other["turns"].items()} == {"1": 5, "2": 3.5}
    assert next(iter(judged["methods"])) == "ar"


def test_a_rating_is_the_first_of_the_form_asked_for_and_anything_else_is_none_and_never_nought() -> None:
    for text, value in {
        "Clear and right. Rating: [[8]]": 8, "[[7.5]]": 7.5, "[[7.]]": 7, "[[3]] and later [[9]]": 3, "Rating: [6]": 6,
        "as in [2] it says, so [[9]]": 9, "[[10]]": 10, "[[1]]": 1,
    }.items():  # fmt: skip
        assert rating(text) == value, text
    for text in ("", "Rating: 8", "[[eight]]", "[[8/10]]", "[[-3]]", "[[ 8 ]]", "[[0]]", "[[11]]", "[[85]]", "[12]"):
        assert rating(text) is None, text


def test_the_judge_reads_the_conversation_of_the_same_repeat() -> None:
    class Prompts(JudgePrompts):
        def __init__(self) -> None: ...

        def render(self, question: Question, answers: Sequence[str]) -> JudgePrompt:
            return JudgePrompt("single-v1", "", " | ".join(answers))

    every = [(repeat, turn) for repeat in (0, 1) for turn in (1, 2)]
    talks = [engines.record("ar", "81", turn, f"turn {turn} of repeat {at}", at) for at, turn in every]
    question = Question(("Write.", "Again."), None, False)
    read = {answer.record.request_id: answer.prompt.user for answer in rated(talks, {"81": question}, Prompts())}
    for repeat in (0, 1):
        assert read[f"ar|81|{repeat}|2"] == f"turn 1 of repeat {repeat} | turn 2 of repeat {repeat}"
