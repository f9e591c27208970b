"""MATH-500 (Lightman et al. 2023, arXiv 2305.20050): 500 competition problems of MATH (Hendrycks et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Prompt, option
from specbench.evals import AskingStyle, Verdict, chained, lm_eval_tasks, manifest, mathematics, read_rows, resolve_file

NAME = "math500"

JF = "{{problem}}"  # JacobiForcing's prompt is the problem alone
JF_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

STYLES = {
    **mathematics.STYLES,
    "jf": AskingStyle(mathematics.CONFIG, True, system=JF_SYSTEM, changes={"doc_to_text": JF}),
}


class Options(lm_eval_tasks.Options):
    """Options of the task."""

    style: Literal["auto", "chat", "completion", "jf"] = option(
        "auto",
        help="chat: zero-shot through the chat template; completion: lm-eval's minerva_math500; jf: the bare problem, "
        "as JacobiForcing asks; auto: chat when the model has a template, else completion",
    )
    shots: int | None = option(
        None, ge=0, help="few-shot examples, the first of Minerva's four; default: completion 4, else 0"
    )


class Problem(BaseModel):
    """A row of math500.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    problem: str
    solution: str = Field(pattern=r"\\f?boxed")
    answer: str = Field(min_length=1)
    subject: str
    level: int
    unique_id: str


class Task:
    """The 500 problems. Verdict: math-verify on the last box."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds math500.jsonl; None searches the usual places."""
        self.options = options
        self.versions  # noqa: B018  raises if a package is not installed
        lm_eval_tasks.check(NAME, STYLES, options)
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._path = resolve_file(file, data_dir)
        self._problems = [row for _, row in read_rows(self._path, Problem)]

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order, each with its subject as category."""
        self.options = lm_eval_tasks.settle(STYLES, self.options, chat)
        assert self.options.shots is not None
        prompts = mathematics.prompts(NAME, STYLES[self.options.style], self.options.shots, self._path)
        named = [replace(p, category=row.subject) for p, row in zip(prompts, self._problems, strict=True)]
        return chained(named, self.options.chain)

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Whether the last box contains the reference answer; without a box, whether the text announces it."""
        problem = self._problems[lm_eval_tasks.doc_id(prompt_id, NAME, len(self._problems))]
        style = lm_eval_tasks.settled(NAME, self.options)
        return mathematics.verdict(problem.answer, problem.solution, text, style)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the libraries that parse and compare."""
        return mathematics.versions(NAME)

    @property
    def isolation(self) -> list[str]:
        """Nothing: no model-written code is run."""
        return []
