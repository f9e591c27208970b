from __future__ import annotations

import base64
import hashlib
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data.livecodebench import MADE, Row, packed
from support.asserting import asked
from support.wording import wording

from specbench.common import options as opt
from specbench.common.errors import UsageError
from specbench.evals import Verdict
from specbench.evals.extract import IN_LANGUAGE
from specbench.tasks.livecodebench import packed as unpacking
from specbench.tasks.livecodebench.asking import SYSTEM, code
from specbench.tasks.livecodebench.packed import unpack
from specbench.tasks.livecodebench.task import Options, Task

IDS = [made.id for made in MADE]


def task(folder: Path, **options: Any) -> Task:
    return Task(opt.parse_options(Options, options, "livecodebench"), folder)


def ids(folder: Path, **options: Any) -> list[str]:
    return [prompt.id for prompt in task(folder, **options).prompts(chat=True)]


def answer(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\nIt runs in linear time."


def one_file(folder: Path, *rows: Row) -> Path:
    """A folder whose release v1 has these rows."""
    (folder / "test.jsonl").write_text(small_data.lines(rows))
    return folder


@pytest.mark.parametrize("made", MADE, ids=IDS)
def test_what_is_right_passes_and_what_is_wrong_does_not(task_data: Path, made: Any) -> None:
    asked = task(task_data)
    assert asked.score(made.id, answer(made.right)) == Verdict(True, "pass", "", {"public": True}, IN_LANGUAGE)
    wrong = asked.score(made.id, answer(made.wrong))
    assert (wrong.passed, wrong.reason, wrong.also) == (False, "fail", {"public": True})
    assert task(task_data, tests="public").score(made.id, answer(made.wrong)).passed
    nothing = asked.score(made.id, answer("pass"))
    assert (nothing.passed, nothing.also) == (False, {"public": False})


def test_a_release_is_the_files_up_to_it(task_data: Path) -> None:
    assert ids(task_data) == IDS
    for release, count in (("v1", 3), ("v2", 4), ("v3", 5), ("v4", 6), ("v5", 7), ("v6", 8)):
        assert ids(task_data, release=release) == IDS[:count]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"from": "2024-01-01"}, IDS[3:]), ({"to": "2023-08-12"}, IDS[:3]), ({"until": "2023-08-11"}, IDS[:2]),
        ({"since": "2023-07-01", "until": "2024-01-13"}, IDS[1:4]), ({"platform": "codeforces"}, [IDS[1]]),
        ({"difficulty": "easy"}, [IDS[0], IDS[3]]), ({"platform": "leetcode", "difficulty": "medium"}, [IDS[6]]),
    ],
)  # fmt: skip
def test_a_window_a_platform_and_a_difficulty_choose(
    task_data: Path, options: dict[str, str], expected: list[str]
) -> None:
    assert ids(task_data, **options) == expected


