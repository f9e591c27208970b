"""Conversations for any model: through its chat template, or as plain text if it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from specbench.common import Prompt, Turn, UsageError

Style = Literal["auto", "chat", "plain"]
STYLE_HELP = "the model's chat template, or plain USER:/ASSISTANT: text; auto: chat when the model has a template"

# A model that does not stop writes the user's next turn; the answer ends before it.
PLAIN_STOPS = ("\nUSER:",)


def choose_style(style: Style, chat: bool, task: str) -> Style:
    """Resolve ``auto``; any other style is returned as it is."""
    if style == "auto":
        return "chat" if chat else "plain"
    if style == "chat" and not chat:
        raise UsageError(
            f"style=chat needs a model with a chat template; this one has none, so use --task-set {task}.style=plain"
        )
    return style


def build_dialogue(
    prompt_id: str,
    turns: Sequence[str],
    style: Style,
    *,
    history: Sequence[Turn] = (),
    forced: bool = False,
    category: str = "",
    temperature: float | None = None,
) -> Prompt:
    """A prompt whose user turns are answered one by one.

    Plain text is "USER: question", a new line and "ASSISTANT:" for each turn. A system prompt that is not empty comes
    before them, followed by an empty line.

    Args:
        turns: the user turns, at least one.
        history: turns before the first user turn, such as a system prompt.
    """
    if style == "chat":
        return Prompt(
            prompt_id,
            turns[0],
            True,
            history=tuple(history),
            follow_ups=tuple(turns[1:]),
            forced=forced,
            category=category,
            temperature=temperature,
        )
    before = "".join(_PLAIN[role].format(text) for role, text in history if text.strip() or role != "system")
    asked = [_PLAIN["user"].format(text) + "ASSISTANT:" for text in turns]
    return Prompt(
        prompt_id,
        before + asked[0],
        False,
        stops=PLAIN_STOPS,
        follow_ups=tuple(f"\n{text}" for text in asked[1:]),
        forced=forced,
        category=category,
        temperature=temperature,
    )


_PLAIN = {"system": "{}\n\n", "user": "USER: {}\n", "assistant": "ASSISTANT: {}\n"}
