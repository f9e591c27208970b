"""Runs of MT-Bench whose answers are written by hand, and judges that say what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sweep_workers
import toys

from specbench.evals.judge.judge import Answer, answers
from specbench.evals.judge.prompts import JudgePrompt, JudgePrompts
from specbench.evals.task import Question
from specbench.results.folder import RunFolder
from specbench.results.judgments import JudgeSpec
from specbench.results.schema import RequestRecord, RunConfig, TaskSpec

FILES = ("mt_bench_question.jsonl", "mt_bench_reference_gpt4.jsonl", "mt_bench_judge_prompts.jsonl")

CATEGORIES = {"81": "writing", "111": "math"}

Texts = Mapping[str, Mapping[str, Sequence[str]]]  # method -> prompt id -> answer of each turn


def record(method: str, prompt: str, turn: int, text: str, repeat: int = 0) -> RequestRecord:
    """An answer, its times of no interest."""
    made = sweep_workers.record(method, prompt, repeat=repeat, turn=turn, tokens=2, forwards=1, text=text)
    return made.model_copy(update={"category": CATEGORIES[prompt], "finish_reason": "stop"})


def records(texts: Texts) -> list[RequestRecord]:
    """All answers, the method named last first: nothing may hang on their order."""
    return [
        record(method, prompt, turn, text)
        for method, prompts in reversed(list(texts.items()))
        for prompt, said in prompts.items()
        for turn, text in enumerate(said, 1)
    ]


def config(texts: Texts, **task: object) -> RunConfig:
    """The configuration of a run of these answers."""
    prompts = len(next(iter(texts.values())))
    options = {"style": "chat", "history": "own", "temperatures": "zero", **task}
    spec = TaskSpec(
        name="mt-bench", version=1, options=options, prompts=prompts, requests=2 * prompts, metric="", judge=True,
        prompts_sha256="0",
    )  # fmt: skip
    return toys.config(list(texts), prompts).model_copy(update={"task": spec})


def folder(out: Path, texts: Texts) -> Path:
    """A run folder with these answers, not finished."""
    made = config(texts)
    content = {"created_utc": "2026-01-02T03:04:05+00:00", "environment": {"device": {"name": "cpu"}}}
    run = made.model_dump(mode="json") | content
    with RunFolder.create(out, "toy", made.digest(), run) as created:
        for line in records(texts):
            created.log.append(line.model_dump(mode="json"))
    return created.path


def rated(texts: Texts, questions: Mapping[str, Question], data: Path) -> list[Answer]:
    """The answers with their judge prompts."""
    return answers(records(texts), questions, JudgePrompts(data))


def gen_judgment(rows: list[dict[str, Any]], asked: Mapping[str, Question], data: Path, score: float) -> list[Any]:
    """What FastChat's gen_judgment.py makes of an answer file: a line for each turn, the prompt in it."""
    prompts, found = JudgePrompts(data), []
    for row in rows:
        for turn in (1, 2):
            made = prompts.render(asked[str(row["question_id"])], row["choices"][0]["turns"][:turn])
            found.append(
                {"question_id": row["question_id"], "model": row["model_id"], "judge": ["gpt-4", made.name],
                 "user_prompt": made.user, "judgment": f"Rating: [[{score}]]", "score": score, "turn": turn,
                 "tstamp": 1.5}
            )  # fmt: skip
    return found


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


class ToyJudge:
    """Says what ``says`` makes of a prompt, and keeps what it was asked."""

    def __init__(self, says: Callable[[JudgePrompt], str], name: str = "toy") -> None:
        self.says, self.asked = says, list[JudgePrompt]()
        self.spec = JudgeSpec(id=name, kind="local", max_tokens=8)

    def ask(self, prompt: JudgePrompt) -> str:
        self.asked.append(prompt)
        return self.says(prompt)
