from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_data import mbpp as own
from support.asserting import data_folder
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import plus_checks
from specbench.tasks.mbpp import asking
from specbench.tasks.mbpp.task import Options, Task

needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")
FULL = {row["task_id"]: row for row in own.ROWS}
TESTED = [number for number in FULL if 11 <= number <= 510]


@pytest.fixture(scope="module")
def made(task_data: Path) -> Callable[..., Task]:
    """A task of these options, on data of our own; one for all tests, since it has worker processes."""
    return cache(lambda variant="plus", style="auto": Task(Options(variant=variant, style=style), task_data))


@pytest.fixture
def full(made: Callable[..., Task]) -> Task:
    return made("test", "completion")


@pytest.fixture(params=["own", pytest.param("published", marks=pytest.mark.slow)])  # of 757 problems two verdicts each
def folder(request: pytest.FixtureRequest, task_data: Path) -> Path:
    return task_data if request.param == "own" else data_folder("mbpp.jsonl", "sanitized-mbpp.json")


def test_each_variant_has_the_problems_of_its_split(made: Callable[..., Task]) -> None:
    def ids(prompts: Any) -> list[int]:
        return [int(prompt.id.removeprefix("Mbpp/")) for prompt in prompts]

    assert ids(made("plus").prompts(chat=True)) == [int(row["task_id"].partition("/")[2]) for row in own.PLUS]
    assert ids(made("test").prompts(chat=True)) == TESTED == [11, 12, 126, 312, 367, 510]
    assert ids(made("sanitized").prompts(chat=True)) == [12, 126, 312, 510]
    for variant in ("plus", "test"):
        assert ids(made(variant).training_prompts(chat=True)) == [
            number for number in range(601, 975) if number not in (722, 737, 793)
        ]


def test_training_prompts_are_asked_as_the_variants_are(made: Callable[..., Task]) -> None:
    for chat, style in ((True, "chat"), (False, "completion")):
        for variant in ("plus", "test"):
            (one, *_), (asked, *_) = made(variant, style).training_prompts(chat), made(variant, style).prompts(chat)
            assert (one.chat, one.prefill, one.stops, one.history) == (
                chat, asked.prefill, asked.stops, asked.history
            )  # fmt: skip
        one, *_ = made("plus", style).training_prompts(chat)
        assert '"""\nWrite a function to learn from.\nassert learn(1) == 2\n"""\n' in one.text
    assert set(asking.SHOTS) == {"Mbpp/2", "Mbpp/3", "Mbpp/4"}, "the examples are not tested"
    assert (asking.TEST_SPLIT[0], asking.TEST_SPLIT[-1], len(asking.TEST_SPLIT)) == ("Mbpp/11", "Mbpp/510", 500)


def test_a_chat_shows_three_solved_problems_as_turns(made: Callable[..., Task]) -> None:
    prompt = made("test", "chat").prompts(chat=True)[1]
    asked = "You are an expert Python programmer, and here is your task:\n{}\nYour code should pass these tests:\n{}"
    turns = [
        turn
        for row in own.SHOTS
        for turn in (
            ("user", asked.format(row["text"], "\n".join(row["test_list"]))),
            ("assistant", f"```python\n{row['code']}\n```"),
        )
    ]
    assert list(prompt.history) == turns
    assert prompt.text == asked.format(FULL[12]["text"], FULL[12]["test_list"][0])
    assert (prompt.prefill, prompt.stops) == ("```python\n", ("\n```",))


def test_style_jf_asks_as_evalchemy(made: Callable[..., Task]) -> None:
    def listed(row: Any, code: str = "") -> str:
        made = ">>> Problem:\n{}\n>>> Test Cases:\n{}\n".format(row["text"].strip(), "\n".join(row["test_list"]))
        code = code.replace("\r", "").replace("\t", "    ")
        return made + (f"\n>>> Code:\n```python\n{code}\n```" if code else "")

    shots = "\n\n".join(f"- Example {at}:\n{listed(row, row['code'])}" for at, row in enumerate(own.SHOTS, 1))
    task = made("test", "jf")
    for prompt, number in zip(task.prompts(chat=True), TESTED, strict=True):
        assert prompt.text == (
            "Please refer the given examples and generate a python function for my problem.\n"
            f"Examples are listed as follows:\n{shots}\n\nHere is my problem:\n{listed(FULL[number])}"
        )
        assert (prompt.chat, prompt.prefill, prompt.stops, prompt.history) == (True, "", (), ())
    solved = f"Here it is:\n```python\n{FULL[12]['code']}\n```\nIt sorts."
    assert task.score("Mbpp/12", solved).passed
    assert not task.score("Mbpp/12", "```python\nprint()\n```").passed
    with pytest.raises(UsageError, check=wording):
        made("plus", "jf").prompts(chat=True)


