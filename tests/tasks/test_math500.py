from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import math500 as own
from support.asserting import data_folder
from support.oracles import lm_eval_run, needs
from support.wording import wording

from specbench.common import options
from specbench.common.errors import UsageError
from specbench.evals import lm_eval_tasks, mathematics
from specbench.evals.data import read_jsonl
from specbench.evals.sandbox.sandbox import live
from specbench.evals.task import Verdict
from specbench.tasks.math500.task import Options, Task

FILE = "math500.jsonl"

pytestmark = [needs("lm_eval"), needs("math_verify")]


@pytest.fixture(scope="module")
def styled(task_data: Path) -> Callable[[str], Task]:
    """A task of this style, on data of our own."""
    return cache(lambda style: Task(options.parse_options(Options, {"style": style}, "math500"), task_data))


@pytest.fixture
def chat(styled: Callable[[str], Task]) -> Task:
    return styled("chat")


@pytest.fixture(params=["own", pytest.param("published", marks=pytest.mark.slow)])  # minutes for 500 problems
def folder(request: pytest.FixtureRequest, task_data: Path) -> Path:
    return task_data if request.param == "own" else data_folder(FILE)


def named(name: str) -> str:
    """The id of the prompt of a problem of our own."""
    return f"math500/{own.NUMBER[name]}"


def verdicts(made: Task, answer: Callable[[int], str], count: int) -> list[Verdict]:
    with ThreadPoolExecutor(2 if count > 99 else 1) as pool:  # a judge takes seconds to start
        return list(pool.map(lambda n: made.score(f"math500/{n}", answer(n)), range(count)))


