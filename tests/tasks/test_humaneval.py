from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import humaneval as own
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import data, plus_checks
from specbench.evals.extract import IN_LANGUAGE, OPENED, UNPAIRED, WHOLE
from specbench.tasks.humaneval import extract, task
from specbench.tasks.humaneval.task import Options, Task

BASE, PLUS = data.manifest(Path(task.__file__).with_name("task.toml"))
needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")


@pytest.fixture(scope="module")
def made(task_data: Path) -> Callable[..., Task]:
    """A task of these options, on data of our own; one for all tests, since it has worker processes."""
    return cache(lambda style="auto", tests="base", **more: Task(Options(style=style, tests=tests, **more), task_data))


@pytest.fixture
def completion(made: Callable[..., Task]) -> Task:
    return made("completion")


@pytest.fixture
def chat(made: Callable[..., Task]) -> Task:
    return made("chat")


@pytest.fixture(params=["own", pytest.param("published", marks=pytest.mark.slow)])  # of 164 problems a verdict each
def folder(request: pytest.FixtureRequest, task_data: Path) -> Path | None:
    """Where the problems are; those of HumanEval are in its package."""
    return task_data if request.param == "own" else None


def answers(made: Task, text: Callable[[Any], str]) -> dict[str, str]:
    """{id: reason} of the problems whose answer ``text(problem)`` does not pass."""
    problems = list(made._problems.values())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(lambda problem: made.score(problem.task_id, text(problem)), problems))
    return {p.task_id: f"{v.reason}: {v.detail}" for p, v in zip(problems, verdicts, strict=True) if not v.passed}


def test_completion_prompts_are_the_problems_as_they_are(completion: Task) -> None:
    for chat in (False, True):
        prompts = completion.prompts(chat=chat)
        assert [(p.id, p.text) for p in prompts] == [(row["task_id"], row["prompt"]) for row in own.PROBLEMS]
        stops = ("\nclass ", "\ndef ", "\n#", "\nif", "\nprint")
        assert {(p.chat, p.prefill, p.stops) for p in prompts} == {(False, "", stops)}


def test_chat_prompts_hold_the_problem_in_a_fence(chat: Task) -> None:
    for prompt, row in zip(chat.prompts(chat=True), own.PROBLEMS, strict=True):
        assert prompt.text.endswith(f"\n\n```python\n{row['prompt'].strip()}\n```\n")
        assert (prompt.prefill, prompt.stops) == ("```python\n", ("\n```",))


@needs_evalplus
def test_the_evalplus_prompt_is_evalpluss(made: Callable[..., Task]) -> None:
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion, make_raw_chat_prompt

    class Tokenizer:
        chat_template = "{}"

        def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool) -> str:
            return "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)

    prefix = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
    response = "Below is a Python script with a self-contained function that solves the problem and passes "
    response += "corresponding tests:"
    for row, prompt in zip(own.PLUS_PROBLEMS, made("evalplus").prompts(chat=True), strict=True):
        asked = make_raw_chat_prompt(row["prompt"].strip() + "\n", prefix, response, Tokenizer())
        assert f"<user>{prompt.text}<assistant>{prompt.prefill}" == asked
    for row, prompt in zip(own.PLUS_PROBLEMS, made("evalplus-completion").prompts(chat=False), strict=True):
        assert prompt.text == row["prompt"].strip() + "\n"
        theirs = {stop for stop in [*EOS, *extra_eos_for_direct_completion("humaneval")] if stop.startswith("\n")}
        assert set(prompt.stops) == theirs  # the others are special tokens, which end an answer anyway


def test_the_jf_prompt_is_that_of_its_script(made: Callable[..., Task]) -> None:
    for style, fence in (("jf", "```"), ("jf-python", "```python")):
        prompt = made(style).prompts(chat=True)[1]
        assert prompt.text == (
            "Please continue to complete the function. You are not allowed to modify the given code and do the "
            "completion only. Please return all completed function in a codeblock. Here is the given code to do "
            f"completion:\n{fence}\n{own.ADD['prompt'].strip()}\n```"
        )
        assert (prompt.prefill, prompt.stops) == ("", ())