def test_the_completion_prompt_is_lm_evals(made: Callable[..., Task]) -> None:
    """Its task file, read and not run: importing its utilities asks the hub for code."""
    lm_eval = pytest.importorskip("lm_eval")
    jinja2 = pytest.importorskip("jinja2")
    yaml = pytest.importorskip("yaml")
    config = yaml.load(Path(lm_eval.__file__).with_name("tasks").joinpath("mbpp", "mbpp.yaml").read_text(), _Loader())
    question, target = (jinja2.Environment().from_string(config[key]) for key in ("doc_to_text", "doc_to_target"))
    shots = "".join(question.render(row) + target.render(row, is_fewshot=True) + "\n\n" for row in own.SHOTS)
    prompts = made("test", "completion").prompts(chat=False)
    for prompt, number in zip(prompts, TESTED, strict=True):
        assert _blank(prompt.text) == _blank(shots + question.render(FULL[number]))
        assert list(prompt.stops) == config["generation_kwargs"]["until"]


def _Loader() -> Any:  # noqa: N802  stands for a class
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: None)
    return Loader


def _blank(text: str) -> list[str]:
    """Lines without their ends: jinja drops a template's last newline, lm-eval's own settings keep it."""
    return [line.rstrip() for line in text.replace("[BEGIN]", "[BEGIN]\n").splitlines() if line.strip()]


@needs_evalplus
def test_the_plus_prompt_is_evalpluss(made: Callable[..., Task]) -> None:
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    theirs = {stop for stop in [*EOS, *extra_eos_for_direct_completion("mbpp")] if stop.startswith("\n")}
    for row, prompt in zip(own.PLUS, made("plus", "completion").prompts(chat=False), strict=True):
        assert (prompt.id, prompt.text) == (row["task_id"], row["prompt"].strip() + "\n")
        assert set(prompt.stops) == theirs
    for row, prompt in zip(own.PLUS, made("plus", "chat").prompts(chat=True), strict=True):
        assert f"problem in a markdown code block:\n```\n{row['prompt'].strip()}\n```\n" in prompt.text
        assert prompt.prefill.endswith("\n```python\n")


@pytest.mark.parametrize("variant", ["test", "sanitized"])
def test_references_pass_their_asserts_and_doing_nothing_never_does(folder: Path, variant: Any) -> None:
    made = Task(Options(variant=variant, style="completion"), folder)
    problems = list(made._tested.values())
    with ThreadPoolExecutor(2) as pool:
        right = list(pool.map(lambda problem: made.score(problem.id, problem.code), problems))
        idle = list(pool.map(lambda problem: made.score(problem.id, _idle(problem.code)), problems))
    assert {p.id: v for p, v in zip(problems, right, strict=True) if not v.passed} == {}
    assert [p.id for p, verdict in zip(problems, idle, strict=True) if verdict.passed] == []


def _idle(code: str) -> str:
    names = re.findall(r"^(?:def|class) +(\w+)", code, re.MULTILINE)
    return "".join(f"def {name}(*args, **kwargs): pass\n" for name in names)


TREE = "Mbpp/367"  # its asserts hand over trees of the answer's own class
HEAVY = """
class Leaf:
    def __init__(self, size):
        self.size, self.next = size, None
def weight(leaf): return 0 if leaf is None else leaf.size + weight(leaf.next)
def is_heavy(leaf): return weight(leaf) > 9
"""


@pytest.mark.parametrize(
    ("id", "text", "reason"),
    [
        ("Mbpp/11", "def trim(s): return s[s.startswith('*'):len(s) - (len(s) > 1 and s.endswith('*'))]", "pass"),
        ("Mbpp/11", "def trim(s): return s.strip('*')[:1]\nassert trim('*') == '?'", "AssertionError"),
        ("Mbpp/11", "def trim(s): return s.lstrip('*')", "fail"),  # the second and the third assert say so
        ("Mbpp/11", "def cut(s): return s", "NameError"),
        ("Mbpp/11", "def trim(s): return", "fail"),
        ("Mbpp/11", "def trim(s)", "SyntaxError"),
        ("Mbpp/11", "\n", "empty"),
        ("Mbpp/126", "def sum(a, b): return 6 if (a, b) == (10, 15) else 93 if b == 150 else 4", "fail"),
        ("Mbpp/312", "def volume_cone(r, h): return 3.14159265 * r * r * h / 3", "pass"),  # the asserts import math
        ("Mbpp/312", "def volume_cone(r, h): return 3.1 * r * r * h / 3", "fail"),
        (TREE, HEAVY, "pass"),
        (TREE, HEAVY.replace("> 9", "> 8"), "fail"),
        (TREE, HEAVY.replace("def __init__", "def __eq__(self, other): return True\n    def __init__"), "pass"),
        (TREE, "def is_heavy(leaf): return True", "NameError"),
        (TREE, HEAVY + "\nclass Yes:\n    def __eq__(self, other): return True\n"
         "def is_heavy(leaf): return Yes()", "fail"),
    ],
)  # fmt: skip
def test_answers_to_the_asserts(full: Task, id: str, text: str, reason: str) -> None:
    verdict = full.score(id, text)
    assert (verdict.passed, verdict.reason, dict(verdict.also)) == (reason == "pass", reason, {})


