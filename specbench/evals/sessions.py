"""Chain several problems of a task into one conversation; each turn is graded like the single problem.

In a conversation the context grows, and so does the text that lookups can draft from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, UsageError, option

_BETWEEN = "+"


class Options(OptionsBase):
    """Options of a task whose problems can be chained."""

    chain: int = option(
        1,
        ge=1,
        le=1000,
        help="problems asked one after the other in one conversation, each after the answers so far; each is scored",
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit ``chain`` from the record if it is 1."""
        written: dict[str, Any] = write(self)
        if self.chain == 1:
            del written["chain"]
        return written


def chained(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Group prompts into conversations of ``count`` turns, in data order; an incomplete last conversation is dropped.

    A chain's id names its problems, as in "gsm8k/24+25+26".

    Args:
        count: problems per conversation; 1 leaves the prompts unchanged.

    Raises:
        UsageError: the task has fewer problems, a prompt is not a chat, or an id cannot be part of a chain's id.
    """
    if count == 1:
        return list(prompts)
    if len(prompts) < count:
        raise UsageError(f"chain={count} needs as many problems, and there are {len(prompts)}; lower it")
    for prompt in prompts:
        if not prompt.chat:
            raise UsageError("chain needs a model with a chat template and a style that uses it; leave chain out")
        if _BETWEEN in prompt.id or prompt.turns > 1:
            raise UsageError(f"prompt '{prompt.id}' cannot be chained; leave chain out")
    whole = range(0, len(prompts) - count + 1, count)
    return [_one(prompts[start : start + count]) for start in whole]


def problem(prompt_id: str, turn: int) -> str:
    """The id of the problem asked in a turn of a chain.

    Args:
        turn: from 1.
    """
    first, *others = prompt_id.split(_BETWEEN)
    if not 1 <= turn <= 1 + len(others):
        raise UsageError(f"'{prompt_id}' has no turn {turn}; the run was made with other data")
    if turn == 1:
        return first
    name = others[turn - 2]
    return name if "/" in name else f"{_folder(first)}{name}"


def _one(prompts: Sequence[Prompt]) -> Prompt:
    first, *others = prompts
    folder = _folder(first.id)
    for other in others:
        alike = replace(other, id=first.id, text=first.text, category=first.category)
        if alike != first:
            raise UsageError(f"prompts '{first.id}' and '{other.id}' are asked in different ways; leave chain out")
        if folder and not _folder(other.id):  # it would be read as an id in the first prompt's folder
            raise UsageError(f"prompt '{other.id}' cannot be chained after '{first.id}'; leave chain out")
    names = [other.id.removeprefix(folder) if _folder(other.id) == folder else other.id for other in others]
    category = first.category if all(other.category == first.category for other in others) else ""
    return replace(
        first,
        id=_BETWEEN.join([first.id, *names]),
        category=category,
        follow_ups=tuple(other.text for other in others),
    )


def _folder(prompt_id: str) -> str:
    return prompt_id[: prompt_id.rfind("/") + 1]