def test_options_that_leave_nothing_and_days_that_are_none_are_refused(task_data: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        task(task_data, **{"from": "2026-01-01"})
    for bad in ("2024-13-01", "yesterday", "2024-1-1", "01.02.2024", "2024-01-01T00:00:00"):
        with pytest.raises(UsageError, check=wording):
            task(task_data, until=bad)
    with pytest.raises(UsageError, match="style=completion"):
        task(task_data, style="chat").prompts(chat=False)
    with pytest.raises(UsageError, check=wording):
        task(task_data).score("atcoder/none", "")


def test_the_prompt_is_the_authors(task_data: Path) -> None:
    script, method = (task(task_data).prompts(chat=True)[at] for at in (0, 2))
    assert script.text.startswith(f"### Question:\n{MADE[0].row['question_content']}\n\n### Format: Read the inputs ")
    assert script.text.endswith(
        "writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )
    assert f"within delimiters.\n```python\n{MADE[2].row['starter_code']}\n```\n\n### Answer: " in method.text
    assert (script.chat, script.history, script.category) == (True, (("system", SYSTEM),), "easy")
    assert (script.prefill, script.stops) == ("", ())
    plain = task(task_data).prompts(chat=False)[0]
    assert (plain.text, plain.chat, plain.history) == (f"{SYSTEM}\n\n{script.text}", False, ())


@pytest.mark.parametrize(("chat", "pinned"), [(True, "8fb08dd5c400386e"), (False, "2fdc2a359b845983")])
def test_prompts_change_only_with_the_version(task_data: Path, chat: bool, pinned: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew both digests."""
    prompts = task(task_data).prompts(chat)
    found = hashlib.sha256(json.dumps([asked(prompt) for prompt in prompts]).encode()).hexdigest()[:16]
    assert found == pinned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\na\n```", "a"), ("```\na\n```\nthen\n```py\nb\nc\n```\nbye", "b\nc"), ("a", None), ("", None),
        ("```python\na", "a"), ("  ```\na\n  ```", "a"), ("```python\na\n```\nand ```inline", "a"),
        ("```python\na\n```\nIt prints:\n```\n3\n```", "a"), ("```python\n```", None),
    ],
)  # fmt: skip
def test_code_is_the_last_block_in_python(text: str, expected: str | None) -> None:
    found = code(text)
    assert (found.code if found else None) == expected


def test_an_answer_without_code_is_empty(task_data: Path) -> None:
    asked = task(task_data)
    for text in ("", "print(3)", "```python\n\n```"):
        verdict = asked.score(IDS[0], text)
        assert (verdict.passed, verdict.reason, verdict.also) == (False, "empty", {"public": False})


# ---------------------------------------------------------------------------------------------------- what is damaged


def pickled(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


class Mischief:
    """Pickles to a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "was here"))


def test_a_pickle_is_read_and_never_run(tmp_path: Path) -> None:
    there = tmp_path / "there"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert unpack(packed([{"a": "é\n"}], protocol)) == json.dumps([{"a": "é\n"}])
        for content in (Mischief(there), [Mischief(there)], {"a": "b"}, ("a",), b"a", 3, None, [], ["a"], Path("a")):
            with pytest.raises(ValueError, check=wording):
                unpack(pickled(pickle.dumps(content, protocol)))
    assert not there.exists()
    for bad in (
        b"", b".", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x8c\x01a\x8c\x01b.", b"\x80\x04\x8c\x01a", b"S'a'\n.",
        b"\x80\x04\x8c\x01a2.", b"X\xff\xff\xff\x7fa.", b"\x8d" + b"\xff" * 8 + b".", b"\x80\x09K\x01.", b"Pa\n.",
        b"ios\nsystem\n.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x82\x01.", b"Va\nr\xff\xff\xff\x7f0.",
    ):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011  some are pickletools' own words
            unpack(pickled(bad))


def test_what_is_unpacked_is_bounded() -> None:
    bomb = base64.b64encode(zlib.compress(pickle.dumps("x" * (8 << 20)))).decode()
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, check=wording):
        unpack(bomb, 1 << 20)
    whole = packed([1])
    for bad in (whole[:-8], whole[:-3], "!", "é", "aGk=", whole.replace(whole[20], "#")):
        with pytest.raises(ValueError, check=wording):
            unpack(bad)
    assert unpacking.LARGEST <= 1 << 30


@pytest.mark.parametrize(
    "change",
    [
        {"platform": "topcoder"}, {"difficulty": "trivial"}, {"contest_date": "May"}, {"question_id": ""},
        {"contest_date": "2023-01-01T00:00:00+00:00"}, {"metadata": "x"}, {"metadata": "[]"},
        {"metadata": '{"func_name": 3}'}, {"metadata": '{"func_name": "a b"}'}, {"public_test_cases": "x"},
        {"public_test_cases": "{}"}, {"public_test_cases": '[{"input": "1"}]'},
        {"public_test_cases": '[{"input": "1", "output": "2", "testtype": "guess"}]'},
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(tmp_path: Path, change: dict[str, str]) -> None:
    one_file(tmp_path, MADE[0].row, {**MADE[1].row, **change})
    with pytest.raises(UsageError, check=wording) as error:
        task(tmp_path, release="v1")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (0, {"private_test_cases": "!"}), (0, {"private_test_cases": pickled(pickle.dumps("{}"))}),
        (0, {"private_test_cases": "[3]"}), (0, {"private_test_cases": "[]", "public_test_cases": "[]"}),
        (2, {"private_test_cases": packed([{"input": "1\n", "output": "x", "testtype": "functional"}])}),
    ],
)  # fmt: skip
def test_damaged_private_tests_are_named_when_they_are_needed(tmp_path: Path, at: int, change: dict[str, str]) -> None:
    made = MADE[at]
    one_file(tmp_path, MADE[1].row, {**made.row, **change})
    asked = task(tmp_path, release="v1")
    with pytest.raises(UsageError, check=wording):
        asked.score(made.id, answer(made.right))


def test_a_problem_twice_another_file_and_none_are_named(tmp_path: Path, task_data: Path) -> None:
    one_file(tmp_path, MADE[0].row, MADE[1].row, MADE[0].row)
    with pytest.raises(UsageError, check=wording):
        task(tmp_path, release="v1")
    with pytest.raises(UsageError, check=wording):
        task(tmp_path, release="v2")
    asked = task(one_file(tmp_path, MADE[0].row), release="v1")
    one_file(tmp_path, MADE[1].row)
    with pytest.raises(UsageError, check=wording):
        asked.score(IDS[0], answer("print(3)"))
    for bad in ("[1]\n", "7\n", "{", small_data.lines([MADE[0].row])[:-20], '{"a": 1}\n'):
        (tmp_path / "test.jsonl").write_text(bad)
        with pytest.raises(UsageError, check=wording):
            task(tmp_path, release="v1")
    (tmp_path / "test.jsonl").write_text("\n\n")
    with pytest.raises(UsageError, check=wording):
        task(tmp_path, release="v1")
