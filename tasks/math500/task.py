"""MATH-500 (Lightman et al. 2023, arXiv 2305.20050): 500 competition problems of MATH (Hendrycks et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Prompt
from specbench.evals import Verdict, chained, lm_eval_tasks, manifest, mathematics, read_rows, resolve_file

NAME = "math500"

Options = mathematics.Options


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

    def __init__(self, options: mathematics.Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds math500.jsonl; None searches the usual places."""
        self.options = options
        self.versions  # noqa: B018  raises if a package is not installed
        lm_eval_tasks.check(NAME, mathematics.STYLES, options)
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._path = resolve_file(file, data_dir)
        self._problems = [row for _, row in read_rows(self._path, Problem)]

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order, each with its subject as category."""
        self.options = lm_eval_tasks.settle(mathematics.STYLES, self.options, chat)
        assert self.options.shots is not None
        prompts = mathematics.prompts(NAME, mathematics.STYLES[self.options.style], self.options.shots, self._path)
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
