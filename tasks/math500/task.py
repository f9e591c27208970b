"""MATH-500 (Lightman et al. 2023, arXiv 2305.20050): 500 competition problems of MATH (Hendrycks et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Prompt
from specbench.common import options as opt
from specbench.evals import Verdict, lm_eval_tasks
from specbench.evals.chained import chained
from specbench.evals.data import manifest, read_rows, resolve
from specbench.evals.extract import last_box
from specbench.evals.lm_eval_tasks import Style
from specbench.evals.workers import DiedError, Job, TimedOutError, Workers

NAME = "math500"
CONFIG = "minerva_math/minerva_math500.yaml"
WALL_S, LM_EVAL_WALL_S = 10.0, 30.0  # lm-eval's own code has four alarms of 5 s in it

CHAT = "{{problem}}\n\nReason step by step, and put your final answer within \\boxed{}."
JF = "{{problem}}"  # JacobiForcing asks nothing beside the problem
JF_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

_workers = Workers("specbench.tasks.math500.judge")  # one pool for all: a process takes seconds to start

STYLES = {
    "chat": Style(CONFIG, True, 0, 4, changes={"doc_to_text": CHAT}),
    "completion": Style(CONFIG, False, 4, 4),
    "jf": Style(CONFIG, True, system=JF_SYSTEM, changes={"doc_to_text": JF}),
}


class Options(lm_eval_tasks.Options):
    """Options of the task."""

    style: Literal["auto", "chat", "completion", "jf"] = opt.option(
        "auto",
        help="chat: zero-shot through the chat template; completion: lm-eval's minerva_math500; jf: the bare problem, "
        "as JacobiForcing asks; auto: chat when the model has a template, else completion",
    )
    shots: int | None = opt.option(
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
    """The 500 problems. Verdict: math-verify on the last box.

    Attributes:
        options: as given; ``prompts`` fills in what was left to be decided.
    """

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """
        Args:
            data_dir: folder that holds math500.jsonl; None looks in the places of DESIGN §7.

        Raises:
            UsageError: the file is missing there, or is not the one of ``task.toml``, or has a bad row; or more
                examples are asked for than the style has.
            EnvironmentRefused: the file is nowhere on this machine, or lm-eval or math-verify is not installed.
        """
        self.options = options
        self.versions  # noqa: B018  it says what is not installed
        lm_eval_tasks.check(NAME, STYLES, options)
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._path = resolve(file, data_dir)
        self._problems = [row for _, row in read_rows(self._path, Problem)]

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order, each with its subject as category.

        Raises:
            UsageError: a style of chat for a model without a chat template.
        """
        self.options = lm_eval_tasks.settle(STYLES, self.options, chat)
        assert self.options.shots is not None
        style = STYLES[self.options.style]
        task = lm_eval_tasks.LmTask(style, {"test": self._path})
        prompts = task.prompts(NAME, style, self.options.shots, "problem")
        named = [replace(p, category=row.subject) for p, row in zip(prompts, self._problems, strict=True)]
        return chained(named, self.options.chain)

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Whether the last box holds the reference answer; without a box, whether the text announces it.

        Raises:
            UsageError: there is no such problem, or the style is still ``auto``.
            EnvironmentRefused: the worker processes do not start.
        """
        problem = self._problems[lm_eval_tasks.doc_id(prompt_id, NAME, len(self._problems))]
        style = lm_eval_tasks.settled(NAME, self.options)
        if not text.strip():
            return Verdict(False, "empty", "the model wrote nothing", {"exact_match": False, "lm_eval": False})
        box = last_box(text)
        own = self._ask({"gold": problem.answer, **({"text": text} if box is None else {"box": box})}, WALL_S)
        theirs = self._ask({"solution": problem.solution, "text": text}, LM_EVAL_WALL_S)
        also = {
            "exact_match": bool(theirs.get("exact_match") if style == "completion" else own.get("equal")),
            "lm_eval": bool(theirs.get("math_verify")),
        }
        if "passed" not in own:
            return Verdict(False, own["error"], own.get("detail", "math-verify gave up"), also)
        passed = bool(own["passed"])
        found = "no box" if box is None else f"'{_line(box)}'"
        detail = f"{own['by']}: {found}, reference '{_line(problem.answer)}'"
        return Verdict(passed, "pass" if passed else "fail", detail, also)

    @property
    def versions(self) -> dict[str, str]:
        """What parses and compares."""
        return lm_eval_tasks.versions(NAME, "lm-eval", "math-verify", "latex2sympy2_extended", "sympy")

    @property
    def isolation(self) -> list[str]:
        """Nothing: no code of a model's is run."""
        return []

    def _ask(self, job: Job, wall_s: float) -> Job:
        try:
            return _workers.ask(job, wall_s)
        except TimedOutError as error:
            return {"error": "timeout", "detail": str(error)}
        except DiedError:
            return {"error": "memory", "detail": "the judge was killed, most likely for want of memory or CPU time"}


def _line(text: str) -> str:
    """At most 80 printable characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text[:300].split()))[:80]
