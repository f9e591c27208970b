"""Judging a run: what is left to ask, what equal answers share, and a record of each as it comes. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from specbench.errors import UsageError
from specbench.judging.answers import Answer
from specbench.judging.prompts import JudgePrompt
from specbench.judging.rating import rating
from specbench.judging.records import JUDGMENTS, JudgeSpec, Judgment, read_judgments
from specbench.judging.unanswered import Unanswered
from specbench.request_log import RequestLog

# A judge that refuses the first few prompts was not set up right; asking on would only cost.
_MOST_REFUSALS = 3


class Judge(Protocol):
    """Who rates."""

    @property
    def spec(self) -> JudgeSpec:
        """The record."""
        ...

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's words.

        Raises:
            Unanswered: it refuses this prompt.
            SpecbenchError: it cannot go on.
        """
        ...


def judgment(answer: Answer, spec: JudgeSpec, text: str, error: str | None = None) -> Judgment:
    """The record of one judge's words on one answer."""
    record = answer.record
    return Judgment(
        request=record.key,
        method=record.method,
        prompt_id=record.prompt_id,
        repeat=record.repeat,
        turn=record.turn,
        category=record.category,
        judge=spec,
        prompt=answer.prompt.name,
        prompt_sha256=answer.prompt.sha256,
        rating=rating(text),
        text=text,
        error=error,
    )


def judge_all(
    folder: Path,
    judge: Judge,
    answers: Sequence[Answer],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Rates every answer that this judge has not rated, and appends to ``judgments.jsonl`` after each.

    An answer whose prompt reads the same as one rated before takes that judgment: the judge is greedy.

    Args:
        folder: the run folder, locked by the caller.
        judge: who rates.
        answers: AR's first, so that it is AR's judgments that the others take.
        progress: called with (answers rated, answers), from the start on.

    Raises:
        UsageError: the judge refused several prompts in a row.
        SpecbenchError: the judge cannot go on. What is rated is kept in any case.
    """
    mine = [j for j in read_judgments(folder) if j.judge == judge.spec and j.error is None]
    rated = {(j.request, j.prompt_sha256) for j in mine}
    by_prompt = {j.prompt_sha256: j for j in reversed(mine)}
    left = [answer for answer in answers if (answer.record.key, answer.prompt.sha256) not in rated]
    progress(len(answers) - len(left), len(answers))
    refusals = 0
    log = RequestLog(folder / JUDGMENTS)
    try:
        for number, answer in enumerate(left, len(answers) - len(left) + 1):
            known = by_prompt.get(answer.prompt.sha256)
            if known is not None:
                made = judgment(answer, judge.spec, known.text)
                made = made.model_copy(update={"same_as": known.same_as or known.request})
            else:
                try:
                    made = judgment(answer, judge.spec, judge.ask(answer.prompt))
                    refusals = 0
                    by_prompt[answer.prompt.sha256] = made
                except Unanswered as error:
                    made = judgment(answer, judge.spec, "", str(error))
                    refusals += 1
            log.append(made.model_dump(mode="json"))
            progress(number, len(answers))
            if refusals == _MOST_REFUSALS:
                raise UsageError(
                    f"the judge refused {refusals} answers in a row ({made.error}); check how it is set up"
                )
    finally:
        log.close()