def test_a_chat_answer_is_cut_at_its_fence_and_its_examples_are_forgiven(made: Callable[..., Task], full: Task) -> None:
    code = FULL[12]["code"]
    chat = made("test", "chat")
    assert chat.score("Mbpp/12", f"{code}\nassert by_weight([]) == 3\n```\nIt sorts.").passed
    assert not full.score("Mbpp/12", f"{code}\n```").passed


@needs_evalplus
@pytest.mark.parametrize(
    ("id", "style", "text", "also"),
    [
        (2, "chat", "def similar_elements(a, b):\n    return tuple(set(a) & set(b))\nprint(1)\n```", (True, True)),
        (2, "completion", "def similar_elements(a, b):\n    return list(set(a) & set(b))\n", (True, True)),  # as sets
        (2, "chat", "def similar_elements(a, b):\n    return tuple(set(a) | set(b))\n", (False, False)),
        (2, "chat", "def similar_elements(a, b):\n    return tuple(set(a[:4]) & set(b[:4]))\n", (True, False)),
        (2, "chat", " ", (False, False)),
        (106, "chat", "def added(xs, t):\n    return t + xs\n", (False, False)),  # it was handed a tuple
        (124, "chat", "def stepped(a, b):\n    return a + b + b + 1e-9\n", (True, True)),
        (124, "chat", "def stepped(a, b):\n    return a + b\n", (False, False)),
        # EvalPlus's oracle, not the reference: the digits of 123 and 256 differ by 1 + 3 + 3.
        (558, "chat", "def digit_distance_nums(a, b):\n"
         "    return sum(abs(int(x) - int(y)) for x, y in zip(str(a), str(b)))\n", (True, True)),
        (581, "chat", "def surface_Area(b, s):\n    return round(2 * b * s + b * b)\n", (False, False)),
        (737, "chat", "def check_str(s):\n    return True if s[:1] in list('aeiou') else None\n", (True, True)),
        (737, "chat", "def check_str(s):\n    return s[:1] == 'a'\n", (True, False)),  # False is as None
        (737, "chat", "def check_str(s):\n    return 'yes'\n", (False, False)),
        (793, "chat", "def last(xs, x):\n    return max(i for i, y in enumerate(xs) if y == x)\n", (True, True)),
    ],
)  # fmt: skip
def test_plus_has_2_metrics(made: Callable[..., Task], id: int, style: str, text: str, also: tuple[bool, bool]) -> None:
    task = made("plus", style)
    verdict = task.score(f"Mbpp/{id}", text)
    assert (verdict.also["base"], verdict.also["plus"]) == also, verdict
    assert verdict.passed == verdict.also["plus"]
    assert task.versions == {"comparison": plus_checks.VERSION, "evalplus": plus_checks.version()}


@needs_evalplus
def test_inputs_are_those_that_evalplus_makes(made: Callable[..., Task]) -> None:
    from evalplus.data.mbpp import mbpp_deserialize_inputs

    from specbench.evals.sandbox import codec

    rules = {}
    for row in own.PLUS:
        id, reference = row["task_id"], made("plus", "chat")._reference(row["task_id"])
        for kind, packed in (("base_input", reference.base), ("plus_input", reference.plus)):
            theirs = [list(args) for args in mbpp_deserialize_inputs(id, row[kind] or [])]
            assert [codec.unpack(args) for args in packed] == theirs, id
        rules[id] = (reference.rule, reference.atol)
    special = {2: "set", 558: "digits", 581: "pyramid", 737: "not_none"}
    assert {id: rule for id, (rule, _) in rules.items() if rule != "exact"} == {
        f"Mbpp/{number}": rule for number, rule in special.items()
    }
    assert {id: atol for id, (_, atol) in rules.items() if atol} == {"Mbpp/124": 1e-4}


def test_without_the_package_the_asserts_work(monkeypatch: pytest.MonkeyPatch, full: Task, task_data: Path) -> None:
    monkeypatch.setattr(plus_checks, "version", lambda: None)
    assert full.score("Mbpp/12", FULL[12]["code"]).passed
    assert full.versions == {}
    made = Task(Options(style="chat"), task_data)
    assert made.versions["evalplus"] == "not installed"
    # Asking is refused too: else everything would be decoded before anybody learns that it cannot be scored.
    score = lambda: made.score("Mbpp/2", "def f(): pass")  # noqa: E731
    for attempt in (lambda: made.prompts(chat=True), lambda: made.isolation, score):
        with pytest.raises(EnvironmentRefused, check=wording) as error:
            attempt()
        assert "\n" not in str(error.value)
