from __future__ import annotations

import gzip
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import data, plus_checks
from specbench.tasks.mbpp import asking, rows, task
from specbench.tasks.mbpp.task import Options, Task

PLUS, FULL, SANITIZED = data.manifest(Path(task.__file__).with_name("task.toml"))
needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")
pytestmark = pytest.mark.skipif(
    not all(map(data.present, (PLUS, FULL, SANITIZED))), reason=f"MBPP's files are not here; set {data.DATA_DIR}"
)


@pytest.fixture(scope="module", params=["test", "sanitized"])
def asserted(request: pytest.FixtureRequest) -> Task:
    return Task(Options(variant=request.param, style="completion"))


@pytest.fixture(scope="module")
def full() -> Task:
    return Task(Options(variant="test", style="completion"))


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "count"), [("plus", 378), ("test", 500), ("sanitized", 257)])
def test_each_variant_has_the_problems_of_its_split(variant: Any, count: int) -> None:
    prompts = Task(Options(variant=variant)).prompts(chat=True)
    assert len({prompt.id for prompt in prompts}) == len(prompts) == count
    if variant != "plus":
        assert {int(prompt.id.removeprefix("Mbpp/")) for prompt in prompts} <= set(range(11, 511))


def test_the_examples_are_not_tested() -> None:
    assert set(asking.SHOTS) == {"Mbpp/2", "Mbpp/3", "Mbpp/4"}
    assert not set(asking.SHOTS) & set(asking.TEST_SPLIT)
    assert (asking.TEST_SPLIT[0], asking.TEST_SPLIT[-1], len(asking.TEST_SPLIT)) == ("Mbpp/11", "Mbpp/510", 500)


def test_auto_follows_the_model() -> None:
    for chat, style in ((True, "chat"), (False, "completion")):
        made = Task(Options())
        assert {prompt.chat for prompt in made.prompts(chat)} == {chat}
        assert made.options.model_dump() == {"variant": "plus", "style": style}
    with pytest.raises(UsageError, match="style=completion"):
        Task(Options(style="chat")).prompts(chat=False)


@pytest.mark.parametrize(
    ("variant", "chat", "digest"),
    [
        ("plus", True, "b4a58395413b3492"),
        ("plus", False, "580860fcf85f17b9"),
        ("test", True, "1ec1f2c0b824f6f3"),
        ("test", False, "2b6795cab3364281"),
        ("sanitized", True, "ffb50934fd5666e5"),
        ("sanitized", False, "ccd1099ddd4fbb51"),
    ],
)
def test_prompts_change_only_with_the_version(variant: Any, chat: bool, digest: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    prompts = [(p.id, p.text, p.prefill, p.stops, p.history) for p in Task(Options(variant=variant)).prompts(chat)]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16] == digest


def test_the_completion_prompt_is_lm_evals() -> None:
    """Its task file, read and not run: importing its utilities asks the hub for code."""
    lm_eval = pytest.importorskip("lm_eval")
    jinja2 = pytest.importorskip("jinja2")
    yaml = pytest.importorskip("yaml")
    config = yaml.load(Path(lm_eval.__file__).with_name("tasks").joinpath("mbpp", "mbpp.yaml").read_text(), _Loader())
    question, target = (jinja2.Environment().from_string(config[key]) for key in ("doc_to_text", "doc_to_target"))
    published = {row["task_id"]: row for row in data.read_jsonl(data.resolve(FULL))}
    solved = [published[id] for id in (2, 3, 4)]
    shots = "".join(question.render(row) + target.render(row, is_fewshot=True) + "\n\n" for row in solved)
    for prompt in Task(Options(variant="test")).prompts(chat=False)[:20]:
        row = published[int(prompt.id.removeprefix("Mbpp/"))]
        assert _blank(prompt.text) == _blank(shots + question.render(row))
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
def test_the_plus_prompt_is_evalpluss() -> None:
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    rows_ = data.read_jsonl(data.resolve(PLUS))
    for row, prompt in zip(rows_, Task(Options()).prompts(chat=False), strict=True):
        assert (prompt.id, prompt.text) == (row["task_id"], row["prompt"].strip() + "\n")
        theirs = {stop for stop in [*EOS, *extra_eos_for_direct_completion("mbpp")] if stop.startswith("\n")}
        assert set(prompt.stops) == theirs
    for row, prompt in zip(rows_, Task(Options()).prompts(chat=True), strict=True):
        assert f"problem in a markdown code block:\n```\n{row['prompt'].strip()}\n```\n" in prompt.text
        assert prompt.prefill.endswith("\n```python\n")


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_references_pass_their_asserts(asserted: Task, every: int) -> None:
    problems = list(asserted._tested.values())[::every]
    if every == 1:
        assert len(problems) in (500, 257)
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda problem: asserted.score(problem.id, problem.code), problems))
    assert {p.id: v for p, v in zip(problems, verdicts, strict=True) if not v.passed} == {}


