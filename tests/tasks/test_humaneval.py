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

from specbench.common import options
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import data, plus_checks
from specbench.evals.extract import fenced
from specbench.tasks.humaneval import extract, rows, task
from specbench.tasks.humaneval.task import Options, Task

BASE, PLUS = data.manifest(Path(task.__file__).with_name("task.toml"))
needs_plus = pytest.mark.skipif(not data.present(PLUS), reason=f"{PLUS.name} is not here; set {data.DATA_DIR}")
needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")


@pytest.fixture(scope="module")
def completion() -> Task:
    return Task(Options(style="completion", tests="base"))


@pytest.fixture(scope="module")
def chat() -> Task:
    return Task(Options(style="chat", tests="base"))


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
    published = data.read_jsonl(data.resolve(BASE))
    prompts = completion.prompts(chat=False)
    assert [(p.id, p.text) for p in prompts] == [(row["task_id"], row["prompt"]) for row in published]
    assert {(p.prefill, p.stops) for p in prompts} == {("", ("\nclass ", "\ndef ", "\n#", "\nif", "\nprint"))}


def test_chat_prompts_hold_the_problem_in_a_fence(chat: Task) -> None:
    prompts = chat.prompts(chat=True)
    assert len(prompts) == 164
    for prompt in prompts:
        fence = f"```python\n{chat._problems[prompt.id].prompt.strip()}\n```"
        assert fence in prompt.text
        assert (prompt.prefill, prompt.stops) == ("```python\n", ("\n```",))


@pytest.mark.parametrize(
    ("style", "digest"),
    [
        ("completion", "a621c22f0651c0e0"),
        ("chat", "094056299e3fbec7"),
        pytest.param("evalplus", "0520eca3bdc1def5", marks=needs_plus),
        pytest.param("evalplus-completion", "434c2e1b61d768b1", marks=needs_plus),
        ("jf", "86a90ecfdc5b70c6"),
        ("jf-python", "71921968d71d6baf"),
    ],
)
def test_prompts_change_only_with_the_version(style: Any, digest: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    prompts = [(p.id, p.text, p.prefill, p.stops) for p in Task(Options(style=style)).prompts(chat=True)]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16] == digest


@needs_plus
@needs_evalplus
def test_the_evalplus_prompt_is_evalpluss() -> None:
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion, make_raw_chat_prompt

    class Tokenizer:
        chat_template = "{}"

        def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool) -> str:
            return "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)

    prefix = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
    response = "Below is a Python script with a self-contained function that solves the problem and passes "
    response += "corresponding tests:"
    problems = data.read_jsonl(data.resolve(PLUS))
    for row, prompt in zip(problems, Task(Options(style="evalplus")).prompts(chat=True), strict=True):
        asked = make_raw_chat_prompt(row["prompt"].strip() + "\n", prefix, response, Tokenizer())
        assert f"<user>{prompt.text}<assistant>{prompt.prefill}" == asked
    for row, prompt in zip(problems, Task(Options(style="evalplus-completion")).prompts(chat=False), strict=True):
        assert prompt.text == row["prompt"].strip() + "\n"
        theirs = {stop for stop in [*EOS, *extra_eos_for_direct_completion("humaneval")] if stop.startswith("\n")}
        assert set(prompt.stops) == theirs  # the others are special tokens, which end an answer anyway


def test_the_jf_prompt_is_that_of_its_script() -> None:
    prompt = Task(Options(style="jf")).prompts(chat=True)[53]
    assert prompt.text.startswith(
        "Please continue to complete the function. You are not allowed to modify the given code and do the completion "
        "only. Please return all completed function in a codeblock. Here is the given code to do completion:\n```\ndef "
    )
    assert prompt.text.endswith('    """\n```')
    assert (prompt.prefill, prompt.stops) == ("", ())
    other = Task(Options(style="jf-python")).prompts(chat=True)[53]
    assert other.text == prompt.text.replace("```\ndef", "```python\ndef")


@pytest.mark.parametrize("style", [pytest.param("evalplus", marks=needs_plus), "jf", "jf-python"])
def test_every_chat_style_needs_a_template(style: Any) -> None:
    with pytest.raises(UsageError, match=f"style={style} needs a model with a chat template.*completion"):
        Task(Options(style=style)).prompts(chat=False)


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


@needs_plus
def test_after_prompts_nothing_is_left_to_be_decided() -> None:
    made = Task(Options())
    made.prompts(chat=True)
    assert made.options.model_dump() == {"style": "chat", "tests": "plus", "extract": "own"}
    again = Task(Options(**made.options.model_dump()))
    assert again.options == made.options


def test_auto_scores_the_base_tests_where_there_is_no_more(tmp_path: Path) -> None:
    (tmp_path / BASE.name).write_bytes(data.resolve(BASE).read_bytes())
    made = Task(Options(style="completion"), tmp_path)
    assert made.options.tests == "base"
    verdict = made.score(ADD, "    return x + y")
    assert (verdict.passed, verdict.also, made.versions) == (True, {"base": True}, {})
    with pytest.raises(UsageError, match="has no file HumanEvalPlus"):
        Task(Options(style="completion", tests="plus"), tmp_path)


