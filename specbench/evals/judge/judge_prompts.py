"""The judge's prompts: FastChat's four single-answer prompts, filled in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError
from specbench.evals.data import manifest, read_rows, resolve_file
from specbench.evals.judge.injection import harmless, without
from specbench.evals.task import Question


class Template(BaseModel):
    """The fields of FastChat's judge_prompts.jsonl that are used."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    system_prompt: str
    prompt_template: str


@dataclass(frozen=True)
class JudgePrompt:
    """A judge's prompt about one answer.

    Attributes:
        name: FastChat's name of the prompt ("single-math-v1").
        injected: something in the answers was made harmless, see :mod:`specbench.evals.judge.injection`.
    """

    name: str
    system: str
    user: str
    injected: bool = False

    def free_of(self, tokens: Collection[str]) -> str:
        """The user turn, without these texts, which the judge's tokenizer would take for control tokens."""
        return without(self.user, tokens)

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that the judge reads; equal for equal answers to one question."""
        return hashlib.sha256(json.dumps([self.system, self.user]).encode()).hexdigest()


class JudgePrompts:
    """The four prompts: first turn or second, with a reference answer or without."""

    def __init__(self, data_dir: Path | None = None) -> None:
        """
        Args:
            data_dir: folder that holds mt_bench_judge_prompts.jsonl; None searches the usual
                places (see :mod:`specbench.evals.data`).
        """
        (file,) = manifest(Path(__file__).with_name("prompts.toml"))
        path = resolve_file(file, data_dir)
        self._templates = {row.name: row for _, row in read_rows(path, Template)}
        for name in ("single-v1", "single-math-v1", "single-v1-multi-turn", "single-math-v1-multi-turn"):
            if name not in self._templates:
                raise UsageError(f"{path} has no prompt '{name}'; get it from {file.source}")

    def render(self, question: Question, answers: Sequence[str]) -> JudgePrompt:
        """The prompt that asks for a rating of the last of ``answers``; answers cannot imitate parts of the prompt.

        Args:
            answers: to the first turns, in order; one or two of them.
        """
        if len(answers) > 2:
            raise UsageError("a judge rates two turns at most; there is no prompt for a third")
        stripped = [answer.strip() for answer in answers]  # as FastChat keeps them
        safe = [harmless(answer) for answer in stripped]
        name = "single-math-v1" if question.references else "single-v1"
        fields = {f"ref_answer_{at}": text for at, text in enumerate(question.references or (), 1)}
        if len(safe) == 1:
            fields |= {"question": question.turns[0], "answer": safe[0]}
        else:
            name += "-multi-turn"
            fields |= {f"question_{at}": text for at, text in enumerate(question.turns, 1)}
            fields |= {f"answer_{at}": text for at, text in enumerate(safe, 1)}
        template = self._templates[name]
        user = template.prompt_template.format(**fields)
        return JudgePrompt(name, template.system_prompt, user, injected=safe != stripped)
