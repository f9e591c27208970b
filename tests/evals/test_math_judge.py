"""The judge of mathematics, without a process around it: who decides, and what of a text without a box counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specbench.evals.extract import bare_box
from specbench.evals.grading import math_judge
from specbench.evals.grading.workers import Job


@pytest.fixture(scope="module")
def judge() -> Callable[[Job], Job]:
    return math_judge.prepare()


@pytest.mark.parametrize(
    ("gold", "box", "passed", "by", "equal"),
    [
        ("\\frac{1}{2}", "\\frac12", True, "equal strings", True),
        ("\\frac{1}{2}", "0.25", False, "math-verify", False),
        ("x+1", "1+x", True, "math-verify", False),
        ("9", "8", False, "math-verify", False),
        ("9", "9 \\text{ or } 10", False, "math-verify", True),  # equal to the normaliser, which drops units
    ],
)
def test_a_box_is_right_by_its_text_or_by_what_it_means(
    gold: str, box: str, passed: bool, by: str, equal: bool, judge: Callable[[Job], Job]
) -> None:
    assert judge({"gold": gold, "box": box}) == {"passed": passed, "by": by, "equal": equal}


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("The final answer is $17$. I hope it is correct.", True),
        ("So the final answer is $18$.", False),
        ("We multiply 3 by 4, add 5 and get 17", False),  # a number that a text ends with is no answer
    ],
)
def test_without_a_box_only_what_is_announced_counts(text: str, passed: bool, judge: Callable[[Job], Job]) -> None:
    assert judge({"gold": "17", "text": text}) == {
        "passed": passed, "by": "math-verify", "equal": False, "rule": "announced in words"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "passed", "rule"),
    [
        ("Hence $\\boxed 17$.", True, "box without braces"),
        ("$\\boxed 18$. The final answer is $17$.", True, "announced in words"),
    ],
)
def test_a_box_without_braces_is_read_last(text: str, passed: bool, rule: str, judge: Callable[[Job], Job]) -> None:
    found = judge({"gold": "17", "text": text, "bare": bare_box(text)})
    assert (found["passed"], found["rule"]) == (passed, rule)


def test_a_job_with_a_solution_has_lm_evals_two_metrics(judge: Callable[[Job], Job]) -> None:
    right = judge(
        {"solution": "Hence $\\boxed{6}$.", "text": "Final Answer: The final answer is $6$. I hope it is correct."}
    )
    wrong = judge(
        {"solution": "Hence $\\boxed{6}$.", "text": "Final Answer: The final answer is $7$. I hope it is correct."}
    )
    assert bool(right["exact_match"])
    assert not bool(wrong["exact_match"])
    assert right.keys() == wrong.keys()