def test_every_canonical_solution_passes_and_doing_nothing_never_does(folder: Path | None) -> None:
    made = Task(Options(style="completion", tests="base"), folder)
    assert len(made._problems) == (164 if folder is None else len(own.PROBLEMS))
    assert answers(made, lambda problem: problem.canonical_solution) == {}
    assert len(answers(made, lambda problem: "    pass\n")) == len(made._problems)


def test_every_canonical_solution_passes_as_a_chat_answer(folder: Path | None) -> None:
    """The function alone: its imports and helper functions are those of the prompt."""

    def whole_function(problem: task.Problem) -> str:
        start = problem.prompt.index(f"def {problem.entry_point}(")
        return problem.prompt[start:] + problem.canonical_solution + "```"

    assert answers(Task(Options(style="chat", tests="base"), folder), whole_function) == {}


ABOVE, ADD, UNSPIN, ROOT = (f"HumanEval/{number}" for number in range(4))


@pytest.mark.parametrize(
    "text",
    [
        "def add(x, y):\n    return x + y",
        "```python\ndef add(x, y):\n    return x + y\n```\nThis adds.",
        "\n\n```\ndef add(x, y):\n    return x + y```",
        "def add(x, y):\n    return x + y\n```\n\nHere is another:\n```python\ndef add(x, y): return 0\n```",
        "    return x + y",
        "return x + y",
        "total = x\ntotal += y\nreturn total",
        "from __future__ import annotations\ndef add(x: Foo, y):\n    return x + y",
        "import operator\nadd = operator.add",
        "add: object = lambda x, y: x + y",
        "def add(x, y):\n    return x + y\n\nassert add(1, 1) == 3",
        "def add(x, y):\n    return x + y\n\nprint(add(int(input()), 1))",
        "def add(x, y):\n    return x + y\n\nif __name__ == '__main__':\n    while True: pass",
        "def add(x, y):\n    # nothing\n    return plus(x, y)\ndef plus(x, y):\n    return x + y",
    ],
)
def test_chat_answers_that_pass(chat: Task, text: str) -> None:
    assert chat.score(ADD, text).passed


@pytest.mark.parametrize(
    ("style", "text", "reason"),
    [
        ("chat", "def add(x, y):\n    return x - y", "fail"),
        ("chat", "def plus(x, y):\n    return x + y", "fail"),  # the prompt's stub is still there and returns None
        ("chat", "def add(x, y):\n    return x +", "SyntaxError"),
        ("chat", "I would add the two numbers.", "SyntaxError"),
        ("chat", "```", "fail"),
        ("chat", "raise ValueError\ndef add(x, y):\n    return x + y", "ValueError"),
        ("completion", "    return x - y", "fail"),
        ("completion", "return x + y", "SyntaxError"),  # held to the letter, unlike chat
        ("completion", "    return x + y\n\nassert add(1, 1) == 3", "AssertionError"),
        ("completion", "    import sys\n    sys.exit(0)", "SystemExit"),
    ],
)
def test_answers_that_fail(made: Callable[..., Task], style: str, text: str, reason: str) -> None:
    verdict = made(style).score(ADD, text)
    assert (verdict.passed, verdict.reason) == (False, reason)


def test_an_answer_may_use_the_helpers_of_the_prompt_and_so_does_the_test(chat: Task) -> None:
    assert chat.score(UNSPIN, "def unspin(s):\n    return spin(spin(s))").passed
    assert chat.score(UNSPIN, "def spin(s): return s\ndef unspin(s): return s").reason == "fail"


def test_auto_scores_the_base_tests_where_there_is_no_more(task_data: Path, tmp_path: Path) -> None:
    (tmp_path / BASE.name).write_bytes((task_data / BASE.name).read_bytes())
    with small_data.accept(tmp_path):
        made = Task(Options(style="completion"), tmp_path)
        assert made.options.tests == "base"
        verdict = made.score(ADD, "    return x + y")
        assert (verdict.passed, verdict.also, made.versions) == (True, {"base": True}, {})
        with pytest.raises(UsageError, check=wording):
            Task(Options(style="completion", tests="plus"), tmp_path)


def test_auto_does_not_go_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("went online")

    monkeypatch.setattr("urllib.request.urlopen", refused)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(data.DATA_DIR, raising=False)
    assert Task(Options()).options.tests == "base"


