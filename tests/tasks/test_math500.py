from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from data_files import data_folder

pytest.importorskip("lm_eval", reason="needs pip install 'specbench-llm[eval]'")
pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")

from replay import lm_eval_run

from specbench.common import options
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import lm_eval_tasks
from specbench.evals.data import read_jsonl, read_rows
from specbench.evals.task import Verdict
from specbench.tasks.math500 import task
from specbench.tasks.math500.task import Options, Task

FILE = "math500.jsonl"


@pytest.fixture(scope="module")
def data() -> Path:
    return data_folder(FILE)


@pytest.fixture(scope="module")
def rows(data: Path) -> list[dict[str, Any]]:
    return read_jsonl(data / FILE)


@pytest.fixture(scope="module")
def chat(data: Path) -> Task:
    return Task(Options(style="chat"), data)


@pytest.fixture(scope="module")
def completion(data: Path) -> Task:
    return Task(Options(style="completion"), data)


def styled(style: str, data: Path) -> Task:
    return Task(options.parse(Options, {"style": style}, "math500"), data)


def verdicts(made: Task, answer: Callable[[int], str], count: int) -> list[Verdict]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda n: made.score(f"math500/{n}", answer(n)), range(count)))


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_auto_follows_the_model_and_says_what_it_chose(data: Path) -> None:
    made = Task(Options(), data)
    assert {(p.chat, p.history, p.stops) for p in made.prompts(chat=True)} == {(True, (), ())}
    assert made.options == Options(style="chat", shots=0)
    made = Task(Options(), data)
    assert {(p.chat, p.history, p.stops) for p in made.prompts(chat=False)} == {(False, (), ("Problem:",))}
    assert made.options == Options(style="completion", shots=4)


def test_every_problem_is_asked_once_under_its_document_id(data: Path, rows: list[dict[str, Any]]) -> None:
    for style in task.STYLES:
        prompts = styled(style, data).prompts(chat=True)
        assert [p.id for p in prompts] == [f"math500/{n}" for n in range(500)]
        assert [p.category for p in prompts] == [row["subject"] for row in rows]
        assert all(row["problem"] in p.text for p, row in zip(prompts, rows, strict=True))


def test_a_chat_asks_for_a_box(chat: Task, rows: list[dict[str, Any]]) -> None:
    asked = "{}\n\nReason step by step, and put your final answer within \\boxed{{}}."
    assert [p.text for p in chat.prompts(chat=True)] == [asked.format(row["problem"]) for row in rows]


def test_jacobi_forcing_asks_the_bare_problem(data: Path, rows: list[dict[str, Any]]) -> None:
    prompts = Task(Options(style="jf"), data).prompts(chat=True)
    assert [p.text for p in prompts] == [row["problem"] for row in rows]
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert {p.history for p in prompts} == {(("system", system),)}


def test_completions_are_lm_evals_own_contexts(data: Path, tmp_path: Path, completion: Task) -> None:
    model, _ = lm_eval_run("minerva_math/minerva_math500.yaml", {"test": data / FILE}, tmp_path, lambda n: "", limit=20)
    prompts = completion.prompts(chat=False)[:20]
    assert {n: p.text for n, p in enumerate(prompts)} == {n: text for n, (text, _) in model.requests.items()}
    assert {p.stops for p in prompts} == {tuple(arguments["until"]) for _, arguments in model.requests.values()}
    assert prompts[0].text.count("Problem:") == 5


def test_shots_of_a_chat_are_minervas_as_turns(data: Path) -> None:
    made = Task(Options(shots=2), data)
    (prompt, *_) = made.prompts(chat=True)
    assert [role for role, _ in prompt.history] == ["user", "assistant"] * 2
    assert prompt.history[0][1].startswith("Find the domain of the expression")
    assert "\\boxed{24}" in prompt.history[3][1]


def test_no_example_is_among_the_problems(rows: list[dict[str, Any]], tmp_path: Path, data: Path) -> None:
    from lm_eval.tasks.minerva_math.utils import list_fewshot_samples

    lm_eval_tasks.disjoint(list_fewshot_samples(), rows, "problem")
    planted = {**rows[0], "problem": list_fewshot_samples()[3]["problem"]}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, planted)))
    style = task.STYLES["completion"]
    with pytest.raises(UsageError, match="also a question of the test"):
        lm_eval_tasks.LmTask(style, {"test": tmp_path / "x.jsonl"}).prompts("math500", style, 4, "problem")


@pytest.mark.parametrize("style", ["chat", "jf"])
def test_chat_needs_a_template(data: Path, style: str) -> None:
    with pytest.raises(UsageError, match="style=completion"):
        styled(style, data).prompts(chat=False)


