"""Chained problems: several of a task in one conversation, each turn scored as the problem by itself is.

A session shows what a single problem does not: the context grows, and text to draft from gathers.
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
        """Without a chain a run records what it always did."""
        written: dict[str, Any] = write(self)
        if self.chain == 1:
            del written["chain"]
        return written


def chained(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Prompts of so many turns each, in data order; what is left at the end and fills no conversation is left out.

    A chain's id names its problems: "gsm8k/24+25+26", without the folder where it is the first one's.

    Args:
        count: problems of a conversation; 1 leaves the prompts as they are.

    Raises:
        UsageError: the task has fewer problems, a prompt is no chat, or an id cannot be part of another.
    """
    if count == 1:
        return list(prompts)
    if len(prompts) < count:
        raise UsageError(f"chain={count} needs as many problems, and there are {len(prompts)}; lower it")
    for prompt in prompts:
        if not prompt.chat:
            raise UsageError("chain needs a model with a chat template and a style that uses it; leave chain out")
        if _BETWEEN in prompt.id or prompt.follow_ups:
            raise UsageError(f"prompt '{prompt.id}' cannot be chained; leave chain out")
    whole = range(0, len(prompts) - count + 1, count)
    return [_one(prompts[start : start + count]) for start in whole]


def problem(prompt_id: str, turn: int) -> str:
    """The id of the problem that a turn of a chain asks.

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
            raise UsageError(f"prompts '{first.id}' and '{other.id}' are not asked alike; leave chain out")
        if folder and not _folder(other.id):  # it would be taken for one in the first one's
            raise UsageError(f"prompt '{other.id}' cannot be chained behind '{first.id}'; leave chain out")
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
