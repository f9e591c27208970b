"""The prompts, and what of an answer is code: both as the authors have them (``lcb_runner`` at commit 28fef95)."""

from __future__ import annotations

from specbench.common import Prompt
from specbench.tasks.livecodebench.rows import Problem

SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests."
)
_STARTED = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
_SCRIPT = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT."
)


def ask(problem: Problem, chat: bool) -> Prompt:
    """A problem as their generic template words it; its category is its difficulty.

    Args:
        chat: with the system prompt as a turn of its own; else before the question, as their style "OC" has it.
    """
    asked = _question(problem)
    if chat:
        return Prompt(problem.id, asked, True, history=(("system", SYSTEM),), category=problem.difficulty)
    return Prompt(problem.id, f"{SYSTEM}\n\n{asked}", False, category=problem.difficulty)


def _question(problem: Problem) -> str:
    form, code = (_STARTED, problem.starter) if problem.starter else (_SCRIPT, "# YOUR CODE HERE")
    return (
        f"### Question:\n{problem.statement}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def code(answer: str) -> str | None:
    """The code of an answer by the authors' rule: between the last two lines that have a fence; None without two."""
    lines = answer.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else None
