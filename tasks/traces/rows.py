"""Read recorded conversations in the forms in which they are published: the messages before each recorded answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specbench.common import UsageError, parse_json
from specbench.evals import Message, read_rows

FORMS = "messages, payload, payloads, conversations, spans"

# guidellm's GenAI spans: other operations are no requests to a model.
_OTHER_SPANS = ("invoke_agent", "execute_tool", "embeddings")
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR")

_SPEAKERS = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "model": "assistant", "function_call": "assistant", "tool": "tool",
    "observation": "tool", "function_response": "tool",
}  # fmt: skip

_ANSWERS = "the recorded answers are missing; record them, or use --task prompts, where the model answers turn by turn"
_TEXTS = "it has lengths or hash ids and no texts; record the messages"
# A field -> why a record with it, and with none of FORMS, cannot be replayed.
_REFUSED = {
    "hash_ids": f"'hash_ids' is a field of Mooncake's traces (guidellm, aiperf): {_TEXTS}",
    "requests": f"'requests' is a field of WEKA's traces (guidellm, aiperf): {_TEXTS}",
    "input_length": f"'input_length' is a field of guidellm's and aiperf's synthetic traces: {_TEXTS}",
    "turns": f"'turns' is a field of aiperf's multi_turn and dag_jsonl files: {_ANSWERS}",
    "text_input": "'text_input' is a prompt of its own (aiperf); use --task prompts with {\"prompt\": …}",
    "prompt": "'prompt' is a prompt of its own; use --task prompts",
}


class Context(BaseModel):
    """A request to a model: the messages before an answer, and the tools."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    messages: list[Message] = Field(min_length=1)
    tools: list[dict[str, Any]] = []

    @model_validator(mode="before")
    @classmethod
    def _from_request(cls, raw: Any) -> Any:
        return _with_system(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _asks(self) -> Context:
        if _asked(self.messages) == len(self.messages):
            raise ValueError("'messages' has no user message; add one")
        return self


class Row(BaseModel):
    """A record of the file. Other fields, such as the sampling parameters of a logged request, are ignored.

    Attributes:
        session: what records of one conversation have in common, if each of them is one turn.
        payloads: whole requests, one for each turn.
        data: records in one object, as in aiperf's inputs.json.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str | int | None = None
    session: str | int | None = None
    category: str = ""
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] = []
    payloads: list[Context] | None = Field(None, min_length=1)
    data: list[Row] = Field([], min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_any_form(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        row = raw | raw["payload"] if isinstance(raw.get("payload"), dict) else raw
        row = {key: value for key, value in row.items() if value not in (None, "") and key != "session"}
        if isinstance(row.get("tools"), str):
            row["tools"] = _parsed(row["tools"], "tools")
        if row.get("message_mode") == "delta":
            raise ValueError(f"'message_mode' is delta (aiperf): {_ANSWERS}")
        if "attributes" in row:
            row["spans"] = [raw]
        if isinstance(row.get("spans"), list):
            row["payloads"] = _of_spans(row["spans"])
            row["session"] = row.get("trace_id")
        elif "session_id" in row:
            row["session"] = row["session_id"]
        if isinstance(row.get("conversations"), list):
            row["messages"] = [_of_sharegpt(turn, at) for at, turn in enumerate(row["conversations"])]
        if not any(field in row for field in ("messages", "payloads", "data")):
            raise ValueError(next((why for field, why in _REFUSED.items() if field in row), f"has none of {FORMS}"))
        if isinstance(row.get("data"), list) and any(isinstance(each, dict) and "data" in each for each in row["data"]):
            raise ValueError("'data' has a record with 'data' of its own; write its records into the outer 'data'")
        if "system" in row and "messages" not in row:
            raise ValueError("'system' is outside the requests; write it into each of them")
        return _with_system(row)

    def contexts(self, whole: bool) -> list[Context]:
        """The contexts of its turns. ``whole``: the record is one turn of a conversation with several records."""
        if self.payloads is not None:
            return self.payloads
        messages = self.messages or []
        ends = [at for at, message in enumerate(messages) if message.role == "assistant" and not whole]
        if whole or messages[-1].role != "assistant":
            ends.append(len(messages))
        asked = _asked(messages)
        return [Context(messages=messages[:end], tools=self.tools) for end in ends if end > asked]


def with_names(messages: Sequence[Message]) -> list[Message]:
    """The messages, with each tool result named after the function that was called, as some templates require."""
    calls = {call.get("id"): call["function"]["name"] for message in messages for call in message.tool_calls or ()}
    names = [message.name or calls.get(message.tool_call_id) for message in messages]
    return [
        message.model_copy(update={"name": name}) if message.role == "tool" and name else message
        for message, name in zip(messages, names, strict=True)
    ]


class Transcript(BaseModel):
    """A recorded conversation; ``turns`` has the context of each answer."""

    category: str
    turns: list[Context]


def read(path: Path) -> dict[str, Transcript]:
    """The conversations of a file by id; records of one session are its turns, in the order of the file."""
    found: dict[str, list[tuple[int, Row]]] = {}
    for number, top in read_rows(path, Row, own="see specbench list traces for the forms"):
        for at, row in enumerate(top.data or [top], 1):
            given = row.id if row.session is None else row.session
            name = str(given if given is not None else f"{number}.{at}" if top.data else number)
            earlier = found.setdefault(name, [])
            if earlier and (row.session is None or earlier[0][1].session is None):
                its, new = ("number", "an id") if given is None else ("id", "another")
                raise UsageError(
                    f"{path} line {number}: its {its} '{name}' is the id of line {earlier[0][0]}; give it {new}"
                )
            earlier.append((number, row))
    transcripts = {}
    for name, rows in found.items():
        number, first = rows[0]
        turns = [context for _, row in rows for context in row.contexts(whole=len(rows) > 1)]
        if not turns:
            raise UsageError(f"cannot replay {path} line {number}: it has no user message before an answer; add one")
        transcripts[name] = Transcript(category=first.category, turns=turns)
    if not transcripts:
        raise UsageError(f'{path} has no conversations; write lines such as {{"messages": [...]}}')
    return transcripts


def _parsed(text: Any, field: str) -> Any:
    try:
        return parse_json(text, f"'{field}'", "correct it", nan=True) if isinstance(text, str) else text
    except UsageError as error:
        raise ValueError(str(error)) from None


def _asked(messages: Sequence[Message]) -> int:
    """Index of the first message that asks for an answer; the number of messages if there is none."""
    return next((at for at, message in enumerate(messages) if message.role in ("user", "tool")), len(messages))


def _with_system(request: dict[str, Any]) -> dict[str, Any]:
    """The request with its ``system``, as in Anthropic's API, as the first message."""
    system, messages = request.get("system"), request.get("messages")
    if system is None or not isinstance(messages, list):
        return request
    if not isinstance(system, str | list):
        raise ValueError("'system' is neither a text nor a list of text parts; correct it")
    return request | {"messages": [{"role": "system", "content": system}, *messages]}


def _of_sharegpt(turn: Any, at: int) -> dict[str, Any]:
    """A message of a turn in ShareGPT's format, with the speakers of LLaMA-Factory's function calls."""
    speaker, value = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
    if not isinstance(speaker, str) or speaker not in _SPEAKERS or not isinstance(value, str):
        raise ValueError(f"conversations.{at}: a turn needs 'value' and 'from', one of {', '.join(_SPEAKERS)}")
    if speaker != "function_call":
        return {"role": _SPEAKERS[speaker], "content": value}
    calls = _parsed(value, f"conversations.{at}.value")
    return {
        "role": "assistant",
        "tool_calls": [
            {"type": "function", "function": call} for call in (calls if isinstance(calls, list) else [calls])
        ],
    }


def _of_spans(spans: list[Any]) -> list[dict[str, Any]]:
    """The requests among OpenTelemetry's GenAI spans, as guidellm reads them: each holds the whole conversation."""
    found = []
    for span in spans:
        attributes = span.get("attributes") if isinstance(span, dict) else None
        status = span.get("status") if isinstance(span, dict) else None
        if not isinstance(attributes, dict) or (isinstance(status, dict) and status.get("code") in _FAILED):
            continue
        if attributes.get("gen_ai.operation.name") in _OTHER_SPANS:
            continue
        recorded = _parsed(attributes.get("gen_ai.input.messages"), "gen_ai.input.messages")
        if not isinstance(recorded, list):
            raise ValueError("a span has no gen_ai.input.messages, so no texts; record them (content capture)")
        tools = _parsed(attributes.get("gen_ai.tool.definitions"), "gen_ai.tool.definitions")
        found.append({"messages": [each for item in recorded for each in _of_parts(item)], "tools": tools or []})
    return found


def _of_parts(item: Any) -> list[Any]:
    """The messages of a GenAI message, whose parts are texts, tool calls and their results."""
    if not isinstance(item, Mapping) or not isinstance(item.get("parts"), list):
        return [item]
    message: dict[str, Any] = {"role": item.get("role"), "content": [], "tool_calls": []}
    results = []
    for part in item["parts"]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            message["content"].append({"type": "text", "text": part.get("content", part.get("text"))})
        elif kind == "reasoning":
            message["reasoning_content"] = part.get("content")
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments") or {}}
            message["tool_calls"].append({"id": part.get("id"), "type": "function", "function": function})
        elif kind in ("tool_call_response", "tool_result"):
            result = next((part[key] for key in ("result", "response", "content") if key in part), "")
            content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": content})
        else:
            raise ValueError(f"a message has a part of type '{kind}', and only texts and tool calls can be asked")
    said = message["content"] or message["tool_calls"]
    return [*([message] if said else []), *results]