@pytest.mark.parametrize(("style", "shots", "said"), [("jf", 1, "leave shots out"), ("completion", 5, "at most 4")])
def test_more_shots_than_there_are_is_an_error(data: Path, style: str, shots: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Task(options.parse(Options, {"style": style, "shots": str(shots)}, "math500"), data)


# -- verdicts ----------------------------------------------------------------------------------------------------------


def announced(row: dict[str, Any]) -> str:
    return f"{row['solution']}\nFinal Answer: The final answer is ${row['answer']}$. I hope it is correct."


@pytest.mark.parametrize("limit", [30, pytest.param(None, marks=pytest.mark.slow)])
def test_verdicts_are_lm_evals(
    data: Path, rows: list[dict[str, Any]], tmp_path: Path, completion: Task, limit: int | None
) -> None:
    """On every document's own solution, on the same with another answer, and on the same cut off."""
    count = limit or 500

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
            "minerva_math/minerva_math500.yaml", {"test": data / FILE}, tmp_path, answer, limit, num_fewshot=0
        )
        (theirs,) = filters.values()
        assert len(theirs) == count
        ours = verdicts(completion, answer, count)
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
            assert len(apart) < count / 10
        else:
            assert (passed, apart) == (set(range(count)), set())


def test_five_hundred_answers_are_scored_in_a_minute(chat: Task, rows: list[dict[str, Any]]) -> None:
    """A tenth of them here: the limits of a job are no speed."""
    verdicts(chat, lambda n: "\\boxed{1}", 2)
    start = time.monotonic()
    assert all(verdict.passed for verdict in verdicts(chat, lambda n: rows[n]["solution"], 50))
    assert time.monotonic() - start < 30  # 2 s on two idle cores


