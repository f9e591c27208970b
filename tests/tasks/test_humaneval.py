from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specbench import data, options
from specbench.errors import UsageError
from specbench.tasks.humaneval import extract, task
from specbench.tasks.humaneval.task import Options, Task


@pytest.fixture(scope="module")
def completion() -> Task:
    return Task(Options(style="completion"))


@pytest.fixture(scope="module")
def chat() -> Task:
    return Task(Options(style="chat"))


def answers(made: Task, text: Any) -> dict[str, str]:
    """{id: reason} of the problems whose answer ``text(problem)`` does not pass."""
    problems = list(made._problems.values())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(lambda problem: made.score(problem.task_id, text(problem)), problems))
    return {p.task_id: f"{v.reason}: {v.detail}" for p, v in zip(problems, verdicts, strict=True) if not v.passed}


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_auto_follows_the_model() -> None:
    made = Task(Options())
    assert all(prompt.chat for prompt in made.prompts(chat=True))
    assert made.options.style == "chat"
    made = Task(Options())
    assert not any(prompt.chat for prompt in made.prompts(chat=False))
    assert made.options.style == "completion"


def test_chat_needs_a_template(chat: Task, completion: Task) -> None:
    with pytest.raises(UsageError, match="style=completion"):
        chat.prompts(chat=False)
    assert not completion.prompts(chat=True)[0].chat


def test_completion_prompts_are_the_published_ones(completion: Task) -> None:
    rows = data.read_jsonl(data.resolve(data.manifest(Path(task.__file__).with_name("task.toml"))[0]))
    prompts = completion.prompts(chat=False)
    assert [(p.id, p.text) for p in prompts] == [(row["task_id"], row["prompt"]) for row in rows]
    assert {(p.prefill, p.stops) for p in prompts} == {("", ("\nclass ", "\ndef ", "\n#", "\nif", "\nprint"))}


def test_chat_prompts_hold_the_problem_in_a_fence(chat: Task) -> None:
    prompts = chat.prompts(chat=True)
    assert len(prompts) == 164
    for prompt in prompts:
        fence = f"```python\n{chat._problems[prompt.id].prompt.strip()}\n```"
        assert fence in prompt.text
        assert (prompt.prefill, prompt.stops) == ("```python\n", ("\n```",))


@pytest.mark.parametrize(("chat_style", "digest"), [(False, "a621c22f0651c0e0"), (True, "094056299e3fbec7")])
def test_prompts_change_only_with_the_version(chat_style: bool, digest: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    prompts = [(p.id, p.text, p.prefill, p.stops) for p in Task(Options()).prompts(chat_style)]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16] == digest


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(UsageError, match="did you mean style"):
        options.parse(Options, {"stile": "chat"}, "humaneval")
    with pytest.raises(UsageError, match="style"):
        options.parse(Options, {"style": "chatty"}, "humaneval")


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_every_canonical_solution_passes_as_a_completion(completion: Task) -> None:
    assert answers(completion, lambda problem: problem.canonical_solution) == {}


def test_every_canonical_solution_passes_as_a_chat_answer(chat: Task) -> None:
    """The function alone: its imports and helper functions are those of the prompt."""

    def whole_function(problem: task.Problem) -> str:
        start = problem.prompt.index(f"def {problem.entry_point}(")
        return problem.prompt[start:] + problem.canonical_solution + "```"

    assert answers(chat, whole_function) == {}


def test_no_problem_is_passed_by_doing_nothing(completion: Task) -> None:
    problems = completion._problems
    assert len(answers(completion, lambda problem: "    pass\n")) == len(problems)


ADD = "HumanEval/53"  # def add(x: int, y: int)
CYCLIC = "HumanEval/38"  # def decode_cyclic(s), beside the helper encode_cyclic


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
    ("text", "reason"),
    [
        ("def add(x, y):\n    return x - y", "fail"),
        ("def plus(x, y):\n    return x + y", "fail"),  # the stub of the prompt is still there and returns None
        ("def add(x, y):\n    return x +", "SyntaxError"),
        ("I would add the two numbers.", "SyntaxError"),
        ("```", "fail"),
        ("    return x - y", "fail"),
        ("return x - y", "fail"),
        ("raise ValueError\ndef add(x, y):\n    return x + y", "ValueError"),
    ],
)
def test_chat_answers_that_fail(chat: Task, text: str, reason: str) -> None:
    verdict = chat.score(ADD, text)
    assert (verdict.passed, verdict.reason) == (False, reason)


