"""Problems with one answer in a box, asked as lm-eval asks MATH and graded by math-verify.

Shared by the tasks math500, math and aime25. The answer is the content of the last box; math-verify runs in worker
processes (:mod:`specbench.evals.grading.math_judge`), because it can hang.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from specbench.common import Prompt, option
from specbench.evals import lm_eval_tasks
from specbench.evals.extract import bare_box, last_box
from specbench.evals.grading.workers import DiedError, Job, TimedOutError, Workers
from specbench.evals.lm_eval_tasks import AskingStyle
from specbench.evals.numbers import ascii_numbers
from specbench.evals.sessions import chained
from specbench.evals.task import Verdict

CONFIG = "minerva_math/minerva_math500.yaml"
WALL_S, LM_EVAL_WALL_S = 10.0, 30.0  # lm-eval's own code has four alarms of 5 s in it

JETSPEC = "Please reason step by step, and put your final answer within \\boxed{}."  # also DFlash's and DDTree's
JF_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
CHAT = "{{problem}}\n\nReason step by step, and put your final answer within \\boxed{}."

STYLES = {
    "chat": AskingStyle(CONFIG, True, 0, 4, changes={"doc_to_text": CHAT}),
    "completion": AskingStyle(CONFIG, False, 4, 4),
    "jf": AskingStyle(CONFIG, True, system=JF_SYSTEM, changes={"doc_to_text": "{{problem}}"}),
    "jetspec": AskingStyle(CONFIG, True, changes={"doc_to_text": f"{{{{problem}}}}\n{JETSPEC}"}),
}

_CONCLUSION = re.compile(r"\b(?:so|hence|thus|therefore),? (?:it|this|that) is\b(?=[^\n]{1,80}\Z)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=\d)\.(?=\s|\Z)")  # to math-verify "3." is a float, and 10/3.0 is not 10/3

_workers = Workers("specbench.evals.grading.math_judge")  # one pool for all: a process takes seconds to start


class Options(lm_eval_tasks.Options):
    """Options of a task with these prompt styles."""

    style: Literal["auto", "chat", "completion", "jf", "jetspec"] = option(
        "auto",
        help="chat: zero-shot through the chat template; completion: lm-eval's minerva_math500; jf, jetspec: "
        "the prompts of these papers; auto: chat when the model has a template, else completion",
    )
    shots: int | None = option(
        None, ge=0, help="few-shot examples, the first of Minerva's four; default: completion 4, else 0"
    )


class Problem(Protocol):
    """A problem and its right answer."""

    @property
    def problem(self) -> str:
        """The problem's text."""
        ...

    @property
    def solution(self) -> str:
        """The solution, with the answer in a box."""
        ...


def prompts(task: str, style: AskingStyle, shots: int, problems: Path | Sequence[Problem]) -> list[Prompt]:
    """The prompts of problems in their order, with ids "TASK/17".

    Args:
        shots: examples before each problem, the first of Minerva's four.
        problems: rows, or a JSON lines file.
    """
    docs = (
        problems
        if isinstance(problems, Path)
        else [{"problem": row.problem, "solution": row.solution} for row in problems]
    )
    return lm_eval_tasks.LmTask(style, {"test": docs}).prompts(task, style, shots, "problem")


@dataclass(frozen=True)
class Comparison:
    """An answer compared with the reference.

    Attributes:
        equal: whether they are the same as strings, after Hendrycks' normalisation.
        box: the content of the answer's last box; None without one.
    """

    passed: bool
    reason: str
    detail: str
    equal: bool = False
    box: str | None = None
    extracted: str = ""


def compare(reference: str, text: str) -> Comparison:
    """Whether the last box of a text contains the reference; without a box, whether the text announces it.

    Failing both, a box without braces counts ("$\\boxed 9$").
    """
    if not text.strip():
        return Comparison(False, "empty", "the model wrote nothing")
    text = ascii_numbers(text)
    box = last_box(text)
    job = {"text": _prose(text), "bare": bare_box(text)} if box is None else {"box": box}
    found = ask({"gold": reference, **job}, WALL_S)
    rule = "last box" if box is not None else found.get("rule", "")
    if "passed" not in found:
        why = found.get("detail", "math-verify gave up")
        return Comparison(False, found["error"], why, bool(found.get("equal")), box, rule)
    box_text = "no box" if box is None else f"'{_line(box)}'"
    detail = f"{found['by']}: {box_text}, reference '{_line(reference)}'"
    passed = bool(found["passed"])
    return Comparison(passed, "pass" if passed else "fail", detail, bool(found.get("equal")), box, rule)


def verdict(reference: str, solution: str, text: str, style: str) -> Verdict:
    """The verdict on an answer to a problem of MATH, with lm-eval's own two metrics in ``also``.

    Args:
        solution: the data's solution, with the answer in a box.
        style: the prompt's style; ``completion`` requires the final sentence of Minerva's examples for an exact match.
    """
    own = compare(reference, text)
    theirs = ask({"solution": solution, "text": text}, LM_EVAL_WALL_S) if own.reason != "empty" else {}
    also = {
        "exact_match": bool(theirs.get("exact_match")) if style == "completion" else own.equal,
        "lm_eval": bool(theirs.get("math_verify")),
    }
    return Verdict(own.passed, own.reason, own.detail, also, own.extracted)


def ask(job: Job, wall_s: float) -> Job:
    """Reply of a :mod:`specbench.evals.grading.math_judge` worker; ``error`` if it takes too long or dies."""
    try:
        return _workers.ask(job, wall_s)
    except TimedOutError as error:
        return {"error": "timeout", "detail": str(error)}
    except DiedError:
        return {"error": "memory", "detail": "the grader was killed, most likely because memory or CPU time ran out"}


class Task:
    """Base of a task of such problems, with ``name`` and :meth:`read`. Verdict: math-verify on the last box."""

    name: ClassVar[str]

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds the task's data; None searches the usual places."""
        self.options = options
        self.versions  # noqa: B018  raises if a package is not installed
        lm_eval_tasks.check(self.name, STYLES, options)
        self._problems = self.read(data_dir)

    def read(self, data_dir: Path | None) -> list[Any]:
        """The problems in data order, each with its right ``answer``."""
        raise NotImplementedError

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order."""
        return chained(self._asked(self._problems, chat), self.options.chain)

    def _asked(self, problems: Path | Sequence[Problem], chat: bool) -> list[Prompt]:
        self.options = lm_eval_tasks.settle(STYLES, self.options, chat)
        assert self.options.shots is not None
        return prompts(self.name, STYLES[self.options.style], self.options.shots, problems)

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Whether the last box contains the reference answer; without a box, whether the text announces it."""
        problem = self._problem(prompt_id)
        return verdict(problem.answer, problem.solution, text, lm_eval_tasks.settled(self.name, self.options))

    def _problem(self, prompt_id: str) -> Any:
        return self._problems[lm_eval_tasks.doc_id(prompt_id, self.name, len(self._problems))]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the libraries that parse and compare."""
        return lm_eval_tasks.versions(self.name, "lm-eval", "math-verify", "latex2sympy2_extended", "sympy")

    @property
    def isolation(self) -> list[str]:
        """Nothing: no model-written code is run."""
        return []


def _prose(text: str) -> str:
    """Prepare a text so that math-verify finds an announced answer: drop bold marks, set the final full stop apart."""
    return _SENTENCE_END.sub(",", _CONCLUSION.sub("the answer is", text.replace("**", " ")))


def _line(text: str) -> str:
    """At most 80 printable characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text[:300].split()))[:80]
