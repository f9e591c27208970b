"""Grow prompts to given lengths by text in front of them, so that only the context differs between two lengths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from specbench.common import Prompt, UsageError, one_line
from specbench.models import LoadedModel

_BETWEEN = "\n\n"
_SLACK = 16  # tokens that a grown prompt may lack: a cut between two characters can cost some
_CHARACTERS = 16  # most of a token, in ordinary text


def grow_prompts(found: Sequence[Prompt], lengths: Sequence[int], text: str, model: LoadedModel) -> Iterator[Prompt]:
    """Yield each prompt once for each length, with the end of ``text`` in front of its own text.

    A longer prompt contains the shorter one. Its id is ``ID@LENGTH``; it has as many tokens as fit, at most LENGTH.

    Raises:
        UsageError: a prompt that is longer than a length by itself, or a text that is too short.
    """
    for prompt in found:
        if prompt.messages:
            raise UsageError(f"cannot grow prompt {one_line(prompt.id, 80)}: it is a recorded chat; remove --contexts")
        own = len(model.encode(prompt))
        for length in lengths:
            if own > length:
                raise UsageError(
                    f"cannot grow prompt {one_line(prompt.id, 80)} to {length} tokens: it has {own}; give larger "
                    "--contexts"
                )
            yield _grown(prompt, length, text, model)


def _grown(prompt: Prompt, length: int, text: str, model: LoadedModel) -> Prompt:
    def ending(characters: int) -> Prompt:
        front = f"{text[len(text) - characters :]}{_BETWEEN}" if characters else ""
        return replace(prompt, id=f"{prompt.id}@{length}", grown_from=prompt.id, text=f"{front}{prompt.text}")

    def tokens(characters: int) -> int:
        return len(model.encode(ending(characters)))

    most = min(len(text), _CHARACTERS * length)
    fits = bisect_right(range(1, most + 1), length, key=tokens)
    if fits == len(text) and tokens(fits) < length - _SLACK:
        raise UsageError(
            f"cannot grow prompts to {length} tokens: the text in front of them ends at {tokens(fits)}; give a longer "
            "--context-file or smaller --contexts"
        )
    return ending(fits)


def other_prompts(every: Sequence[Prompt], chosen: Sequence[Prompt]) -> str:
    """The first turns of a task's prompts that were not chosen, as one text."""
    mine = {prompt.id for prompt in chosen}
    return _BETWEEN.join(prompt.text for prompt in every if prompt.id not in mine)