def test_a_chat_answer_may_use_the_helpers_of_the_prompt(chat: Task) -> None:
    assert chat.score(CYCLIC, "def decode_cyclic(s):\n    return encode_cyclic(encode_cyclic(s))").passed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("    return x - y", "fail"),
        ("return x + y", "SyntaxError"),  # held to the letter, unlike chat
        ("    return x + y\n```", "SyntaxError"),
        ("    return x + y\n\nassert add(1, 1) == 3", "AssertionError"),
        ("    return x + z", "NameError"),
        ("    import sys\n    sys.exit(0)", "SystemExit"),
        ("    print('pass')", "fail"),
    ],
)
def test_completions_that_fail(completion: Task, text: str, reason: str) -> None:
    verdict = completion.score(ADD, text)
    assert (verdict.passed, verdict.reason) == (False, reason)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_is_empty(completion: Task, chat: Task, text: str) -> None:
    assert completion.score(ADD, text).reason == chat.score(ADD, text).reason == "empty"


def test_the_style_must_be_known_to_score() -> None:
    with pytest.raises(UsageError, match="style"):
        Task(Options()).score(ADD, "    return x + y")


def test_an_unknown_problem_is_an_error(completion: Task) -> None:
    with pytest.raises(UsageError, match="HumanEval/164"):
        completion.score("HumanEval/164", "    return 1")


# -- extraction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\nb", "a\nb"),
        ("a\n```\nb", "a"),
        ("```python\na\n```", "a"),
        (" \n```py \n    a\n```x", "    a"),
        ("a```", "a"),
        ('s = "```"\nt', 's = "```"\nt'),
        (
            '    """\n    ```\n    >>> f()\n    ```\n    """\n    return',
            '    """\n    ```\n    >>> f()\n    ```\n    """\n    return',
        ),
        ("```", ""),
        ("", ""),
    ],
)
def test_fences(text: str, code: str) -> None:
    assert extract.fenced(text) == code


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("def f(): pass", 2),
        ("async def f(): pass", 2),
        ("def f_two(): pass", 2),
        ("    def f(): pass\n    return f", 1),
        ("\n\n  x = 1", 1),
        ("f == 1\nreturn f", 1),
    ],
)
def test_whole_function_or_body(answer: str, parts: int) -> None:
    found = extract.sources("def f():\n", "f", answer)
    assert len(found) == parts
    assert found[0].startswith("def f():\n")


def test_extraction_of_hostile_text_is_quick() -> None:
    code = (
        "from specbench.tasks.humaneval import extract\n"
        "texts = '(' * 10**6, 'f\\n' * 10**5, '`' * 10**6, 'f' + '\\n' * 10**6, '    ' * 10**6, 'def f' * 10**5\n"
        "for text in texts:\n"
        "    extract.sources('def f():\\n', 'f', extract.fenced(text))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=10)


# -- data --------------------------------------------------------------------------------------------------------------

ROW = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": "pass"}


@pytest.mark.parametrize("field", list(ROW))
@pytest.mark.parametrize("bad", [None, 3, "missing"])
def test_a_bad_row_is_named(tmp_path: Path, field: str, bad: Any) -> None:
    row: dict[str, Any] = dict(ROW)
    if bad == "missing":
        del row[field]
    else:
        row[field] = bad
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(ROW)}\n{json.dumps(row)}\n".encode()))
    with pytest.raises(UsageError, match=f"row 2: field '{field}'") as error:
        task.load(path)
    assert str(path) in str(error.value)


def test_a_problem_given_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    with pytest.raises(UsageError, match=r"row 2.*twice"):
        task.load(path)


def test_another_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROW).encode()))
    with pytest.raises(UsageError, match="expected b796127e635a67f9"):
        Task(Options(), tmp_path)
    with pytest.raises(UsageError, match=r"no file HumanEval\.jsonl\.gz"):
        Task(Options(), tmp_path.parent)


def test_the_short_name_is_refused() -> None:
    root = Path(__file__).parents[2]
    for name in ("tasks", "methods"):
        found = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True)
        assert f"ImportError: import specbench.{name}" in found.stderr
