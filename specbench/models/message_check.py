"""Refuse the messages that a chat template refuses, or leaves out of its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specbench.common import Prompt, UsageError, one_line
from specbench.models.chat import TemplateFault

_Messages = Sequence[Mapping[str, Any]]


def check_messages(prompt: Prompt, messages: _Messages, render: Callable[..., str], model: str) -> None:
    """Render the messages of a prompt with a mark in place of each text, and look for all marks.

    ``render`` takes messages and ``tools``. A template may rewrite texts, so the texts themselves could not be found.

    Raises:
        UsageError: the template raises, or a mark is missing; the error names the message, its role and the field.
    """
    advice = f"choose another model, {prompt.otherwise or 'or change the conversation'}"
    who = f"cannot use prompt {one_line(prompt.id, 80)} with the chat template of {model}"
    marks: dict[str, str] = {}

    def mark(what: str) -> str:
        marks[name := f"mark{len(marks):06d}x"] = what
        return name

    tools = [_marked_tool(tool, mark) for tool in prompt.tools]
    messages = [_marked(message, f"message {at}", mark) for at, message in enumerate(messages, 1)]
    more = {"tools": tools} if tools else {}
    try:
        text = render(messages, **more)
    except TemplateFault as fault:
        at = _refused(messages, lambda some: render(some, **more))
        cause = _described(messages[at - 1], f"message {at}")
        raise UsageError(f"{who}: it refuses {cause}: {fault}; {advice}") from fault
    if dropped := next((what for name, what in marks.items() if name not in text), None):
        raise UsageError(f"{who}: it leaves out {dropped}; {advice}")


def _marked(message: Mapping[str, Any], where: str, mark: Callable[[str], str]) -> dict[str, Any]:
    found = dict(message)
    if found.get("content"):
        found["content"] = mark(f"the content of {_described(message, where)}")
    if calls := found.get("tool_calls"):
        found["tool_calls"] = [{**call, "function": dict(_call(call, message, where, mark))} for call in calls]
    return found


def _call(
    call: Mapping[str, Any], message: Mapping[str, Any], where: str, mark: Callable[[str], str]
) -> Iterator[tuple[str, Any]]:
    what = f"the tool_calls of {_described(message, where)}"
    for field, value in call["function"].items():
        if field == "name":
            value = mark(what)
        elif isinstance(value, Mapping):
            value = {key: mark(what) for key in value}
        yield field, value


def _marked_tool(tool: Mapping[str, Any], mark: Callable[[str], str]) -> dict[str, Any]:
    function = tool.get("function")
    if isinstance(function, Mapping):
        return {**tool, "function": _marked_tool(function, mark)}
    return {**tool, "name": mark(f"the tool {one_line(str(tool.get('name')), 40)}")}


def _described(message: Mapping[str, Any], where: str) -> str:
    return f"{where} (role {message.get('role')}{', tool_calls' if message.get('tool_calls') else ''})"


def _refused(messages: _Messages, render: Callable[[_Messages], str]) -> int:
    """The number of the first message with which, and with all later ones, the template raises."""
    for count in range(len(messages) - 1, 0, -1):
        try:
            render(messages[:count])
        except TemplateFault:
            continue
        return count + 1
    return 1
