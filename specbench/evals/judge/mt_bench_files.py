"""FastChat's files: answers out, judgments in."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import EnvironmentRefused, UsageError
from specbench.common.files import make_folder
from specbench.common.reading import whole
from specbench.evals.data import read_rows
from specbench.evals.judge.judge import HIGHEST, LOWEST, Answer, judgment
from specbench.evals.task import Question
from specbench.results import RequestRecord, RunConfig
from specbench.results.judgments import JUDGMENTS, JudgeSpec, Judgment, read_judgments
from specbench.results.request_log import RequestLog


def model_id(config: RunConfig, label: str) -> str:
    """How FastChat's files name a row of a run; also the name of its file."""
    return re.sub(r"[^A-Za-z0-9._+=@-]+", "-", f"{config.model.name}-{label}")


def export(
    folder: Path,
    config: RunConfig,
    records: Sequence[RequestRecord],
    asked: Mapping[str, Question],
    created: datetime,
) -> list[Path]:
    """Writes ``model_answer/MODEL.jsonl`` for every method, as FastChat's gen_model_answer.py does.

    A repeat is a choice. Questions with an unanswered turn are left out.

    Args:
        created: when the run was made, the ``tstamp`` of every line.

    Raises:
        UsageError: turn two followed AR's answers, which FastChat's format cannot say.
        EnvironmentRefused: the folder cannot be written.
    """
    if any(question.forced and len(question.turns) > 1 for question in asked.values()):
        raise UsageError(
            "turn two followed AR's answers (history=ar): as a conversation of the method's own it never took place; "
            "export a run with history=own"
        )
    texts: dict[tuple[str, str, int], dict[int, str]] = defaultdict(dict)
    for record in records:
        texts[record.method, record.prompt_id, record.repeat][record.turn] = record.text.strip()
    written = []
    for spec in config.methods:
        lines = []
        for prompt_id, question in asked.items():
            turns = range(1, 1 + len(question.turns))
            found = [texts.get((spec.label, prompt_id, repeat), {}) for repeat in range(config.repeats)]
            choices = [
                {"index": index, "turns": [said[turn] for turn in turns]}
                for index, said in enumerate(found)
                if all(turn in said for turn in turns)
            ]
            if choices:
                lines.append(_line(prompt_id, model_id(config, spec.label), choices, created))
        if not lines:
            continue
        path = folder / "model_answer" / f"{model_id(config, spec.label)}.jsonl"
        try:
            make_folder(path.parent)
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise EnvironmentRefused(f"cannot write {path} ({error.strerror}); choose another folder") from None
        written.append(path)
    return written


def _line(prompt_id: str, model: str, choices: list[dict[str, Any]], created: datetime) -> dict[str, Any]:
    # FastChat draws this id; as a hash it is the same in every export of a run.
    digest = hashlib.sha256(json.dumps([prompt_id, model, choices]).encode()).hexdigest()
    return {
        "question_id": prompt_id if (number := whole(prompt_id)) is None else number,
        "answer_id": digest[:22],
        "model_id": model,
        "choices": choices,
        "tstamp": created.timestamp(),
    }


class Line(BaseModel):
    """A line of FastChat's model_judgment/*_single.jsonl, as far as it is used; a score off the scale is none."""

    model_config = ConfigDict(frozen=True, strict=True)

    question_id: int | str
    model: str
    judge: list[str] = Field(min_length=2, max_length=2)
    user_prompt: str
    judgment: str
    score: float = Field(allow_inf_nan=False)
    turn: int = Field(ge=1)


def import_judgments(folder: Path, file: Path, config: RunConfig, answers: Sequence[Answer]) -> tuple[int, int]:
    """Takes judgments that FastChat made of exported answers.

    A judgment counts for the answers that it quotes: FastChat's file holds the whole prompt.

    Args:
        file: FastChat's *_single.jsonl.

    Returns:
        How many judgments of the run are new, and how many of its models' lines judged another text.
    """
    ours = {model_id(config, spec.label): spec.label for spec in config.methods}
    lines = [line for _, line in read_rows(file, Line) if line.model in ours]
    if not lines:
        raise UsageError(f"{file} judges no model of this run; its models are called {', '.join(ours)}")
    by_item: dict[tuple[str, str, int], list[Answer]] = defaultdict(list)
    for answer in answers:
        by_item[answer.record.method, answer.record.prompt_id, answer.record.turn].append(answer)
    there = {(j.judge.model_dump_json(), j.request, j.prompt_sha256) for j in read_judgments(folder)}
    new: list[Judgment] = []
    other = 0
    for line in lines:
        spec = JudgeSpec(id=line.judge[0], kind="import")
        candidates = by_item[ours[line.model], str(line.question_id), line.turn]
        matching = [_as_read(answer, line) for answer in candidates if line.user_prompt in _readings(answer)]
        other += not matching
        for answer in matching:
            made = judgment(answer, spec, line.judgment)
            key = (spec.model_dump_json(), made.request, made.prompt_sha256)
            if key not in there:
                there.add(key)
                scored = LOWEST <= line.score <= HIGHEST
                new.append(made.model_copy(update={"rating": line.score if scored else None}))
    if not new and other:
        raise UsageError(f"{file} judges other answers than this run's; export them and have those judged")
    log = RequestLog(folder / JUDGMENTS)
    try:
        for made in new:
            log.append(made.model_dump(mode="json"))
    finally:
        log.close()
    return len(new), other


def _readings(answer: Answer) -> set[str]:
    """What a judge may have been given of an answer: FastChat changes nothing in it."""
    return {answer.prompt.user, answer.prompt.published} - {""}


def _as_read(answer: Answer, line: Line) -> Answer:
    """An answer with the prompt that a line's judge has read, whose hash is then recorded."""
    return replace(answer, prompt=replace(answer.prompt, user=line.user_prompt))
