"""The user's own prompts: a JSONL file of raw prompts, chats, and conversations to be answered turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specbench.common import Prompt, Turn, UsageError, option
from specbench.evals import (
    STYLE_HELP,
    Message,
    OwnFileOptions,
    ShareGptTurn,
    Style,
    Unscored,
    build_dialogue,
    choose_style,
    read_rows,
    with_hash,
)

_FORMS = ("prompt", "messages", "turns", "conversations")


class Options(OwnFileOptions):
    """Options of the task."""

    style: Style = option("auto", help=f"prompt style of chats: {STYLE_HELP}")
    history: Literal["own", "ar"] = option(
        "own",
        help="answers in the history of later turns: the method's own, or AR's, so that all methods get the same input",
    )


class Row(BaseModel):
    """A line of the file, in one of the forms."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: str | None = Field(None, min_length=1)
    messages: list[Message] | None = Field(None, min_length=1)
    turns: list[str] | None = Field(None, min_length=1)
    conversations: list[ShareGptTurn] | None = Field(None, min_length=1)
    id: str | int | None = None
    category: str = ""
    system: str | None = None
    tools: list[dict[str, Any]] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> Row:
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {' and '.join(given) or 'none'} of {', '.join(_FORMS)}; write exactly one of them")
        if self.tools is not None and self.messages is None:
            raise ValueError("'tools' goes with messages")
        if self.prompt is not None and self.system is not None:
            raise ValueError("'system' goes with messages or turns; write it into the raw prompt")
        if self.conversations is not None:
            opens = self.conversations[0].speaker == "system"
            if opens and self.system is not None:
                raise ValueError("one system message at most, and it comes first")
            speakers = [turn.turn[0] == "user" for turn in self.conversations[opens:]]
            if not speakers or speakers != [at % 2 == 0 for at in range(len(speakers))]:
                raise ValueError("'conversations' is one of turns, the user's first, then a model's, and so on")
        for field, text in _texts(self):
            if not text.strip():
                raise ValueError(f"field '{field}' is an empty text; write it or leave the turn out")
        if self.messages is not None:
            if self.messages[-1].role not in ("user", "tool"):
                raise ValueError(
                    f"the last message is the {self.messages[-1].role}'s; it must be the user's or a tool's"
                )
            if any(message.role == "system" for message in self.messages[self.system is None :]):
                raise ValueError("one system message at most, and it comes first")
        return self

    @property
    def asked(self) -> list[str]:
        """User turns to be answered one by one. Published answers of another model are not used."""
        if self.conversations is not None:
            return [turn.value for turn in self.conversations if turn.turn[0] == "user"]
        return self.turns or []

    @property
    def opening(self) -> str | None:
        """The system turn; for ``messages``, only a separate ``system`` field."""
        first = self.conversations[0] if self.conversations else None
        return first.value if first and first.speaker == "system" else self.system


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    """(field, text) of every text that must not be empty.

    A system message may be empty: many chat templates then leave out their default system message.
    """
    if row.prompt is not None:
        yield "prompt", row.prompt
    yield from ((f"turns.{number}", text) for number, text in enumerate(row.turns or ()))
    for number, turn in enumerate(row.conversations or ()):
        if turn.turn[0] == "user":
            yield f"conversations.{number}.value", turn.value
    for number, message in enumerate(row.messages or ()):
        if message.role not in ("system", "tool") and not message.tool_calls:
            yield f"messages.{number}.content", message.content or ""


class Task(Unscored):
    """The prompts of one file; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: ignored; ``options.file`` names the file."""
        if not options.file:
            raise UsageError("task 'prompts' needs a file: --data-file my.jsonl")
        self.options = with_hash(options)
        self._rows = load(Path(options.file))

    def prompts(self, chat: bool) -> list[Prompt]:
        """All prompts in file order."""
        style = choose_style(self.options.style, chat, "prompts")
        self.options = self.options.model_copy(update={"style": style, "file": Path(self.options.file).name})
        return [self._prompt(name, row, style) for name, row in self._rows.items()]

    def _prompt(self, name: str, row: Row, style: Style) -> Prompt:
        if row.prompt is not None:
            return Prompt(name, row.prompt, False, category=row.category)
        if row.tools is not None or not all(message.plain for message in row.messages or ()):
            return self._with_tools(name, row, style)
        history: list[Turn] = [("system", row.opening)] if row.opening is not None else []
        said = [(message.role, message.content or "") for message in row.messages or () if message.role != "tool"]
        history += said[:-1]
        turns = row.asked or [said[-1][1]]
        forced = self.options.history == "ar"
        return build_dialogue(name, turns, style, history=history, forced=forced, category=row.category)

    def _with_tools(self, name: str, row: Row, style: Style) -> Prompt:
        """A chat with tools or with messages that are more than texts, which only a chat template can write."""
        if style != "chat":
            raise UsageError(
                f"cannot write prompt {name} as plain text: it has tools or a tool's messages; choose a model with a "
                "chat template, or remove it"
            )
        assert row.messages is not None
        before = [{"role": "system", "content": row.system}] if row.system is not None else []
        messages = [*before, *(message.written() for message in row.messages)]
        return Prompt(
            name,
            row.messages[-1].content or "",
            True,
            messages=tuple(messages),
            tools=tuple(row.tools or ()),
            category=row.category,
        )


def load(path: Path) -> dict[str, Row]:
    """The lines of the file by id; a line without an id gets its line number."""
    rows: dict[str, Row] = {}
    lines: dict[str, int] = {}
    allowed = f"correct it; allowed fields: {', '.join(Row.model_fields)}"
    for number, row in read_rows(path, Row, own=allowed):
        name = str(number if row.id is None else row.id)
        if name in rows:
            raise UsageError(f"{path} line {number}: its id '{name}' is that of line {lines[name]}; give it another")
        rows[name], lines[name] = row, number
    if not rows:
        raise UsageError(f'{path} has no prompts; write lines such as {{"prompt": "Once upon a time"}}')
    return rows