QWEN = (("system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),)


@pytest.mark.parametrize(
    ("style", "text", "history"),
    [
        ("chat", "{}\n\nReason step by step, and put your final answer within \\boxed{{}}.", ()),
        ("jf", "{}", QWEN),  # the bare problem, as JacobiForcing asks
        ("completion", None, ()),
    ],
)
def test_every_problem_is_asked_once_by_its_id(styled: Any, style: str, text: str | None, history: Any) -> None:
    prompts = styled(style).prompts(chat=True)
    assert [p.id for p in prompts] == [f"math500/{n}" for n in range(len(own.ROWS))]
    assert [p.category for p in prompts] == [row["subject"] for row in own.ROWS]
    assert {p.history for p in prompts} == {history}
    for prompt, row in zip(prompts, own.ROWS, strict=True):
        assert prompt.text == text.format(row["problem"]) if text else row["problem"] in prompt.text


def test_completions_are_lm_evals_own_contexts(task_data: Path, tmp_path: Path, styled: Callable[[str], Task]) -> None:
    files = {"test": task_data / FILE}
    model, _ = lm_eval_run("minerva_math/minerva_math500.yaml", files, tmp_path, lambda n: "", limit=3)
    prompts = styled("completion").prompts(chat=False)[:3]
    assert {n: p.text for n, p in enumerate(prompts)} == {n: text for n, (text, _) in model.requests.items()}
    assert {p.stops for p in prompts} == {tuple(arguments["until"]) for _, arguments in model.requests.values()}
    assert prompts[0].text.count("Problem:") == 5


def test_shots_of_a_chat_are_minervas_as_turns(task_data: Path) -> None:
    made = Task(Options(shots=2), task_data)
    (prompt, *_) = made.prompts(chat=True)
    assert [role for role, _ in prompt.history] == ["user", "assistant"] * 2
    assert prompt.history[0][1].startswith("Find the domain of the expression")
    assert "\\boxed{24}" in prompt.history[3][1]


def test_no_example_is_among_the_problems(tmp_path: Path) -> None:
    from lm_eval.tasks.minerva_math.utils import list_fewshot_samples

    lm_eval_tasks.disjoint(list_fewshot_samples(), own.ROWS, "problem")
    planted = {**own.ROWS[0], "problem": list_fewshot_samples()[3]["problem"]}
    (tmp_path / "x.jsonl").write_text(small_data.lines([*own.ROWS, planted]))
    style = mathematics.STYLES["completion"]
    with pytest.raises(UsageError, check=wording):
        lm_eval_tasks.LmTask(style, {"test": tmp_path / "x.jsonl"}).prompts("math500", style, 4, "problem")


def announced(row: dict[str, Any]) -> str:
    return f"{row['solution']}\nFinal Answer: The final answer is ${row['answer']}$. I hope it is correct."


def test_the_verdict_says_who_decided(chat: Task) -> None:
    assert chat.score(named("fraction"), "\\boxed{10/3}").detail.startswith("equal strings: '10/3'")
    assert chat.score(named("fraction"), "\\boxed{\\frac{20}{6}}").detail.startswith("math-verify: '\\frac{20}{6}'")
    hostile = chat.score(named("fraction"), "\\boxed{\x1b[31m" + "1\n" * 999 + "}").detail
    assert len(hostile) <= 200
    assert hostile.isprintable()


def test_verdicts_are_lm_evals(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> None:
    """On every document's own solution, on the same with another answer, and on the same cut off."""
    rows = read_jsonl(folder / FILE)
    count = min(len(rows), 500 if request.node.get_closest_marker("slow") else 3)
    made = Task(Options(style="completion"), folder)

    def spoilt(n: int) -> str:
        solution = rows[n]["solution"]
        if n % 3 == 2:
            return str(solution[: solution.index("\\boxed")])
        mine = rows[n]["answer"]
        other = next(row for row in rows[n + 1 :] + rows if mine not in row["answer"] and row["answer"] not in mine)
        boxed = solution.replace(f"boxed{{{mine}}}", f"boxed{{{other['answer']}}}")
        return boxed if n % 3 else announced({"solution": boxed, "answer": other["answer"]})

    for answer in (lambda n: announced(rows[n]), lambda n: rows[n]["solution"], spoilt):
        _, filters = lm_eval_run(
            "minerva_math/minerva_math500.yaml", {"test": folder / FILE}, tmp_path, answer, count, num_fewshot=0
        )
        (theirs,) = filters.values()
        assert len(theirs) == count
        ours = verdicts(made, answer, count)
        for n, verdict in enumerate(ours):
            sample = theirs[n]
            assert verdict.also == {
                "exact_match": bool(sample["exact_match"]),
                "lm_eval": bool(sample["math_verify"]),
            }, (n, answer(n))
        passed = {n for n, verdict in enumerate(ours) if verdict.passed}
        apart = passed ^ {n for n, sample in theirs.items() if sample["math_verify"]}
        if answer is spoilt:
            # lm-eval takes the last number of a text that was cut off for its answer, and at times it is right.
            assert (passed, {n % 3 for n in apart} <= {2}) == (set(), True)
            assert len(apart) <= count / 10
        else:
            assert (passed, apart) == (set(range(count)), set())


# What a careful human calls right, and what wrong, by problem; the verdict is the same.
RIGHT = {
    "fraction": [
        "so it is $\\boxed{\\frac{10}{3}}$.", "\\boxed{10/3}", "\\boxed{\\dfrac{10}3}", "\\boxed{3\\frac{1}{3}}",
        "\\boxed{\\frac{20}{6}}", "\\boxed{1+\\frac{7}{3} = \\frac{10}{3}}", "\\boxed{\\boxed{\\frac{10}{3}}}",
        "First \\boxed{2}, then \\boxed{\\frac{10}{3}}", "$\\boxed{\\frac{10}{3}}$. There are 2 terms, and $2+2=4$.",
        "\\boxed{\\frac{10}{3}\\text{ units}}", "The final answer is $\\frac{10}{3}$. I hope it is correct.",
        "The answer is 10/3", "The answer is 10/3.",
        "Put it within \\boxed{}. The final answer is $\\frac{10}{3}$.",
    ],
    "whole": ["I use \\boxed for it. The final answer is $9$.", "Within \\boxed, so the answer is $9$.",
              "with \\boxed, so it is $9$", "with \\boxed so it is $9$.",
              "\\boxed{9.0}", "\\boxed{x = 9}", "$\\boxed 9$", "\\boxed{9 \\text{ digits}}", "\\boxed{3^2}"],
    "pair": ["\\boxed{(5, \\pi/2)}", "\\boxed{\\left(5,\\frac{\\pi}{2}\\right)}"],
    "set": ["\\boxed{-2, 1}", "\\boxed{\\{1, -2\\}}", "\\boxed{1 \\text{ and } -2}", "\\boxed{n = 1, n = -2}"],
    "roots": ["\\boxed{-2, 1+\\sqrt{2}, 1-\\sqrt{2}}"],
    "ray": ["\\boxed{(-\\infty, 0]}"],
    "union": ["\\boxed{(2,12)\\cup(12,50)}"],
    "angle": ["\\boxed{90}", "\\boxed{90^{\\circ}}", "\\boxed{90 \\text{ degrees}}"],
    "cents": ["\\boxed{\\$18.90}", "$\\boxed{18.9 \\text{ dollars}}$."],
    "percent": ["\\boxed{5.4}"],
    "area": ["\\boxed{24}", "\\boxed{24 \\text{ in}^2}"],
    "thousands": ["\\boxed{10080}", "\\boxed{10{,}080}", "\\boxed{10\\,080}"],
    "name": ["\\boxed{\\text{Beth}}", "\\boxed{Beth}"],
    "letter": ["\\boxed{B}"],
    "difference": ["\\boxed{-q + p}"],
    "polynomial": ["\\boxed{x(x^2+2)-5}"],
    "complex": ["\\boxed{5i + 5}"],
    "line": ["\\boxed{2x + 3 = y}"],
    "base": ["\\boxed{123_8}", "\\boxed{123}"],
    "vector": ["\\boxed{\\begin{pmatrix} 0.2 \\\\ -3.6 \\end{pmatrix}}"],
}  # fmt: skip
WRONG = {
    "fraction": [
        "\\boxed{3.33}", "\\boxed{\\frac{3}{10}}", "\\boxed{\\frac{10}{3}}, and not \\boxed{5}",
        "we add $1+\\frac{7}{3}=\\frac{10}{3}$", "we add $1+\\frac{7}{3}=\\boxed{\\frac{10}{3", "\\boxed{}",
    ],
    "whole": ["\\boxed{9 \\text{ or } 10}", "\\boxed{9, 10}", "\\boxed{-9}"],
    "pair": ["\\boxed{(\\frac{\\pi}{2}, 5)}"],
    "triple": ["\\boxed{(4, -1, 3)}"],
    "set": ["\\boxed{1}"],
    "ray": ["\\boxed{(-\\infty, 0)}"],
    "union": ["\\boxed{(2,50)}"],
    "cents": ["\\boxed{\\$18.00}"],
    "thousands": ["\\boxed{10}"],
    "name": ["\\boxed{\\text{Dora}}"],
    "letter": ["\\boxed{\\text{(C)}}"],
    "difference": ["\\boxed{q - p}"],
    "vector": ["\\boxed{\\begin{pmatrix} -3.6 \\\\ 0.2 \\end{pmatrix}}"],
}  # fmt: skip
# Where our verdict is not the human's: problem, answer, what the human says.
MISJUDGED = [
    ("whole", "\\boxed{nine}", True),  # math-verify reads no words
    ("whole", "\\boxed{9 \\text{ or 10}}", False),  # math-verify takes a text after a number for its unit
    ("whole", "\\boxed{9\\%}", False),  # both normalisers drop the percent sign
    ("pair", "\\boxed{(5, 90^\\circ)}", True),  # math-verify drops the degree sign
    ("set", "\\boxed{1} and \\boxed{-2}", True),  # ours: only the last box is looked at
    ("ray", "\\boxed{y \\le 0}", True),  # math-verify compares an interval with a relation only the other way
    ("half-open", "\\boxed{2 < c \\le 7}", True),  # the same
]


ANSWERS = [
    *((name, text, True) for name, texts in RIGHT.items() for text in texts),
    *((name, text, False) for name, texts in WRONG.items() for text in texts),
    *((name, text, not human) for name, text, human in MISJUDGED),
]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict without lm-eval's own two metrics, which cost as much again."""
    ask = mathematics.ask
    monkeypatch.setattr(mathematics, "ask", lambda job, s: {} if "solution" in job else ask(job, s))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "text", "passed"), ANSWERS)
def test_hand_written_answers(chat: Task, name: str, text: str, passed: bool) -> None:
    found = chat.score(named(name), text)
    assert (found.passed, found.reason) == (passed, "pass" if passed else "fail"), found.detail


@pytest.mark.parametrize(
    ("style", "text", "exact"),
    [
        ("chat", "\\boxed{\\frac{10}{3}}", True),
        ("chat", "\\boxed{10/3}", True),  # the normaliser knows simple fractions
        ("chat", "\\boxed{\\frac{20}{6}}", False),
        ("completion", "\\boxed{\\frac{10}{3}}", False),  # minerva wants the sentence of its examples
        ("completion", "Final Answer: The final answer is $\\frac{10}{3}$. I hope it is correct.", True),
    ],
)
def test_exact_match_is_that_of_the_style(styled: Callable[[str], Task], style: str, text: str, exact: bool) -> None:
    assert styled(style).score(named("fraction"), text).also["exact_match"] == exact


@pytest.mark.slow
@pytest.mark.parametrize("box", ["9^{9^{9^{9^9}}}", "10^{10^{10}}!", "(" * 5000 + "1" + ")" * 5000])
def test_an_answer_that_hangs_or_crashes_the_judge_fails_and_the_next_is_scored(chat: Task, box: str) -> None:
    start = time.monotonic()
    verdict = chat.score(named("whole"), f"\\boxed{{{box}}}")
    assert time.monotonic() - start < 60
    assert (verdict.passed, verdict.reason in ("timeout", "memory")) == (False, True), verdict
    assert verdict.also == {"exact_match": False, "lm_eval": False}
    assert chat.score(named("whole"), "\\boxed{9}").passed


def test_verdicts_import_no_torch(chat: Task) -> None:
    assert chat.score(named("whole"), "\\boxed{3^2}").passed
    judges = [process.pid for process in live if "specbench.evals.grading.math_judge" in str(process.args)]
    assert judges
    assert not [pid for pid in judges if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]


@pytest.mark.usefixtures("alone")
def test_a_hung_judge_is_a_timeout(chat: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last, since it costs the judge that all others have asked."""
    monkeypatch.setattr(mathematics, "WALL_S", 0.3)
    start = time.monotonic()
    verdict = chat.score(named("whole"), "\\boxed{9^{9^{9^{9^9}}}}")
    assert time.monotonic() - start < 20
    assert (verdict.passed, verdict.reason) == (False, "timeout")
    assert verdict.also == {"exact_match": False, "lm_eval": False}