# Problem, answer, whether a careful human calls it right, and whether our verdict does where that is another.
HAND_WRITTEN = [
    # fractions and decimals: 14/3
    (2, "so it is $\\boxed{\\frac{14}{3}}$.", True, None),
    (2, "\\boxed{14/3}", True, None),
    (2, "\\boxed{\\dfrac{14}3}", True, None),
    (2, "\\boxed{4\\frac{2}{3}}", True, None),
    (2, "\\boxed{\\frac{28}{6}}", True, None),
    (2, "\\boxed{4.67}", False, None),  # rounded
    (2, "\\boxed{\\frac{3}{14}}", False, None),
    (2, "\\boxed{f(-2)+f(-1)+f(0) = \\frac{14}{3}}", True, None),
    # which box, and what is beside it: 14/3
    (2, "\\boxed{\\boxed{\\frac{14}{3}}}", True, None),
    (2, "First \\boxed{2}, then \\boxed{\\frac{14}{3}}", True, None),
    (2, "\\boxed{\\frac{14}{3}}, and not \\boxed{5}", False, None),  # the last box is the answer
    (2, "$\\boxed{\\frac{14}{3}}$. There are 3 terms, and $2+2=4$.", True, None),
    (2, "\\boxed{\\frac{14}{3}\\text{ units}}", True, None),
    (2, "The final answer is $\\frac{14}{3}$. I hope it is correct.", True, None),
    (2, "The answer is 14/3", True, None),
    (2, "The answer is 14/3.", True, False),  # math-verify reads "3." as a float, and 14/3.0 is not 14/3 to it
    (2, "we add $2+\\frac{5}{3}+1=\\frac{14}{3}$", False, None),  # cut off before it announced anything
    (2, "we add $2+\\frac{5}{3}+1=\\boxed{\\frac{14}{3", False, None),  # cut off within the box
    (2, "\\boxed{}", False, None),
    # whole numbers (9)
    (3, "\\boxed{9.0}", True, None),
    (3, "\\boxed{x = 9}", True, None),
    (3, "$\\boxed 9$", True, None),
    (3, "\\boxed{9 \\text{ divisors}}", True, None),
    (3, "\\boxed{3^2}", True, None),
    (3, "\\boxed{nine}", True, False),  # math-verify reads no words
    (3, "\\boxed{9 \\text{ or } 10}", False, None),
    (3, "\\boxed{9 \\text{ or 10}}", False, True),  # math-verify takes a text behind a number for its unit
    (3, "\\boxed{9, 10}", False, None),
    (3, "\\boxed{-9}", False, None),
    # pairs and tuples: (3, pi/2), (6,31,-1)
    (0, "\\boxed{(3, \\pi/2)}", True, None),
    (0, "\\boxed{\\left(3,\\frac{\\pi}{2}\\right)}", True, None),
    (0, "\\boxed{(\\frac{\\pi}{2}, 3)}", False, None),
    (0, "\\boxed{(3, 90^\\circ)}", True, False),  # math-verify drops the degree sign
    (60, "\\boxed{(6, -1, 31)}", False, None),
    # sets: 1,-2 and {1±√5, -2}
    (25, "\\boxed{-2, 1}", True, None),
    (25, "\\boxed{\\{1, -2\\}}", True, None),
    (25, "\\boxed{1 \\text{ and } -2}", True, None),
    (25, "\\boxed{n = 1, n = -2}", True, None),
    (25, "\\boxed{1}", False, None),
    (25, "\\boxed{1} and \\boxed{-2}", True, False),  # ours: only the last box is looked at
    (422, "\\boxed{-2, 1+\\sqrt{5}, 1-\\sqrt{5}}", True, None),
    # intervals: (-oo, 0], (3,4], (2,12) u (12,102)
    (307, "\\boxed{(-\\infty, 0]}", True, None),
    (307, "\\boxed{(-\\infty, 0)}", False, None),
    (
        307,
        "\\boxed{y \\le 0}",
        True,
        False,
    ),  # math-verify compares an interval with a relation only the other way round
    (103, "\\boxed{3 < c \\le 4}", True, False),  # the same
    (495, "\\boxed{(2,12)\\cup(12,102)}", True, None),
    (495, "\\boxed{(2,102)}", False, None),
    # units, currency, percent, angles
    (7, "\\boxed{90}", True, None),
    (7, "\\boxed{90^{\\circ}}", True, None),
    (7, "\\boxed{90 \\text{ degrees}}", True, None),
    (459, "\\boxed{\\$18.90}", True, None),
    (459, "$\\boxed{18.9 \\text{ dollars}}$.", True, None),
    (459, "\\boxed{\\$18.00}", False, None),
    (301, "\\boxed{5.4}", True, None),
    (257, "\\boxed{864}", True, None),
    (257, "\\boxed{864 \\text{ in}^2}", True, None),
    (3, "\\boxed{9\\%}", False, True),  # both normalisers drop the percent sign
    # thousands: 10,080 and 58,500
    (198, "\\boxed{10080}", True, None),
    (198, "\\boxed{10{,}080}", True, None),
    (198, "\\boxed{10\\,080}", True, False),  # math-verify multiplies what a thin space parts
    (198, "\\boxed{10}", False, None),
    (343, "\\boxed{58500}", True, None),
    # words and letters
    (4, "\\boxed{\\text{Evelyn}}", True, None),
    (4, "\\boxed{Evelyn}", True, None),
    (4, "\\boxed{\\text{Debra}}", False, None),
    (227, "\\boxed{C}", True, None),
    (227, "\\boxed{\\text{(B)}}", False, None),
    # algebra, complex numbers, bases, matrices
    (1, "\\boxed{-q + p}", True, None),
    (1, "\\boxed{q - p}", False, None),
    (66, "\\boxed{x(x^2+3)-6}", True, None),
    (20, "\\boxed{9i + 6}", True, None),
    (454, "\\boxed{2x + 3 = y}", True, None),
    (71, "\\boxed{2516_8}", True, None),
    (71, "\\boxed{2516}", True, None),
    (408, "\\boxed{\\begin{pmatrix} 0.2 \\\\ -3.6 \\end{pmatrix}}", True, None),
    (408, "\\boxed{\\begin{pmatrix} -3.6 \\\\ 0.2 \\end{pmatrix}}", False, None),
]


@pytest.mark.parametrize(("number", "text", "human", "verdict"), HAND_WRITTEN)
def test_hand_written_answers(chat: Task, number: int, text: str, human: bool, verdict: bool | None) -> None:
    found = chat.score(f"math500/{number}", text)
    assert found.passed == (human if verdict is None else verdict), found.detail
    assert found.reason == ("pass" if found.passed else "fail")


@pytest.mark.parametrize(
    ("style", "text", "exact"),
    [
        ("chat", "\\boxed{\\frac{14}{3}}", True),
        ("chat", "\\boxed{14/3}", True),  # the normaliser knows simple fractions
        ("chat", "\\boxed{\\frac{28}{6}}", False),
        ("completion", "\\boxed{\\frac{14}{3}}", False),  # minerva wants the sentence of its examples
        ("completion", "Final Answer: The final answer is $\\frac{14}{3}$. I hope it is correct.", True),
    ],
)
def test_exact_match_is_that_of_the_style(request: pytest.FixtureRequest, style: str, text: str, exact: bool) -> None:
    assert request.getfixturevalue(style).score("math500/2", text).also["exact_match"] == exact


