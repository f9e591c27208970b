"""Runs of MT-Bench whose answers are written by hand, and judges that say what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import toys

from specbench.evals.judge.judge import Answer, answers
from specbench.evals.judge.prompts import JudgePrompt, JudgePrompts
from specbench.evals.task import Question
from specbench.results.folder import RunFolder
from specbench.results.judgments import JudgeSpec
from specbench.results.schema import RequestRecord, RunConfig, TaskSpec, request_key

FILES = ("mt_bench_question.jsonl", "mt_bench_reference_gpt4.jsonl", "mt_bench_judge_prompts.jsonl")

CATEGORIES = {"81": "writing", "111": "math"}

Texts = Mapping[str, Mapping[str, Sequence[str]]]  # method -> prompt id -> answer of each turn


def record(method: str, prompt: str, turn: int, text: str, repeat: int = 0) -> RequestRecord:
    """An answer, its times of no interest."""
    return RequestRecord(
        request_id=request_key(method, prompt, repeat, turn), method=method, prompt_id=prompt, repeat=repeat, turn=turn,
        category=CATEGORIES[prompt], prompt_tokens=5, output_ids=[1, 2], text=text, finish_reason="stop",
        output_tokens=2, overshoot_tokens=0, stop_tail_tokens=0, accepted_lengths=[1], tree_rows=1,
        target_forwards=1, draft_forwards=0, start_s=0.0, segment=0, ttft_s=1.0, decode_s=1.0, latency_s=2.0,
        prefill_share_s=1.0, decode_share_s=1.0,
    )  # fmt: skip


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


class ToyJudge:
    """Says what ``says`` makes of a prompt, and keeps what it was asked."""

    def __init__(self, says: Callable[[JudgePrompt], str], name: str = "toy") -> None:
        self.says, self.asked = says, list[JudgePrompt]()
        self.spec = JudgeSpec(id=name, kind="local", max_tokens=8)

    def ask(self, prompt: JudgePrompt) -> str:
        self.asked.append(prompt)
        return self.says(prompt)
