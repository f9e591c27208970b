"""What a judge is asked: FastChat's four single-answer prompts, filled in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError
from specbench.evals.data import manifest, read_rows, resolve
from specbench.evals.judge.injection import harmless, without
from specbench.evals.task import Question


class Template(BaseModel):
    """A row of FastChat's judge_prompts.jsonl, as far as it is used."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    system_prompt: str
    prompt_template: str


@dataclass(frozen=True)
class JudgePrompt:
    """One answer, put before a judge.

    Attributes:
        name: FastChat's name of the prompt ("single-math-v1").
        published: what FastChat makes of the same, for those who compare with its files; "" where it is ``user``.
    """

    name: str
    system: str
    user: str
    published: str = ""

    @property
    def injected(self) -> bool:
        """Whether something in the answers was made harmless, see :mod:`specbench.evals.judge.injection`."""
        return bool(self.published)

    def free_of(self, tokens: Collection[str]) -> str:
        """The user turn for a judge whose tokenizer would take these texts for control tokens, none of them in it."""
        return without(self.user, tokens)

    @cached_property
    def sha256(self) -> str:
        """Of all that the judge reads; equal for equal answers to one question."""
        return hashlib.sha256(json.dumps([self.system, self.user]).encode()).hexdigest()


class JudgePrompts:
    """The four prompts: first turn or second, with a reference answer or without."""

    def __init__(self, data_dir: Path | None = None) -> None:
        """
        Args:
            data_dir: folder that holds mt_bench_judge_prompts.jsonl; None looks in the places of DESIGN §7.
        """
        (file,) = manifest(Path(__file__).with_name("prompts.toml"))
        path = resolve(file, data_dir)
        self._templates = {row.name: row for _, row in read_rows(path, Template)}
        for name in ("single-v1", "single-math-v1", "single-v1-multi-turn", "single-math-v1-multi-turn"):
            if name not in self._templates:
                raise UsageError(f"{path} has no prompt '{name}'; get it from {file.source}")

    def render(self, question: Question, answers: Sequence[str]) -> JudgePrompt:
        """The prompt that asks for a rating of the last of ``answers``, none of which can pass for a part of it.

        Args:
            answers: to the first turns, in order; one or two.
        """
        if len(answers) > 2:
            raise UsageError("a judge rates two turns at most; there is no prompt for a third")
        said = [answer.strip() for answer in answers]  # as FastChat keeps them
        safe = [harmless(answer) for answer in said]
        made = self._filled(question, safe)
        return made if safe == said else replace(made, published=self._filled(question, said).user)

    def _filled(self, question: Question, said: Sequence[str]) -> JudgePrompt:
        name = "single-math-v1" if question.references else "single-v1"
        fields = {f"ref_answer_{at}": text for at, text in enumerate(question.references or (), 1)}
        if len(said) == 1:
            fields |= {"question": question.turns[0], "answer": said[0]}
        else:
            name += "-multi-turn"
            fields |= {f"question_{at}": text for at, text in enumerate(question.turns, 1)}
            fields |= {f"answer_{at}": text for at, text in enumerate(said, 1)}
        template = self._templates[name]
        return JudgePrompt(name, template.system_prompt, template.prompt_template.format(**fields))
