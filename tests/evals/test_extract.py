from __future__ import annotations

import time

import pytest

from specbench.evals.extract import last_box
from specbench.tasks.humaneval import extract as humaneval


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("so $\\boxed{18}$.", "18"), ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{16}, no: \\boxed{ 18 }", "18"),
        ("\\boxed{\\boxed{5}}", "5"), ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{(-\\infty, 2\\}", None),  # the brace that is printed closes nothing
        ("\\boxed{[0, 1\\}}", "[0, 1\\}"), ("\\fbox{3}", None), ("\\fboxed{3}", "3"), ("\\boxed {3}", "3"),
        ("$\\boxed 3$.", "3"), ("\\boxed 12.", "12"),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}", "1"), ("\\boxed{\\frac{1}{2}", None),  # cut off
        ("{ \\boxed{1} \\boxed{2", "1"), ("} \\boxed{1}", "1"), ("\\boxed{", None), ("\\boxed", None),
        ("\\boxed{}", ""), ("18", None), ("", None),
    ],
)  # fmt: skip
def test_the_last_closed_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


def test_degenerate_text_is_read_quickly() -> None:
    for text in ("\\boxed{" * 10**5, "{" * 10**6, "\\boxed " * 10**5, "\\boxed{" + "{}" * 10**5):
        start = time.process_time()
        last_box(text)
        assert time.process_time() - start < 2


def test_a_body_goes_on_behind_the_prompt_however_it_is_indented() -> None:
    for indent in ("    ", "  ", "\t"):
        answer = f"\n{indent}x = 1\n{indent}return x"
        assert humaneval.sources("def f():\n", "f", answer) == ("def f():\n" + answer,)