def test_the_verdict_says_who_decided(chat: Task) -> None:
    assert chat.score("math500/2", "\\boxed{14/3}").detail.startswith("equal strings: '14/3'")
    assert chat.score("math500/2", "\\boxed{\\frac{28}{6}}").detail.startswith("math-verify: '\\frac{28}{6}'")
    hostile = chat.score("math500/2", "\\boxed{\x1b[31m" + "1\n" * 999 + "}").detail
    assert len(hostile) <= 200
    assert hostile.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("box", ["9^{9^{9^{9^9}}}", "10^{10^{10}}!", "(" * 5000 + "1" + ")" * 5000])
def test_an_answer_that_hangs_or_crashes_the_judge_fails_and_the_next_is_scored(chat: Task, box: str) -> None:
    start = time.monotonic()
    verdict = chat.score("math500/3", f"\\boxed{{{box}}}")
    assert time.monotonic() - start < 60
    assert (verdict.passed, verdict.reason in ("timeout", "memory")) == (False, True), verdict
    assert chat.score("math500/3", "\\boxed{9}").passed


def test_a_hung_judge_is_a_timeout(chat: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "WALL_S", 0.3)
    monkeypatch.setattr(task, "LM_EVAL_WALL_S", 0.3)
    verdict = chat.score("math500/3", "\\boxed{9^{9^{9^{9^9}}}}")
    assert (verdict.passed, verdict.reason) == (False, "timeout")
    assert verdict.also == {"exact_match": False, "lm_eval": False}


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_is_empty(chat: Task, text: str) -> None:
    verdict = chat.score("math500/0", text)
    assert (verdict.reason, verdict.also) == ("empty", {"exact_match": False, "lm_eval": False})


@pytest.mark.parametrize("prompt_id", ["math500/500", "gsm8k/0", "math500/"])
def test_an_unknown_problem_is_an_error(chat: Task, prompt_id: str) -> None:
    with pytest.raises(UsageError, match=prompt_id):
        chat.score(prompt_id, "\\boxed{9}")


def test_the_style_must_be_known_to_score(data: Path) -> None:
    with pytest.raises(UsageError, match="style"):
        Task(Options(), data).score("math500/0", "\\boxed{9}")


def test_verdicts_name_the_versions_that_decided(chat: Task) -> None:
    import lm_eval

    assert chat.versions["lm-eval"] == lm_eval.__version__
    assert set(chat.versions) == {"lm-eval", "math-verify", "latex2sympy2_extended", "sympy"}


# -- data and installation ---------------------------------------------------------------------------------------------

ROW = {"problem": "?", "solution": "$\\boxed{2}$", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "a"}


@pytest.mark.parametrize(
    ("field", "bad"),
    [*((field, bad) for field in ROW for bad in (None, 3.5, "missing")), ("solution", "2"), ("answer", "")],
)
def test_a_bad_row_is_named(tmp_path: Path, field: str, bad: Any) -> None:
    row = {name: value for name, value in ROW.items() if (name, bad) != (field, "missing")}
    if bad != "missing":
        row[field] = bad
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    with pytest.raises(UsageError, match=f"line 2 is damaged .field '{field}'") as error:
        read_rows(path, task.Problem)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_another_data_file_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file math500\.jsonl"):
        Task(Options(), tmp_path)
    (tmp_path / FILE).write_text(json.dumps(ROW))
    with pytest.raises(UsageError, match="expected 35dc41080a368085"):
        Task(Options(), tmp_path)


@pytest.mark.parametrize("package", ["lm-eval", "math-verify", "sympy"])
def test_without_the_extra_it_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    import importlib.metadata

    real = importlib.metadata.version

    def without(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    with pytest.raises(EnvironmentRefused) as error:
        Task(Options(), data)
    assert str(error.value) == f"math500 needs {package}, which is not installed: pip install 'specbench-llm[eval]'"


def test_another_antlr_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's MATH tasks assert its version while they load."""
    import importlib.metadata

    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.13.2" if "antlr4" in name else real(name))
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.minerva_math.utils", raising=False)
    with pytest.raises(EnvironmentRefused, match=r"antlr4-python3-runtime 4\.11.*pip install 'specbench-llm\[eval\]'"):
        Task(Options(style="chat"), data).prompts(chat=True)


def test_neither_prompts_nor_verdicts_import_torch(data: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom specbench.tasks.math500.task import Options, Task\n"
        f"made = Task(Options(style='completion'), Path({str(data)!r}))\n"
        "made.prompts(False)\nassert made.score('math500/3', '\\\\boxed{9}').passed\n"
        "from specbench.tasks.math500 import judge\njudge.prepare()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
