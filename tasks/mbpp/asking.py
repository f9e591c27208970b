"""The prompts: of MBPP+ EvalPlus's; else those of lm-eval's ``mbpp`` and ``mbpp_instruct``, or evalchemy's."""

from __future__ import annotations

from collections.abc import Mapping

from specbench.common import Prompt, Turn
from specbench.evals import plus_checks
from specbench.tasks.mbpp.rows import Asserted, PlusProblem

SHOTS = ("Mbpp/2", "Mbpp/3", "Mbpp/4")  # Austin et al. 2021, §3.2; from the split for prompts, ids 1 to 10
TEST_SPLIT = [f"Mbpp/{number}" for number in range(11, 511)]
TRAINING_SPLIT = [f"Mbpp/{number}" for number in range(601, 975)]
_PLUS_STOPS = ('\n"""', "\nassert")  # EvalPlus's utility.py, in addition to the general stops
_PREFILL = "```python\n"


def plus(problem: PlusProblem, chat: bool) -> Prompt:
    """EvalPlus's prompt: the statement of MBPP+, which shows one assert."""
    if chat:
        return plus_checks.chat(problem.id, problem.prompt)
    return plus_checks.completion(problem.id, problem.prompt, _PLUS_STOPS)


def like_plus(problem: Asserted, chat: bool) -> Prompt:
    """A problem outside MBPP+, stated in MBPP+'s form."""
    stated = f'"""\n{problem.statement}\n{problem.test_list[0]}\n"""\n'
    if chat:
        return plus_checks.chat(problem.id, stated)
    return plus_checks.completion(problem.id, stated, _PLUS_STOPS)


def few_shot(problem: Asserted, problems: Mapping[str, Asserted], chat: bool) -> Prompt:
    """The paper's prompt: three solved problems, then this one, each with all its asserts.

    Args:
        problems: source of the solved problems.
        chat: show each solved problem as a user turn and an answer.
    """
    shots = [problems[id] for id in SHOTS]
    if not chat:
        solved = [f"{_statement(shot)}[BEGIN]\n{shot.code}\n[DONE]\n\n" for shot in shots]
        return Prompt(problem.id, "".join(solved) + f"{_statement(problem)}[BEGIN]\n", False, "", ("[DONE]",))
    history: list[Turn] = []
    for shot in shots:
        history += [("user", _turn(shot)), ("assistant", f"{_PREFILL}{shot.code}\n```")]
    return Prompt(problem.id, _turn(problem), True, _PREFILL, ("\n```",), tuple(history))


def as_jf(problem: Asserted, problems: Mapping[str, Asserted]) -> Prompt:
    """evalchemy's prompt, whose settings Jacobi Forcing names: the same three solved problems, all in one user turn."""
    solved = [f"- Example {at}:\n{_listed(problems[id], solved=True)}" for at, id in enumerate(SHOTS, 1)]
    text = (
        "Please refer the given examples and generate a python function for my problem.\nExamples are listed as "
        "follows:\n" + "\n\n".join(solved) + f"\n\nHere is my problem:\n{_listed(problem)}"
    )
    return Prompt(problem.id, text, True)


def _listed(problem: Asserted, solved: bool = False) -> str:
    code = problem.code.replace("\r", "").replace("\t", "    ")
    asked = f">>> Problem:\n{problem.statement.strip()}\n>>> Test Cases:\n" + "\n".join(problem.test_list) + "\n"
    return asked + (f"\n>>> Code:\n```python\n{code}\n```" if solved else "")


def _statement(problem: Asserted) -> str:
    tests = "\n".join(problem.test_list)
    return (
        f"You are an expert Python programmer, and here is your task: {problem.statement} "
        f"Your code should pass these tests:\n\n{tests}\n"
    )


def _turn(problem: Asserted) -> str:
    tests = "\n".join(problem.test_list)
    return (
        f"You are an expert Python programmer, and here is your task:\n{problem.statement}\n"
        f"Your code should pass these tests:\n{tests}"
    )
