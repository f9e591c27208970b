"""LiveCodeBench (Jain et al. 2024, arXiv 2403.07974): the code generation scenario with the lite version of the tests.

Write a program, or complete a class, for a problem of a programming contest. The date of the contest shows which models
may have been trained on the problem.
"""

from __future__ import annotations

import datetime
import functools
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from specbench.common import Prompt, UsageError, option
from specbench.evals import Sandbox, Verdict, contest_checks, manifest, resolve_file, sessions
from specbench.tasks.livecodebench import asking
from specbench.tasks.livecodebench.rows import cases, load

RELEASES = ("v1", "v2", "v3", "v4", "v5", "v6")


class Options(sessions.Options):
    """Options of the task."""

    release: Literal["v1", "v2", "v3", "v4", "v5", "v6"] = option(
        "v6", help="the problems published up to then: v1 is test.jsonl, v2 that and test2.jsonl, and so on"
    )
    since: str = option("", "from", help="first day of a contest, such as 2024-08-01; empty: from the beginning")
    until: str = option("", "to", help="last day of a contest (its midnight, as the authors count); empty: no end")
    platform: Literal["all", "leetcode", "codeforces", "atcoder"] = option("all", help="problems of one platform")
    difficulty: Literal["all", "easy", "medium", "hard"] = option("all", help="problems of one difficulty")
    tests: Literal["all", "public"] = option(
        "all", help="all: public and private tests; public: only those in the statement"
    )
    style: Literal["auto", "chat", "completion"] = option(
        "auto", help="the authors' prompt through the chat template, or as one text; auto: chat if there is a template"
    )

    @field_validator("since", "until")
    @classmethod
    def _is_a_day(cls, value: str) -> str:
        try:
            return value and datetime.date.fromisoformat(value).isoformat()
        except ValueError:
            raise ValueError("a day is written as in 2024-08-01") from None


class Task:
    """The problems of a release, a window of dates, a platform and a difficulty. Verdict: pass@1, on all tests."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds the release's files (see README); None searches the usual places."""
        self.options = options
        files = manifest(Path(__file__).with_name("task.toml"))[: 1 + RELEASES.index(options.release)]
        every = load([resolve_file(file, data_dir) for file in files])
        first, last = (datetime.datetime.fromisoformat(day) if day else None for day in (options.since, options.until))
        self._problems = {
            id: problem
            for id, problem in every.items()
            if (first is None or problem.date >= first)
            and (last is None or problem.date <= last)
            and options.platform in ("all", problem.platform)
            and options.difficulty in ("all", problem.difficulty)
        }
        if not self._problems:
            raise UsageError(
                "livecodebench has no problem of these dates, this platform and this difficulty; widen since, until, "
                "platform or difficulty"
            )

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order."""
        if self.options.style == "auto":
            self.options = self.options.model_copy(update={"style": "chat" if chat else "completion"})
        if self.options.style == "chat" and not chat:
            raise UsageError(
                "style=chat needs a model with a chat template; this one has none, so use style=completion"
            )
        prompts = [asking.ask(problem, self.options.style == "chat") for problem in self._problems.values()]
        return sessions.chained(prompts, self.options.chain)

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Run the tests of one problem on one answer in the sandbox. ``also`` has "public": passed the public tests."""
        problem = self._problems.get(prompt_id)
        if problem is None:
            raise UsageError(
                f"livecodebench has no problem '{prompt_id}' with these options; the run was made with others"
            )
        found = asking.code(text)
        if found is None:
            return Verdict(False, "empty", "the answer has no block of code", {"public": False})
        tests = cases(problem, private=self.options.tests == "all")
        return replace(contest_checks.check(self._sandbox, tests, found.code), extracted=found.rule)

    @property
    def versions(self) -> dict[str, str]:
        """Version of the comparison of outputs, which affects verdicts."""
        return {"comparison": contest_checks.VERSION}

    @property
    def isolation(self) -> list[str]:
        """What confines the programs that ``score`` runs, one line each."""
        return contest_checks.isolation(self._sandbox)

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox()