def test_no_problem_is_passed_by_a_function_that_does_nothing(full: Task) -> None:
    problems = list(full._tested.values())[::10]
    with ThreadPoolExecutor(2) as pool:
        idle = pool.map(lambda p: full.score(p.id, _idle(p.code)), problems)
    assert [p.id for p, verdict in zip(problems, idle, strict=True) if verdict.passed] == []


def _idle(code: str) -> str:
    names = re.findall(r"^(?:def|class) +(\w+)", code, re.MULTILINE)
    return "".join(f"def {name}(*args, **kwargs): pass\n" for name in names)


TREE = "Mbpp/367"  # its asserts hand over trees of the answer's own class
BALANCED = """
class Node:
    def __init__(self, data):
        self.data, self.left, self.right = data, None, None
def height(root): return 0 if root is None else 1 + max(height(root.left), height(root.right))
def is_tree_balanced(root):
    if root is None: return True
    level = abs(height(root.left) - height(root.right)) <= 1
    return level and is_tree_balanced(root.left) and is_tree_balanced(root.right)
"""


@pytest.mark.parametrize(
    ("id", "text", "reason"),
    [
        ("Mbpp/11", "def remove_Occ(s, ch):\n    s = s.replace(ch, '', 1)\n    i = s.rfind(ch)\n"
         "    return s if i < 0 else s[:i] + s[i + 1:]", "pass"),
        ("Mbpp/11", "def remove_Occ(s, ch): return s.replace(ch, '', 1)", "fail"),
        ("Mbpp/11", "def remove(s, ch): return s", "NameError"),
        ("Mbpp/11", "def remove_Occ(s, ch): return", "fail"),
        ("Mbpp/11", "def remove_Occ(s, ch)", "SyntaxError"),
        ("Mbpp/11", "\n", "empty"),
        ("Mbpp/126", "def sum(a, b): return 6 if (a, b) == (10, 15) else 93 if b == 150 else 4", "fail"),
        (TREE, BALANCED, "pass"),
        (TREE, BALANCED.replace("<= 1", "<= 2"), "fail"),
        (TREE, BALANCED.replace("def __init__", "def __eq__(self, other): return True\n    def __init__"), "pass"),
        (TREE, "def is_tree_balanced(root): return True", "NameError"),
        (TREE, BALANCED + "\nclass Yes:\n    def __eq__(self, other): return True\n"
         "def is_tree_balanced(root): return Yes()", "fail"),
    ],
)  # fmt: skip
def test_answers_to_the_asserts(full: Task, id: str, text: str, reason: str) -> None:
    verdict = full.score(id, text)
    assert (verdict.passed, verdict.reason, dict(verdict.also)) == (reason == "pass", reason, {})


def test_a_chat_answer_is_cut_at_its_fence() -> None:
    made = Task(Options(variant="test", style="chat"))
    code = made._tested["Mbpp/12"].code
    assert made.score("Mbpp/12", f"{code}\nassert sort_matrix([]) == 3\n```\nIt sorts.").passed
    assert not Task(Options(variant="test", style="completion")).score("Mbpp/12", f"{code}\n```").passed


@needs_evalplus
@pytest.mark.parametrize(
    ("style", "text", "also"),
    [
        ("chat", "def similar_elements(a, b):\n    return tuple(set(a) & set(b))\nprint(1)\n```", (True, True)),
        ("completion", "def similar_elements(a, b):\n    return list(set(a) & set(b))\n", (True, True)),  # as sets
        ("chat", "def similar_elements(a, b):\n    return tuple(set(a) | set(b))\n", (False, False)),
        ("chat", "def similar_elements(a, b):\n    return tuple(set(a[:4]) & set(b[:4]))\n", (True, False)),
        ("chat", " ", (False, False)),
    ],
)
def test_plus_has_two_metrics(style: Any, text: str, also: tuple[bool, bool]) -> None:
    made = Task(Options(style=style))
    verdict = made.score("Mbpp/2", text)
    assert (verdict.also["base"], verdict.also["plus"]) == also
    assert verdict.passed == verdict.also["plus"]
    assert made.versions["evalplus"] == plus_checks.version()


@needs_evalplus
def test_a_problem_without_plus_inputs_has_base_inputs_only() -> None:
    made = Task(Options(style="chat"))
    assert made._plus["Mbpp/793"].plus_input == {}
    reference = made._reference("Mbpp/793")
    assert (len(reference.base) > 0, list(reference.plus)) == (True, [])
    assert made._checker.check(reference, (reference.solution,), False).also == {"base": True, "plus": True}


