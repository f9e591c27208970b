from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.tasks.prompts.task import Options, Task

RAW = {"prompt": "Once upon a time"}
CHAT = [("user", "Hi"), ("assistant", "Hello"), ("user", "How are you?")]
MESSAGES = {"messages": [{"role": role, "content": text} for role, text in CHAT]}
SYSTEM = {"role": "system", "content": "Be long."}
TURNS = {"turns": ["Name a colour.", "And another."]}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def made(path: Path, **more: Any) -> Task:
    return Task(Options(file=str(path), **more))


def prompts(path: Path, chat: bool = True, **more: Any) -> list[Prompt]:
    return made(path, **more).prompts(chat)


def test_the_three_forms_of_a_line(tmp_path: Path) -> None:
    raw, chat, turns = prompts(write(tmp_path / "x.jsonl", RAW, MESSAGES, TURNS))
    assert raw == Prompt("1", "Once upon a time", chat=False)
    assert chat == Prompt("2", "How are you?", chat=True, history=(("user", "Hi"), ("assistant", "Hello")))
    assert turns == Prompt("3", "Name a colour.", chat=True, follow_ups=("And another.",))


def test_a_line_of_sharegpt_is_its_user_turns(tmp_path: Path) -> None:
    result = [("system", "Be long."), ("human", "Hi"), ("gpt", "Hello"), ("user", "How are you?"), ("chatgpt", "Fine")]
    row = {"id": "x_0", "conversations": [{"from": who, "value": text, "markdown": None} for who, text in result]}
    (found,) = prompts(write(tmp_path / "x.jsonl", row))
    assert found == Prompt("x_0", "Hi", True, history=(("system", "Be long."),), follow_ups=("How are you?",))


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ([("gpt", "Hello")], "the user's first"),
        ([("human", "Hi"), ("human", "there")], "the user's first, then a model's, and so on"),
        ([("system", "x")], "the user's first"),
        ([("human", " ")], "field 'conversations.0.value' is an empty text"),
    ],
)
def test_a_conversation_that_is_none(tmp_path: Path, result: list[tuple[str, str]], says: str) -> None:
    row = {"conversations": [{"from": who, "value": text} for who, text in result]}
    with pytest.raises(UsageError, check=wording) as refused:
        made(write(tmp_path / "x.jsonl", RAW, row))
    assert says in str(refused.value)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_system_message_reaches_the_template(tmp_path: Path, text: str) -> None:
    empty = {"role": "system", "content": text}
    result = [{"from": "system", "value": text}, {"from": "human", "value": "Hi"}]
    path = write(
        tmp_path / "x.jsonl",
        {"messages": [empty, *MESSAGES["messages"]]}, TURNS | {"system": text}, {"conversations": result},
    )  # fmt: skip
    assert [prompt.history[0] for prompt in prompts(path)] == [("system", text)] * 3
    plain = prompts(path, chat=False)
    assert [prompt.text[:5] for prompt in plain] == ["USER:"] * 3


def test_what_may_go_with_a_line(tmp_path: Path) -> None:
    more = {"id": "mine", "category": "a/b", "system": "Be brief."}
    messages = {"messages": [SYSTEM, *MESSAGES["messages"]], "id": 7}
    first, second = prompts(write(tmp_path / "x.jsonl", TURNS | more, messages), history="ar")
    assert (first.id, first.category, first.history) == ("mine", "a/b", (("system", "Be brief."),))
    assert (second.id, second.history[0], second.category) == ("7", ("system", "Be long."), "")
    assert first.forced


def test_the_number_of_a_line_counts_blank_ones_and_ids_may_count_from_nought(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"\n{json.dumps(RAW)}\n\n{json.dumps(TURNS)}\n")
    assert [prompt.id for prompt in prompts(path)] == ["2", "4"]
    assert [prompt.id for prompt in prompts(write(path, RAW | {"id": 0}, RAW | {"id": 1}))] == ["0", "1"]
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert prompts(packed) == prompts(path)


def test_chats_are_plain_text_for_a_model_without_a_template(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", RAW, MESSAGES, TURNS | {"system": "Be brief."})
    raw, chat, turns = prompts(path, chat=False)
    assert (raw.text, raw.stops) == ("Once upon a time", ())
    assert chat.text == "USER: Hi\nASSISTANT: Hello\nUSER: How are you?\nASSISTANT:"
    assert turns.text == "Be brief.\n\nUSER: Name a colour.\nASSISTANT:"
    assert turns.after([" Red."]).text == f"{turns.text} Red.\nUSER: And another.\nASSISTANT:"
    with pytest.raises(UsageError, check=wording):
        prompts(path, chat=False, style="chat")


def test_the_file_is_recorded_by_name_and_hash_without_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", RAW)
    task = made(path)
    task.prompts(chat=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert task.options.model_dump() == {"file": "mine.jsonl", "sha256": digest, "style": "chat", "history": "own"}


def test_another_file_than_the_hash_says_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", RAW)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(prompts(path, sha256=digest)) == 1
    write(path, TURNS)
    with pytest.raises(UsageError, check=wording):
        made(path, sha256=digest)


@pytest.mark.parametrize(
    "row",
    [
        {}, RAW | TURNS, {"prompt": " \n"}, {"prompt": 3}, {"prompt": "\ud800"}, {"turns": []}, {"turns": ["a", ""]},
        {"messages": [MESSAGES["messages"][0], {"role": "assistant", "content": ""}, MESSAGES["messages"][0]]},
        {"turns": "a"}, {"messages": []}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "robot", "content": "x"}]}, {"messages": MESSAGES["messages"][:2]},
        {"messages": [SYSTEM, *MESSAGES["messages"]], "system": "Be brief."},
        {"messages": [*MESSAGES["messages"], SYSTEM, MESSAGES["messages"][0]]},
        RAW | {"system": "Be brief."}, RAW | {"promt": "x"}, RAW | {"id": 1.5}, RAW | {"id": "1"}, [1],
    ],
)  # fmt: skip
def test_a_bad_line_is_named_in_one_line(tmp_path: Path, row: Any) -> None:
    path = write(tmp_path / "x.jsonl", RAW, row)
    with pytest.raises(UsageError, check=wording) as error:
        made(path)
    assert "\n" not in str(error.value)
    assert f"{path} line 2" in str(error.value)
    assert "fetch it" not in str(error.value)
    assert "prompt, messages, turns, conversations, id, category, system" in str(error.value) or row == RAW | {
        "id": "1"
    }


def test_a_misspelt_field_is_named(tmp_path: Path) -> None:
    for row, field in (({"promt": "x"}, "promt"), ({"instruction": "a", "output": "b"}, "instruction")):
        with pytest.raises(UsageError, check=wording) as error:
            made(write(tmp_path / "x.jsonl", row))
        assert f"field '{field}'" in str(error.value)
