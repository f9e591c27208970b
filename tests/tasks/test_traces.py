"""Task traces: the forms of recorded conversations, and what chat templates make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.models.loader import load
from specbench.tasks.traces.task import Options, Task

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]
CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "and two?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "assistant", "content": "Three."},
    {"role": "user", "content": "Thanks"},
]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def prompts(path: Path, **options: Any) -> list[Prompt]:
    return Task(Options(file=str(path), **options)).prompts(chat=True)


def asked(prompt: Prompt) -> list[list[tuple[str, str]]]:
    """Role and text of each turn's messages."""
    return [[(m["role"], m["content"]) for m in each.messages] for each in (prompt, *prompt.recorded)]


SYSTEM, USER, CALLS, RESULT = ("system", "Be brief."), ("user", "One\nand two?"), ("assistant", ""), ("tool", "3")
THREE, THANKS = ("assistant", "Three."), ("user", "Thanks")
TURNS = [[SYSTEM, USER], [SYSTEM, USER, CALLS, RESULT], [SYSTEM, USER, CALLS, RESULT, THREE, THANKS]]


def test_each_recorded_answer_is_a_turn(tmp_path: Path) -> None:
    row = {"messages": CHAT, "tools": TOOLS, "id": "mine", "category": "a/b", "model": "m", "temperature": 0.2}
    (prompt,) = prompts(write(tmp_path / "x.jsonl", row))
    assert asked(prompt) == TURNS
    assert (prompt.id, prompt.turns, prompt.category, list(prompt.tools)) == ("mine", 3, "a/b", TOOLS)
    assert [prompt.after(["x"] * turn).id for turn in range(3)] == ["mine", "mine, turn 2", "mine, turn 3"]
    call, result = prompt.recorded[0].messages[2:]
    assert call["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}
    assert (result["tool_call_id"], result["name"]) == ("c1", "add")


# The same conversation, in the forms of aiperf and guidellm: a request for each turn.
REQUESTS = [CHAT[:2], CHAT[:4], CHAT]
PARTS = [
    {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
    {"role": "user", "parts": [{"type": "text", "content": "One"}, {"type": "text", "content": "and two?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "3"}]},
    {"role": "assistant", "parts": [{"type": "text", "content": "Three."}]},
    {"role": "user", "parts": [{"type": "text", "content": "Thanks"}]},
]


def span(messages: Any, **more: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}
    return {"trace_id": "t", "start_time": 1.5, "attributes": {**attributes, **more}}


SPANS = [span(json.dumps(PARTS[:end])) for end in (2, 4, 6)]
OTHERS: list[dict[str, Any]] = [
    {"attributes": {"gen_ai.operation.name": "execute_tool"}},
    {**span(PARTS[:2]), "status": {"code": "ERROR"}},
]
FORMS: dict[str, list[Any]] = {
    "aiperf mooncake_trace, history": [
        {"session_id": "t", "messages": each, "tools": TOOLS, "timestamp": at} for at, each in enumerate(REQUESTS)
    ],
    "aiperf mooncake_trace, payload": [{"session_id": "t", "payload": {"messages": each}} for each in REQUESTS],
    "aiperf inputs.json": [{"data": [{"session_id": "t", "payloads": [{"messages": each} for each in REQUESTS]}]}],
    "guidellm otel, a trace per line": [{"trace_id": "t", "spans": [*OTHERS, *SPANS]}],
    "guidellm otel, a span per line": SPANS,
    "guidellm otel, messages as the API has them": [{"trace_id": "t", "spans": [span(each) for each in REQUESTS]}],
    "ShareGPT": [
        {
            "id": "t",
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": "One\nand two?"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": 2}}'},
                {"from": "observation", "value": "3"},
                {"from": "gpt", "value": "Three."},
                {"from": "human", "value": "Thanks"},
            ],
            "tools": json.dumps(TOOLS),
        }
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_makes_the_same_turns(tmp_path: Path, form: str) -> None:
    (prompt,) = prompts(write(tmp_path / "x.jsonl", *FORMS[form]))
    assert (prompt.id, asked(prompt)) == ("t", TURNS)
    assert prompt.recorded[1].messages[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1, "b": 2}}


def test_one_json_object_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps(FORMS["aiperf inputs.json"][0]))
    assert asked(prompts(path)[0]) == TURNS
    path.write_text(json.dumps([{"messages": CHAT}, {"messages": CHAT}]))
    assert [prompt.id for prompt in prompts(path)] == ["1", "2"]


PARTS_OF_SYSTEM = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief.", "cache_control": {"type": "x"}}]


@pytest.mark.parametrize("system", ["Be\nbrief.", PARTS_OF_SYSTEM])
@pytest.mark.parametrize("form", ["messages", "payload", "payloads", "data"])
def test_a_system_field_is_the_first_message(tmp_path: Path, form: str, system: Any) -> None:
    request = {"system": system, "messages": CHAT[1:2]}
    many = form in ("payloads", "data")
    row = request if form == "messages" else {form: [request] if many else request}
    (prompt,) = prompts(write(tmp_path / "x.jsonl", row))
    assert asked(prompt) == [[("system", "Be\nbrief."), USER]]


def test_zero_is_an_id(tmp_path: Path) -> None:
    rows = [{"session_id": 0, "messages": each} for each in REQUESTS]
    (prompt,) = prompts(write(tmp_path / "x.jsonl", *rows))
    assert (prompt.id, prompt.turns) == ("0", 3)
    assert prompts(write(tmp_path / "x.jsonl", {"id": 0, "messages": CHAT}))[0].id == "0"


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}, "hash_ids"),
        ({"timestamp": 1.5, "input_length": 256, "output_length": 128}, "input_length"),
        ({"id": "w", "block_size": 64, "requests": [{"t": 0, "in": 5, "out": 3, "hash_ids": [1]}]}, "requests"),
        ({"session_id": "s", "turns": [{"text": "Hi"}, {"text": "And?"}]}, "turns"),
        ({"session_id": "s", "message_mode": "delta", "messages": CHAT[:2]}, "message_mode"),
        ({"text_input": "Hi", "output_length": 4}, "text_input"),
        ({"prompt": "Hi"}, "prompt"),
        ({"trace_id": "t", "spans": [{"attributes": {"gen_ai.operation.name": "chat"}}]}, "gen_ai.input.messages"),
        ({"massages": CHAT}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "x", "audio": {"id": 1}}]}, "audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]}, "f"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "function.name"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "user"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "from"),
        ({"conversations": [{"from": "function_call", "value": "add(1)"}]}, "conversations.0.value"),
        ({"messages": CHAT, "tools": "none"}, "tools"),
        ({"messages": CHAT, "tools": DEEP}, "line 1.*tools"),
        ({"conversations": [{"from": "function_call", "value": DEEP}]}, r"line 1.*conversations.0.value"),
        ({"conversations": [{"from": ["human"], "value": "x"}]}, "line 1.*from"),
        ({"spans": [span(DEEP)]}, "line 1.*gen_ai.input.messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": ["c1"]}]}]},
            "line 1.*id of tool call 'add'",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]}, "f"),
        ({"data": []}, "line 1.*data"),
        ({"data": [{"data": [{"messages": CHAT}]}]}, "line 1.*data"),
        ({"payload": {"messages": None}}, "line 1.*messages"),
        ({"payloads": [{"messages": CHAT[:1]}]}, "user message"),
        ({"messages": CHAT, "system": {"text": "Be brief."}}, "system"),
        ({"messages": CHAT, "system": [{"type": "image"}]}, "image"),
        ({"payloads": [{"messages": CHAT}], "system": "Be brief."}, "system"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(tmp_path: Path, row: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=field, check=wording):
        prompts(write(tmp_path / "x.jsonl", row))


def test_files_of_nothing_or_of_equal_ids_are_refused(tmp_path: Path) -> None:
    names: list[list[dict[str, Any]]] = [
        [],
        [{"id": "a"}, {"id": "a"}],
        [{"session_id": "a"}, {"id": "a"}],
        [{"id": "a"}, {"session_id": "a"}],
        [{"id": "2"}, {}],
    ]
    for rows in names:
        with pytest.raises(UsageError, check=wording):
            prompts(write(tmp_path / "x.jsonl", *({**row, "messages": CHAT} for row in rows)))
    with pytest.raises(UsageError, match="chat template", check=wording):
        Task(Options()).prompts(chat=False)


# ------------------------------------------------------------------ chat templates, written like those of some families


def template(name: str) -> str:
    return (Path(__file__).parents[1] / "small_data" / "templates" / f"{name}.jinja").read_text().strip()


def model(folder: Path, text: str) -> Any:
    save(folder, byte_tokenizer(template=text))
    return load(str(folder))


def pieces(prompt: Prompt) -> list[str]:
    """Texts of the messages in order, calls included, as a template that writes JSON has them too."""
    found = []
    for message in prompt.messages:
        found += [message["content"]] if message["content"] else []
        for call in message.get("tool_calls", ()):
            found += [call["function"]["name"], *map(str, call["function"]["arguments"].values())]
    return found


@pytest.mark.parametrize("family", ["qwen3", "llama31", "hermes"])
def test_ten_turns_with_tools_keep_every_piece_in_order(tmp_path: Path, family: str) -> None:
    conversation = Task(Options()).prompts(chat=True)[0]
    assert conversation.turns == 10
    loaded = model(tmp_path, template(family))
    for turn in range(10):
        prompt = conversation.after(["not this"] * turn)
        text, at = loaded.decode(loaded.encode(prompt)), 0
        assert "not this" not in text
        for tool in prompt.tools:
            assert json.dumps(tool["function"]["description"]) in text
        for piece in pieces(prompt):
            forms = {piece.strip(), json.dumps(piece)[1:-1], json.dumps(piece, ensure_ascii=False)[1:-1]}
            found = [text.find(form, at) for form in forms]
            assert max(found) >= 0, (turn, piece)
            at = min(place for place in found if place >= 0)
        assert len([m for m in prompt.messages if m["role"] == "assistant"]) == turn


TEXT: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
BOTH = [
    *TEXT,
    {"role": "user", "content": "Add"},
    {"role": "assistant", "content": "So:", "tool_calls": [CALL]},
    CHAT[3],
]


TWO_CALLS: dict[str, Any] = {**CHAT[2], "tool_calls": [CALL, CALL]}
LOST: list[tuple[str, dict[str, Any], list[str]]] = [
    ("chatml", {"messages": CHAT}, ["turn 2", "leaves out", "tool_calls", "message 3", "role assistant"]),
    ("chatml", {"messages": TEXT, "tools": TOOLS}, ["leaves out", "tool add"]),
    ("llama31", {"messages": BOTH}, ["turn 3", "leaves out the content of message 4", "role assistant"]),
    ("llama31", {"messages": [CHAT[1], TWO_CALLS, CHAT[3]]}, ["turn 2", "refuses message 2", "tool_calls"]),
    ("hermes", {"messages": [TEXT[0], {"role": "tool", "content": "3"}]}, ["refuses message 2", "role tool", "'name'"]),
    ("no tools", {"messages": CHAT}, ["turn 2", "leaves out the content of message 4", "role tool"]),
    ("alternating", {"messages": CHAT[:2]}, ["refuses message 1", "role system", "alternate"]),
    ("alternating", {"messages": [*TEXT, TEXT[0], TEXT[0]]}, ["turn 2", "refuses message 4", "role user"]),
]


@pytest.mark.parametrize(("family", "row", "named"), LOST)
def test_what_a_template_cannot_write_is_named(tmp_path: Path, family: str, row: Any, named: list[str]) -> None:
    silent = family == "no tools"  # as Qwen3's, but it skips the results of tools
    text = template("qwen3").replace("m.role == 'tool'", "false") if silent else template(family)
    loaded = model(tmp_path / "model", text)
    (prompt,) = prompts(write(tmp_path / "x.jsonl", {"id": "talk", **row}))
    with pytest.raises(UsageError, match="prompt talk", check=wording) as refused:
        _ = [loaded.encode(prompt.after([""] * turn)) for turn in range(prompt.turns)]
    assert [word for word in named if word not in str(refused.value)] == []


def test_tools_as_texts_suit_a_template_without_tools(tmp_path: Path) -> None:
    loaded = model(tmp_path / "model", template("chatml"))
    row = {"messages": CHAT, "tools": TOOLS}
    (prompt,) = prompts(write(tmp_path / "x.jsonl", row), tools="text")
    last = prompt.after(["", ""])
    assert [message["role"] for message in last.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    text, at = loaded.decode(loaded.encode(last)), 0
    for piece in (
        json.dumps(TOOLS[0]),
        "Be brief.",
        "and two?",
        '<tool_call>\n{"name": "add"',
        '"b": 2',
        "3\n</tool_",
        "Thanks",
    ):
        assert (at := text.find(piece, at)) >= 0, piece