LEFT = "    return (-xs[1] - math.sqrt(xs[1] ** 2 - 4 * xs[0] * xs[2])) / (2 * xs[2])"
MEAN = "    return sum(abs(a - b) for a, b in zip(marks, marks[1:])) / (len(marks) - 1)"


def test_plus_is_harder_than_base(made: Callable[..., Task]) -> None:
    plus = made("completion", "plus")
    verdicts = [plus.score(ABOVE, f"    return any(x {sign} mark for x in levels)\n") for sign in (">", ">=", "<")]
    assert [(v.passed, dict(v.also)) for v in verdicts] == [
        (True, {"base": True, "plus": True}),
        (False, {"base": True, "plus": False}),
        (False, {"base": False, "plus": False}),
    ]
    assert plus.score(ABOVE, " ").also == {"base": False, "plus": False}
    assert plus.versions == {"comparison": plus_checks.VERSION}
    assert any("2048 MiB" in line for line in plus.isolation)


@pytest.mark.parametrize(
    ("id", "text", "passed"),
    [
        (ROOT, LEFT, True),  # the other root
        (ROOT, f"{LEFT}\ndef find_zero(xs, inner=find_zero): return round(inner(xs), 6)", True),
        (ROOT, f"{LEFT}\ndef find_zero(xs, inner=find_zero): return round(inner(xs), 2)", False),
        ("HumanEval/4", "    return (max(marks) - min(marks)) if len(marks) < 3 else 1.0000000001", False),
        ("HumanEval/4", f"{MEAN} + 1e-8", True),
        ("HumanEval/4", f"{MEAN} + 1e-4", False),
    ],
)
def test_tolerance_and_rule_are_the_problems(made: Callable[..., Task], id: str, text: str, passed: bool) -> None:
    assert made("completion", "plus").score(id, text).passed == passed


@needs_evalplus
@pytest.mark.parametrize(
    ("style", "text", "passed"),
    [
        ("evalplus", "def add(x, y):\n    return x + y\n", True),
        ("evalplus", "def add(x, y):\n    return x + y\nassert add(1, 1) == 3\n```\nIt adds.", True),
        ("evalplus", "    return x + y\n", False),  # EvalPlus wants a self-contained script
        ("evalplus-completion", "    return x + y\n\nx = 1 +", True),  # what was cut off is dropped
        ("evalplus-completion", "    return x - y\n", False),
    ],
)
def test_evalplus_styles_are_sanitised(made: Callable[..., Task], style: str, text: str, passed: bool) -> None:
    verdict = made(style, "plus").score(ADD, text)
    assert (verdict.passed, set(verdict.also)) == (passed, {"base", "plus"})
    assert made(style, "plus").versions["evalplus"] == plus_checks.version()


@pytest.mark.parametrize(
    ("style", "text", "rule"),
    [
        ("chat", "def add(x, y):\n    return x + y", OPENED),
        ("completion", "    return x + y", WHOLE),
        ("jf", "``` python\ndef add(x, y):\n    return x + y\n```", IN_LANGUAGE),
        ("jf", "def add(x, y):\n    return x + y\n```\nok", UNPAIRED),
        ("jf", "def add(x, y):\n    return x + y", WHOLE),
    ],
)  # fmt: skip
def test_a_verdict_names_the_rule_of_extraction(made: Callable[..., Task], style: str, text: str, rule: str) -> None:
    verdict = made(style).score(ADD, text)
    assert (verdict.passed, verdict.extracted) == (True, rule)


def test_without_the_package_own_extraction_goes_on(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plus_checks, "version", lambda: None)
    right = "def add(x, y):\n    return x + y"
    assert Task(Options(style="chat", tests="base"), task_data).score(ADD, right).passed
    made = Task(Options(style="chat", tests="base", extract="evalplus"), task_data)
    for attempt in (lambda: made.isolation, lambda: made.score(ADD, right)):
        with pytest.raises(EnvironmentRefused, check=wording):
            attempt()


def test_extraction_of_hostile_text_is_quick() -> None:
    start = time.process_time()
    for text in ("(" * 10**6, "f\n" * 10**5, "`" * 10**6, "f" + "\n" * 10**6, "    " * 10**6, "def f" * 10**5):
        extract.sources("def f():\n", "f", text)
    assert time.process_time() - start < 10