@needs_evalplus
def test_inputs_are_those_that_evalplus_makes() -> None:
    from evalplus.data.mbpp import mbpp_deserialize_inputs

    from specbench.evals.sandbox import codec

    made = Task(Options(style="chat"))
    for id in (f"Mbpp/{number}" for number in (2, 63, 75, 106, 124, 250, 252, 259, 278, 580, 722, 750)):
        theirs = [list(args) for args in mbpp_deserialize_inputs(id, made._plus[id].base_input)]
        assert [codec.unpack(args) for args in made._reference(id).base] == theirs


def test_without_the_package_the_asserts_still_work(monkeypatch: pytest.MonkeyPatch, full: Task) -> None:
    assert len(Task(Options(style="chat")).prompts(chat=True)) == 378
    monkeypatch.setattr(plus_checks, "version", lambda: None)
    assert full.score("Mbpp/11", full._tested["Mbpp/11"].code).passed
    made = Task(Options(style="chat"))
    assert made.versions["evalplus"] == "not installed"
    # Asking is refused too: else everything would be decoded before anybody learns that it cannot be scored.
    score = lambda: made.score("Mbpp/2", "def f(): pass")  # noqa: E731
    for attempt in (lambda: made.prompts(chat=True), lambda: made.isolation, score):
        with pytest.raises(EnvironmentRefused, match=r"variant=plus of mbpp needs the evalplus package") as error:
            attempt()
        assert "\n" not in str(error.value)


def test_what_cannot_be_scored_is_said(full: Task) -> None:
    with pytest.raises(UsageError, match="no problem 'Mbpp/2' in variant=test"):
        full.score("Mbpp/2", "x")
    with pytest.raises(UsageError, match="set style=chat or completion"):
        Task(Options(variant="test")).score("Mbpp/11", "x")


# -- data --------------------------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {
    "plus": {
        "task_id": "Mbpp/2", "prompt": "", "entry_point": "f", "canonical_solution": "", "base_input": [[1]],
        "plus_input": [], "atol": 0, "contract": "", "assertion": "",
    },
    "test": {
        "task_id": 2, "text": "", "code": "", "test_setup_code": "", "test_list": ["assert f()"],
        "challenge_test_list": [],
    },
    "sanitized": {
        "task_id": 2, "prompt": "", "code": "", "test_imports": [], "test_list": [], "source_file": "",
    },
}  # fmt: skip
LOAD: dict[str, Any] = {"plus": rows.load_plus, "test": rows.load_full, "sanitized": rows.load_sanitized}


def written(path: Path, variant: str, *entries: Any) -> Path:
    listed = json.dumps(entries) if variant == "sanitized" else "".join(json.dumps(entry) + "\n" for entry in entries)
    file = path / ("x.jsonl.gz" if variant == "plus" else "x.jsonl")
    file.write_bytes(gzip.compress(listed.encode()) if variant == "plus" else listed.encode())
    return file


@pytest.mark.parametrize(("variant", "field"), [(variant, field) for variant, row in GOOD.items() for field in row])
def test_a_row_without_its_field_is_named(tmp_path: Path, variant: str, field: str) -> None:
    bad = {name: value for name, value in GOOD[variant].items() if name != field}
    path = written(tmp_path, variant, GOOD[variant], bad)
    with pytest.raises(UsageError, match=rf"(line|entry) 2 is damaged .field '{field}'") as error:
        LOAD[variant](path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("variant", GOOD)
def test_a_problem_given_twice_is_an_error(tmp_path: Path, variant: str) -> None:
    with pytest.raises(UsageError, match=r"2.*twice"):
        LOAD[variant](written(tmp_path, variant, GOOD[variant], GOOD[variant]))


@pytest.mark.parametrize("variant", GOOD)
def test_a_truncated_file_is_named(tmp_path: Path, variant: str) -> None:
    path = written(tmp_path, variant, *[GOOD[variant]] * 9)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UsageError, match=r"truncated|not JSON") as error:
        LOAD[variant](path)
    assert "\n" not in str(error.value)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="not a JSON list"):
        rows.load_sanitized(tmp_path / "x.json")
    with pytest.raises(UsageError, match="cannot be read"):
        rows.load_sanitized(tmp_path)


@pytest.mark.parametrize(("variant", "file"), [("plus", PLUS), ("test", FULL), ("sanitized", SANITIZED)])
def test_another_or_no_data_file_is_refused(tmp_path: Path, variant: Any, file: data.DataFile) -> None:
    with pytest.raises(UsageError, match=f"has no file {file.name}"):
        Task(Options(variant=variant), tmp_path)
    (tmp_path / file.name).write_bytes(b"[]")
    with pytest.raises(UsageError, match=f"expected {file.sha256}"):
        Task(Options(variant=variant), tmp_path)
