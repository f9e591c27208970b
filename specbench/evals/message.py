"""A message of a chat as the OpenAI API records it, in the form that chat templates take."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specbench.common import Turn, UsageError, parse_json


class Message(BaseModel):
    """A turn of a chat; the optional fields are those of tool calls and their results.

    Read from the API's form: text parts become one text, arguments written as JSON become an object, ``developer`` is
    ``system``, ``reasoning`` is ``reasoning_content``, and empty fields are left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(None, min_length=1)
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_api(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        message = {_NAMES.get(key, key): value for key, value in raw.items() if value not in (None, [], {})}
        if message.get("role") == "developer":
            message["role"] = "system"
        if isinstance(parts := message.get("content"), list):
            message["content"] = _joined(parts)
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [_with_arguments(call) for call in calls]
        return message

    @property
    def plain(self) -> bool:
        """Whether it has nothing but a text."""
        return self.role != "tool" and self.model_fields_set <= {"role", "content"}

    def written(self) -> dict[str, Any]:
        """The message as chat templates take it; many read ``content`` even where a message only calls tools."""
        return {"content": "", **self.model_dump(exclude_unset=True, exclude_none=True)}


_NAMES = {"reasoning": "reasoning_content"}


def _joined(parts: list[Any]) -> str:
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"content has a part of type '{kind}', and only texts can be asked; remove the part")
    return "\n".join(part["text"] for part in parts)


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("tool_calls has a call without function.name; add it")
    if not isinstance(call.get("id"), str | None):
        raise ValueError(f"the id of tool call '{function['name']}' is not a text; correct it")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments or "{}", "arguments", "correct them", nan=True)
        except UsageError:
            arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of tool call '{function['name']}' are not a JSON object; correct them")
    return {**call, "function": {**function, "arguments": arguments}}


class ShareGptTurn(BaseModel):
    """A turn of a conversation as ShareGPT's files have it; a speaker with another name is a model."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    speaker: str = Field(alias="from")
    value: str

    @property
    def turn(self) -> Turn:
        """The turn with its role in a chat template."""
        if self.speaker == "system":
            return "system", self.value
        return "user" if self.speaker in ("human", "user") else "assistant", self.value
