"""The prompts, as the authors have them (``lcb_runner`` at commit 28fef95), and what of an answer is code."""

from __future__ import annotations

from specbench.common import Prompt
from specbench.evals import Extracted, fenced_code
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


def code(answer: str) -> Extracted | None:
    """The code of an answer: its last block in Python, else its last block; None without one, as with the authors.

    They take what stands between the last two lines with a fence, which an example of the output after the program
    would be.
    """
    return fenced_code(answer, last=True)
