"""A model rates the answers of a run, as FastChat's MT-Bench does.

It finds the answers that still have to be judged, lets equal answers share a judgment, reads the rating from the
judge's reply, and records each judgment as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specbench.common import UsageError, parse_options, plugins, registry
from specbench.evals.judge.asking import Asking
from specbench.evals.judge.judge_prompts import JudgePrompt, JudgePrompts
from specbench.evals.task import JudgedTask, Question
from specbench.results import (
    BASELINE,
    JUDGMENTS,
    JudgeSpec,
    Judgment,
    RequestLog,
    RequestRecord,
    TaskSpec,
    answer_hash,
    read_judgments,
    request_key,
)


class Unanswered(Exception):
    """The judge refuses this prompt; it may accept others."""


@dataclass(frozen=True)
class Answer:
    """One answer to be rated."""

    record: RequestRecord
    prompt: JudgePrompt


def judge_questions(task: TaskSpec, data_dir: Path | None = None) -> Mapping[str, Question]:
    """The questions of a run, by prompt id."""
    card = registry.task(task.name)
    if not card.info.get("judge"):
        judged = ", ".join(name for name, other in registry.tasks().items() if other.info.get("judge"))
        raise UsageError(f"task '{task.name}' is not rated by a judge; those that are: {judged}")
    if int(card.info["version"]) != task.version:
        raise UsageError(
            f"the run is of {task.name} v{task.version} and this is v{card.info['version']}, whose questions may "
            "differ; run it again"
        )
    module = card.load()
    with plugins.plugin_call(card.who):
        made: JudgedTask = module.Task(parse_options(module.Options, task.options, task.name), data_dir)
        return made.questions()


def judged_answers(
    records: Sequence[RequestRecord], asked: Mapping[str, Question], prompts: JudgePrompts
) -> list[Answer]:
    """All answers in the order of ``records``, but AR's first, because other answers may be equal to them."""
    texts = {record.request_id: record.text for record in records}
    found = []
    for record in sorted(records, key=lambda record: record.method != BASELINE):
        question = asked.get(record.prompt_id)
        if question is None:
            raise UsageError(f"the task has no prompt '{record.prompt_id}'; the run was made with other data")
        # The judge reads the conversation with the answers in its history.
        speaker = BASELINE if question.forced else record.method
        before = [request_key(speaker, record.prompt_id, record.repeat, turn) for turn in range(1, record.turn)]
        for key in before:
            if key not in texts:
                raise UsageError(
                    f"the run lacks the answer {key}, which {record.request_id} follows; repeat its command"
                )
        answers = [texts[key] for key in before]
        found.append(Answer(record, prompts.render(question, [*answers, record.text])))
    return found


# A judge that refuses the first few prompts is set up wrongly; more questions would only cost.
_MOST_REFUSALS = 3


