"""MBPP (Austin et al. 2021, arXiv 2108.07732) and MBPP+ (Liu et al. 2023, arXiv 2305.01210).

Write a short Python function from a sentence and a few asserts.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specbench.common import EnvironmentRefused, Prompt, UsageError, option
from specbench.evals import (
    Checker,
    EvalPlus,
    Limits,
    Reference,
    Sandbox,
    Verdict,
    continued_code,
    fenced_code,
    manifest,
    plus_checks,
    resolve_file,
    sessions,
    whole_answer,
)
from specbench.tasks.mbpp import asking, asserts
from specbench.tasks.mbpp.rows import Asserted, PlusProblem, load_full, load_plus, load_sanitized


class Options(sessions.Options):
    """Options of the task."""

    variant: Literal["plus", "test", "sanitized"] = option(
        "plus",
        help="plus: MBPP+, 378 problems, EvalPlus's inputs (extra eval); test: the paper's 500 problems and asserts; "
        "sanitized: the 257 of them that people have checked, with their asserts",
    )
    style: Literal["auto", "chat", "completion", "jf"] = option(
        "auto",
        help="chat template, or continuation of text; jf: evalchemy's chat prompt, which Jacobi Forcing names, for "
        "variant test or sanitized; auto: chat when the model has a template",
    )


class Task:
    """MBPP in three variants. Verdict: pass@1."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds the variant's file (see README); None searches the usual places."""
        self.options = options
        self._data_dir = data_dir
        file = dict(zip(("plus", "test", "sanitized"), manifest(Path(__file__).with_name("task.toml")), strict=True))
        path = resolve_file(file[options.variant], data_dir)
        self._plus: dict[str, PlusProblem] = load_plus(path) if options.variant == "plus" else {}
        self._rows: dict[str, Asserted] = {}
        if options.variant != "plus":
            self._rows = load_full(path) if options.variant == "test" else load_sanitized(path)
        self._tested = {id: self._rows[id] for id in asking.TEST_SPLIT if id in self._rows}

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems of the variant in data order."""
        asked = self._settle(chat)
        if self.options.variant == "plus":
            self._evalplus  # noqa: B018  raises now, not after decoding, if it is not installed
            prompts = [asking.plus(problem, asked) for problem in self._plus.values()]
        else:
            prompts = [self._asserted(problem, self._rows, asked) for problem in self._tested.values()]
        return sessions.chained(prompts, self.options.chain)

    def training_prompts(self, chat: bool) -> list[Prompt]:
        """Problems 601 to 974 of the paper's training split, without those that MBPP+ tests.

        The prompts have the variant's form; for MBPP+ the statement shows the first assert.
        """
        asked = self._settle(chat)
        plus, full, _ = (resolve_file(file, self._data_dir) for file in manifest(Path(__file__).with_name("task.toml")))
        tested, rows = load_plus(plus), load_full(full)
        trained = [rows[id] for id in asking.TRAINING_SPLIT if id not in tested]
        if self.options.variant == "plus":
            return [asking.like_plus(problem, asked) for problem in trained]
        return [self._asserted(problem, rows, asked) for problem in trained]

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Run the tests of one problem on one answer, in the sandbox. ``also`` has "base" and "plus" for MBPP+."""
        if prompt_id not in self._plus and prompt_id not in self._tested:
            raise UsageError(f"mbpp has no problem '{prompt_id}' in variant={self.options.variant}; set its variant")
        if self.options.style == "auto":
            raise UsageError("mbpp answers are scored by the style they were asked in; set style=chat or completion")
        chat = self.options.style != "completion"
        if self.options.variant != "plus":
            if not text.strip():
                return Verdict(False, "empty", "the model wrote nothing")
            if self.options.style == "jf":
                found = fenced_code(text) or whole_answer(text)
            else:
                found = continued_code(text) if chat else whole_answer(text)
            verdict = self._sandbox.run(asserts.program(self._tested[prompt_id], found.code, lenient=chat))
            return replace(verdict, extracted=found.rule)
        if not text.strip():
            return Verdict(False, "empty", "the model wrote nothing", {"base": False, "plus": False})
        problem = self._plus[prompt_id]
        found = continued_code(text) if chat else whole_answer(text)
        code = found.code if chat else asking.plus(problem, chat=False).text + found.code
        code = self._evalplus.sanitise(code, problem.entry_point)
        verdict = self._checker.check(self._reference(prompt_id), (code,), lenient=False)
        return replace(verdict, extracted=f"{found.rule}, sanitised by evalplus")

    def _settle(self, chat: bool) -> bool:
        """Resolve style ``auto``; return whether problems are asked as chat."""
        if self.options.style == "auto":
            self.options = self.options.model_copy(update={"style": "chat" if chat else "completion"})
        style = self.options.style
        if style == "jf" and self.options.variant == "plus":
            raise UsageError("cannot ask MBPP+ in style=jf: its prompt shows asserts; add --task-set mbpp.variant=test")
        asked = style != "completion"
        if asked and not chat:
            raise UsageError(
                f"style={style} needs a model with a chat template; this one has none, so use style=completion"
            )
        return asked

    def _asserted(self, problem: Asserted, rows: dict[str, Asserted], chat: bool) -> Prompt:
        if self.options.style == "jf":
            return asking.as_jf(problem, rows)
        return asking.few_shot(problem, rows, chat)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the comparison and of the sanitiser, which affect verdicts on MBPP+."""
        if self.options.variant != "plus":
            return {}
        return {
            "comparison": plus_checks.VERSION,
            "evalplus": plus_checks.version() or "not installed",
        }

    @property
    def isolation(self) -> list[str]:
        """What confines the programs that ``score`` runs, one line each."""
        if self.options.variant != "plus":
            return self._sandbox.isolation
        self._evalplus  # noqa: B018  raises before a problem is scored if it is not installed
        return self._checker.isolation()

    @functools.cache  # noqa: B019  as long as the task, which is as long as the process
    def _reference(self, id: str) -> Reference:
        problem = self._plus[id]
        given = problem.plus_input if isinstance(problem.plus_input, list) else []
        base, plus, rule = self._evalplus.mbpp_inputs(id, problem.entry_point, problem.base_input, given)
        solution = problem.prompt + problem.canonical_solution
        return Reference(id, problem.entry_point, solution, base, plus, problem.atol, rule)

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        # The published answer to Mbpp/123 needs 5 s of a Zen 3 core whose other thread is busy.
        return Sandbox(Limits(cpu_s=10, wall_s=30.0))

    @functools.cached_property
    def _checker(self) -> Checker:
        return Checker(self._sandbox)

    @functools.cached_property
    def _evalplus(self) -> EvalPlus:
        try:
            return EvalPlus("variant=plus of mbpp")
        except EnvironmentRefused as error:
            raise EnvironmentRefused(f"{error} (test and sanitized need no package)") from None