def test_auto_does_not_go_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("went online")

    monkeypatch.setattr("urllib.request.urlopen", refused)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(data.DATA_DIR, raising=False)
    assert Task(Options()).options.tests == "base"


RARE = "HumanEval/0"  # has_close_elements: right on all base inputs when "<" is "<="
CLOSE = "    return any(abs(a - b) {} threshold for i, a in enumerate(numbers) for b in numbers[:i])\n"


@needs_plus
def test_plus_is_harder_than_base() -> None:
    made = Task(Options(style="completion", tests="plus"))
    right, slip, wrong = (made.score(RARE, CLOSE.format(sign)) for sign in ("<", "<=", ">"))
    assert (right.passed, right.also) == (True, {"base": True, "plus": True})
    assert (slip.passed, slip.also) == (False, {"base": True, "plus": False})
    assert (wrong.passed, wrong.also) == (False, {"base": False, "plus": False})
    assert made.score(RARE, " ").also == {"base": False, "plus": False}
    assert made.versions["comparison"].startswith("1 ")
    assert any("2048 MiB" in line for line in made.isolation)


@needs_plus
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
def test_evalplus_styles_are_sanitised(style: Any, text: str, passed: bool) -> None:
    made = Task(Options(style=style, tests="plus"))
    verdict = made.score(ADD, text)
    assert (verdict.passed, set(verdict.also)) == (passed, {"base", "plus"})
    assert made.versions["evalplus"] == plus_checks.version()


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("Sure!\n```python\ndef add(x, y):\n    return x + y\n```\nDone.", True),
        ("```python\n    return x + y\n```", True),
        ("def add(x, y):\n    return x + y", True),
        ("```bash\nls\n```\n```python\ndef add(x, y):\n    return x - y\n```", False),
    ],
)
def test_jf_answers_open_their_own_fence(text: str, passed: bool) -> None:
    assert Task(Options(style="jf", tests="base")).score(ADD, text).passed == passed


def test_without_the_package_own_extraction_goes_on(monkeypatch: pytest.MonkeyPatch, chat: Task) -> None:
    monkeypatch.setattr(plus_checks, "version", lambda: None)
    assert Task(Options(style="chat", tests="base")).score(ADD, "def add(x, y):\n    return x + y").passed
    made = Task(Options(style="chat", tests="base", extract="evalplus"))
    for attempt in (lambda: made.isolation, lambda: made.score(ADD, "def add(x, y):\n    return x + y")):
        with pytest.raises(EnvironmentRefused, match=r"extract=evalplus of humaneval needs the evalplus package"):
            attempt()


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
    assert fenced(text) == code


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
        "from specbench.evals.extract import fenced, first_block\n"
        "from specbench.tasks.humaneval import extract\n"
        "texts = '(' * 10**6, 'f\\n' * 10**5, '`' * 10**6, 'f' + '\\n' * 10**6, '    ' * 10**6, 'def f' * 10**5\n"
        "for text in texts:\n"
        "    extract.sources('def f():\\n', 'f', fenced(first_block(text)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=10)


# -- data --------------------------------------------------------------------------------------------------------------

ROW = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": "pass"}
PLUS_ROW = ROW | {"contract": "", "atol": 0, "base_input": [[1]], "plus_input": [[2], []]}


@pytest.mark.parametrize("field", list(PLUS_ROW))
@pytest.mark.parametrize("bad", [None, {}, "missing"])
def test_a_bad_row_is_named(tmp_path: Path, field: str, bad: Any) -> None:
    kind, good = (rows.Problem, ROW) if field in ROW else (rows.PlusProblem, PLUS_ROW)
    row: dict[str, Any] = dict(good)
    if bad == "missing":
        del row[field]
    else:
        row[field] = bad
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(good)}\n{json.dumps(row)}\n".encode()))
    with pytest.raises(UsageError, match=f"line 2 is damaged .field '{field}'") as error:
        rows.load(path, kind)
    assert str(path) in str(error.value)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode() * 100)[:-20])
    with pytest.raises(UsageError, match="compressed file is truncated") as error:
        rows.load(path, rows.PlusProblem)
    assert "\n" not in str(error.value)


def test_a_problem_given_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    with pytest.raises(UsageError, match=r"line 2.*twice"):
        rows.load(path, rows.Problem)


def test_another_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROW).encode()))
    with pytest.raises(UsageError, match="expected b796127e635a67f9"):
        Task(Options(), tmp_path)
    with pytest.raises(UsageError, match=r"no file HumanEval\.jsonl\.gz"):
        Task(Options(), tmp_path.parent)
    (tmp_path / BASE.name).write_bytes(data.resolve(BASE).read_bytes())
    (tmp_path / PLUS.name).write_bytes(gzip.compress(json.dumps(PLUS_ROW).encode()))
    with pytest.raises(UsageError, match="expected 272720b90ac37550"):
        Task(Options(), tmp_path)


def test_the_short_name_is_refused() -> None:
    root = Path(__file__).parents[2]
    for name in ("tasks", "methods"):
        found = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True)
        assert f"ImportError: import specbench.{name}" in found.stderr