class Judge(Protocol):
    """Who rates."""

    @property
    def spec(self) -> JudgeSpec:
        """The record."""
        ...

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's reply. Several threads call this at once if there are several workers.

        Raises:
            Unanswered: it refuses this prompt.
            SpecbenchError: it cannot go on.
        """
        ...


def judgment(answer: Answer, spec: JudgeSpec, text: str, error: str | None = None) -> Judgment:
    """The record of a judgment on one answer."""
    record = answer.record
    return Judgment(
        request=record.request_id,
        method=record.method,
        prompt_id=record.prompt_id,
        repeat=record.repeat,
        turn=record.turn,
        category=record.category,
        judge=spec,
        answer=answer_hash(record.text),
        prompt=answer.prompt.name,
        prompt_sha256=answer.prompt.sha256,
        injected=answer.prompt.injected,
        rating=rating(text),
        text=text,
        error=error,
    )


def judge_all(
    folder: Path,
    judge: Judge,
    answers: Sequence[Answer],
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 1,
) -> None:
    """Rate every answer that this judge has not rated, and append to ``judgments.jsonl`` after each.

    Equal prompts share a judgment. Lines are in the order of ``answers``. If judging is interrupted, judgments after an
    unanswered question are kept too.

    Args:
        answers: the baseline's first, so that equal answers share its judgments.

    Raises:
        UsageError: the judge refused several prompts in a row.
    """
    mine = [j for j in read_judgments(folder) if j.judge == judge.spec and j.error is None]
    rated = {(j.request, j.prompt_sha256) for j in mine}
    by_prompt = {j.prompt_sha256: j for j in reversed(mine)}
    left = [answer for answer in answers if (answer.record.request_id, answer.prompt.sha256) not in rated]
    unknown = [answer.prompt for answer in left if answer.prompt.sha256 not in by_prompt]
    progress(len(answers) - len(left), len(answers))
    log = RequestLog(folder / JUDGMENTS)
    asking = Asking(judge, unknown, workers, Unanswered)
    books = _Books(log, judge.spec, by_prompt)
    done = 0
    try:
        for answer in left:
            books.take(answer, asking.answer)
            done += 1
            progress(len(answers) - len(left) + done, len(answers))
    except BaseException:  # also after Ctrl-C
        asking.close()
        books.keep(left[done:], asking.came)
        raise
    finally:
        asking.close()
        log.close()


class _Books:
    """The judgments so far, one per distinct prompt, and how often in a row the judge refused."""

    def __init__(self, log: RequestLog, spec: JudgeSpec, by_prompt: dict[str, Judgment]) -> None:
        self._log, self._spec, self._by_prompt = log, spec, by_prompt
        self._refused: dict[str, str] = {}  # refused prompts, with the reason
        self._in_a_row = 0

    def take(self, answer: Answer, ask: Callable[[JudgePrompt], str]) -> None:
        """Record the judgment of an answer; ask for it unless an equal prompt was asked before."""
        sha = answer.prompt.sha256
        if sha not in self._by_prompt and sha not in self._refused:
            try:
                self._record(answer, ask(answer.prompt))
                self._in_a_row = 0
                return
            except Unanswered as error:
                self._refused[sha] = str(error)
                self._in_a_row += 1
        if sha in self._by_prompt:
            self._share(answer)
            return
        why = self._refused[sha]
        self._log.append(judgment(answer, self._spec, "", why).model_dump(mode="json"))
        if self._in_a_row == _MOST_REFUSALS:
            raise UsageError(f"the judge refused {_MOST_REFUSALS} answers in a row ({why}); check its set-up")

    def keep(self, answers: Sequence[Answer], came: Callable[[JudgePrompt], str | None]) -> None:
        """Record the judgments of some answers; the next command asks for the rest and shares these."""
        for answer in answers:
            if answer.prompt.sha256 not in self._by_prompt and (text := came(answer.prompt)) is not None:
                self._record(answer, text)

    def _record(self, answer: Answer, text: str) -> None:
        made = judgment(answer, self._spec, text)
        self._log.append(made.model_dump(mode="json"))
        self._by_prompt[answer.prompt.sha256] = made

    def _share(self, answer: Answer) -> None:
        known = self._by_prompt[answer.prompt.sha256]
        made = judgment(answer, self._spec, known.text)
        made = made.model_copy(update={"same_as": known.same_as or known.request})
        self._log.append(made.model_dump(mode="json"))


# FastChat, llm_judge/common.py: the requested form, then a form that judges often use.
# Written so that a number of a million digits takes linear time; they match what FastChat's patterns match.
_PATTERNS = (re.compile(r"\[\[(\d+(?:\.\d*)?)\]\]"), re.compile(r"\[(\d+(?:\.\d*)?)\]"))


def rating(text: str) -> float | None:
    """The rating in a judgment; None if there is none.

    A number outside 1 to 10 does not count: the prompts ask for that scale, and the second form also finds the "[12]"
    of a footnote. FastChat would count it.
    """
    for pattern in _PATTERNS:
        if found := pattern.search(text):
            value = float(found[1])
            return value if 1 <= value <= 10 else None
    return None
