"""Recorded conversations: each recorded answer is generated anew, after everything that was recorded before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specbench.common import Prompt, UsageError, option
from specbench.evals import Message, OwnFileOptions, Unscored, with_hash
from specbench.tasks.traces.rows import Context, Transcript, read, with_names

_SAMPLE = Path(__file__).with_name("sample.jsonl")


class Options(OwnFileOptions):
    """Options of the task."""

    tools: Literal["template", "text"] = option(
        "template",
        help="what writes tools, tool calls and their results: the chat template, or texts with <tool_call> tags",
    )


class Task(Unscored):
    """The conversations of one file; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: ignored; ``options.file`` names the file, by default the sample that ships with the task."""
        path = Path(options.file or _SAMPLE)
        self.options = with_hash(options.model_copy(update={"file": str(path)}))
        self._transcripts = read(path)

    def prompts(self, chat: bool) -> list[Prompt]:
        """All conversations in file order."""
        if not chat:
            raise UsageError(
                "cannot replay conversations without a chat template, which this model lacks; choose another model"
            )
        self.options = self.options.model_copy(update={"file": Path(self.options.file).name})
        return [self._prompt(name, transcript) for name, transcript in self._transcripts.items()]

    def _prompt(self, name: str, transcript: Transcript) -> Prompt:
        turns = [self._turn(context, transcript.category) for context in transcript.turns]
        first, *later = [replace(turn, id=f"{name}, turn {at}") for at, turn in enumerate(turns, 1)]
        return replace(first, id=name, recorded=tuple(later))

    def _turn(self, context: Context, category: str) -> Prompt:
        if self.options.tools == "text":
            messages, tools = as_texts(context.messages, context.tools), []
        else:
            messages, tools = [message.written() for message in with_names(context.messages)], context.tools
        last = messages[-1].get("content") or ""
        return Prompt(
            "",
            last,
            True,
            messages=tuple(messages),
            tools=tuple(tools),
            otherwise="change the conversation, or add --task-set traces.tools=text"
            if tools or any(map(_calls, messages))
            else "",
            category=category,
        )


def as_texts(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of system, user and assistant only, with tools as Hermes models write them: JSON between tags."""
    found: list[dict[str, Any]] = []
    if tools:
        listed = "\n".join(_json(tool) for tool in tools)
        found.append({"role": "system", "content": f"You may call these functions:\n<tools>\n{listed}\n</tools>"})
    for message in messages:
        role, texts = message.role, [message.content or ""]
        for call in message.tool_calls or ():
            texts.append(f"<tool_call>\n{_json(call['function'])}\n</tool_call>")
        if role == "tool":
            role, texts = "user", [f"<tool_response>\n{message.content or ''}\n</tool_response>"]
        text = "\n".join(filter(None, texts))
        if found and found[-1]["role"] == role != "assistant" and (role == "system" or message.role == "tool"):
            found[-1]["content"] += f"\n\n{text}" if role == "system" else f"\n{text}"
        else:
            found.append({"role": role, "content": text})
    return found


def _calls(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or "tool_calls" in message


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
