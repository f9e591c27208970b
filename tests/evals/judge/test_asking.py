"""Several questions at once: whichever is answered first, the files are the same, and no answer is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import engines
from support.engines import ToyJudge
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.evals.judge.asking import Asking
from specbench.evals.judge.judge import Answer, Unanswered, judge_all
from specbench.evals.judge.judge_prompts import JudgePrompt
from specbench.results.judgments import JUDGMENTS, JudgeSpec, read_judgments

WAIT_S = 5.0


def answers_of(texts: Sequence[str], methods: Sequence[str] = ("ar", "same")) -> list[Answer]:
    """An answer of each method to each text's question, whose prompt is the text."""
    return [
        Answer(engines.record(method, "81", 1, text, repeat), JudgePrompt("single-v1", "Be fair.", text))
        for method in methods
        for repeat, text in enumerate(texts)
    ]


def says(prompt: JudgePrompt) -> str:
    """By the prompt alone: a rating, a refusal, or a fault."""
    if prompt.user.startswith("refuse"):
        raise Unanswered(f"no {prompt.user}")
    if prompt.user.startswith("fault"):
        raise EnvironmentRefused(f"the judge is gone: {prompt.user}")
    return f"{prompt.user}: [[{1 + len(prompt.user) % 10}]]"


class InTurn:
    """A judge whose answers come in the order that it is given: each as soon as its worker can be.

    Attributes:
        most: questions that it was asked at once.
    """

    def __init__(self, order: Callable[[list[str]], str], workers: int) -> None:
        self.spec = JudgeSpec(id="toy", kind="endpoint", max_tokens=8)
        self.asked: list[str] = []
        self.most = 0
        self._order, self._workers = order, workers
        self._open: list[str] = []
        self._changed = threading.Condition()

    def ask(self, prompt: JudgePrompt) -> str:
        with self._changed:
            self.asked.append(prompt.user)
            self._open.append(prompt.user)
            self.most = max(self.most, len(self._open))
            self._changed.notify_all()
        time.sleep(0.001)  # others begin meanwhile
        with self._changed:
            self._changed.wait_for(lambda: self._order(self._open) == prompt.user, 0.02)
            self._open.remove(prompt.user)
            self._changed.notify_all()
        return says(prompt)


def outcome(folder: Path, answers: Sequence[Answer], judge: InTurn | ToyJudge, workers: int) -> tuple[str, str]:
    """What is written, and what judging ended with."""
    try:
        judge_all(folder, judge, answers, workers=workers)
    except SpecbenchError as error:
        return (folder / JUDGMENTS).read_text(), str(error)
    return (folder / JUDGMENTS).read_text(), ""


PROMPTS = st.lists(st.sampled_from([*"abcdefg", "bb", "ccc", "refuse 1", "refuse 2", "fault"]), min_size=1, max_size=10)


@settings(max_examples=25, deadline=None)
@given(PROMPTS, st.integers(2, 8), st.randoms(use_true_random=False))
def test_any_number_of_workers_and_any_order_of_arrival_writes_the_same(
    texts: list[str], workers: int, random: Random
) -> None:
    answers = answers_of(texts)
    order = {text: random.random() for text in texts}
    judge = InTurn(lambda waiting: min(waiting, key=order.__getitem__), workers)
    alone, healed = ToyJudge(says), ToyJudge(lambda prompt: f"{prompt.user}: [[{1 + len(prompt.user) % 10}]]")
    alone.spec = healed.spec = judge.spec
    with TemporaryDirectory() as one, TemporaryDirectory() as many:
        expected, fault = outcome(Path(one), answers, alone, 1)
        written, result = outcome(Path(many), answers, judge, workers)
        assert result == fault
        assert written == expected if not fault else written.startswith(expected), "what came after a fault is kept"
        assert fault or sorted(judge.asked) == sorted(prompt.user for prompt in alone.asked)
        assert len(set(judge.asked)) == len(judge.asked), "equal prompts are asked once"
        assert judge.most <= workers
        # The next command leaves the same, whatever was kept before it.
        for folder in (one, many):
            judge_all(Path(folder), healed, answers, workers=1 if folder is one else workers)
        first, second = ({each.request: each for each in read_judgments(Path(folder))} for folder in (one, many))
        assert first == second
        assert first.keys() == {answer.record.request_id for answer in answers}


def test_as_many_questions_as_workers_are_open_and_equal_ones_in_flight_are_asked_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def waits(prompt: JudgePrompt) -> str:
        together.wait(WAIT_S)  # breaks where fewer are asked at once
        return "[[5]]"

    judge = ToyJudge(waits)
    judge_all(tmp_path, judge, answers_of(["a", "a", "b", "c", "b", "d"]), workers=4)
    assert sorted(prompt.user for prompt in judge.asked) == ["a", "b", "c", "d"]
    assert [each.same_as for each in read_judgments(tmp_path)][:5] == [
        None,
        "ar|81|0",
        None,
        None,
        "ar|81|2",
    ]


@pytest.mark.parametrize("how", ["ctrl-c", "fault"])
def test_what_came_after_an_open_question_is_kept(tmp_path: Path, how: str) -> None:
    come, reached, over = threading.Semaphore(0), threading.Event(), threading.Event()

    def hangs(prompt: JudgePrompt) -> str:
        if prompt.user == "b":
            for _ in range(3):  # c, d and e, which are after it
                assert come.acquire(timeout=WAIT_S)
            time.sleep(0.05)
            if how == "fault":
                raise EnvironmentRefused("gone")
            reached.set()
            over.wait(WAIT_S)
        elif prompt.user != "a":
            come.release()
        return says(prompt)

    answers = answers_of("abcde")
    judge = ToyJudge(hangs)
    waits = Asking.answer

    def interrupted(self: Asking, prompt: JudgePrompt) -> str:
        if how == "ctrl-c" and prompt.user == "b":
            assert reached.wait(WAIT_S)
            raise KeyboardInterrupt
        return waits(self, prompt)

    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Asking, "answer", interrupted)
        with pytest.raises((KeyboardInterrupt, EnvironmentRefused)):
            judge_all(tmp_path, judge, answers, workers=4)
    assert time.monotonic() - begun < WAIT_S / 2, "no one waits for what hangs"
    over.set()
    kept = read_judgments(tmp_path)
    assert [each.request for each in kept] == [f"ar|81|{at}" for at in (0, 2, 3, 4)]
    again = ToyJudge(says)
    again.spec = judge.spec
    judge_all(tmp_path, again, answers, workers=4)
    assert [prompt.user for prompt in again.asked] == ["b"]
    found = {each.request: each for each in read_judgments(tmp_path)}
    assert len(found) == len((tmp_path / JUDGMENTS).read_text().splitlines()) == 10
    assert found["same|81|1"].same_as == "ar|81|1"


def test_three_refusals_in_a_row_end_it_soon_and_equal_prompts_are_one_refusal(tmp_path: Path) -> None:
    every = ToyJudge(says)
    with pytest.raises(UsageError, check=wording):
        judge_all(tmp_path, every, answers_of([f"refuse {at}" for at in range(100)]), workers=2)
    assert len(every.asked) <= 3 + 4 * 2 + 2
    (tmp_path / JUDGMENTS).unlink()
    one = ToyJudge(says)
    judge_all(tmp_path, one, answers_of(["a", "refuse 1"], ["ar", "b", "c", "d", "e"]))
    assert [prompt.user for prompt in one.asked] == ["a", "refuse 1"]
    assert [each.error for each in read_judgments(tmp_path)].count("no refuse 1") == 5
