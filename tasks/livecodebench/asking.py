"""The authors' prompts (``lcb_runner`` at commit 28fef95), and which part of an answer is code."""

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
    """A problem in the authors' generic template; its category is its difficulty.

    Args:
        chat: the system prompt is a separate turn; otherwise it comes before the question, as in their style "OC".
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
    """The code of an answer: its last Python block, else its last block; None without a block.

    The authors take the text between the last two fence lines, which can be a sample output.
    """
    return fenced_code(answer, last=True)
