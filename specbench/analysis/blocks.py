"""Blocks: which prompts are stepped together, and so are timed together and not one by one.

Where sequences share the engine, two prompts of one block are no independent measurements: the block is the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from specbench.results import RequestRecord

#: Prompts per sequence stepped together that a block holds at least: slots run empty at its end, and with one filling
#: that would be most of what is measured.
FILLINGS = 4


def blocks_of(prompts: Sequence[str], concurrency: int) -> list[tuple[str, ...]]:
    """The blocks that prompts are decoded in: one prompt each, or :data:`FILLINGS` fillings of the slots, almost equal
    in size.
    """
    size = 1 if concurrency == 1 else FILLINGS * concurrency
    count = max(1, len(prompts) // size) if prompts else 0
    ends = [len(prompts) * block // count for block in range(1 + count)] if count else [0]
    return [tuple(prompts[start:end]) for start, end in pairwise(ends)]


def prompts_for(blocks: int, concurrency: int) -> int:
    """Prompts that make so many blocks."""
    return blocks if concurrency == 1 else blocks * FILLINGS * concurrency


def prompt_segments(records: Iterable[RequestRecord]) -> Iterator[tuple[str, int]]:
    """Prompt and stretch of each request of a row, which is what :func:`units` goes by."""
    return ((record.prompt_id, record.segment) for record in records)


def timing_units(arms: Iterable[Iterable[tuple[str, int]]], *, shared: bool) -> Mapping[str, str]:
    """Prompt id -> the least prompt id of its unit: all prompts that were timed together with it.

    ``arms`` holds prompt and segment of the requests of each compared row; unless ``shared``, every prompt is a unit.
    """
    first: dict[str, str] = {}

    def find(prompt: str) -> str:
        while first[prompt] != prompt:
            first[prompt] = first[first[prompt]]
            prompt = first[prompt]
        return prompt

    for arm in arms:
        began: dict[int, str] = {}
        for prompt, stretch in arm:
            first.setdefault(prompt, prompt)
            if shared:
                least, other = sorted((find(prompt), find(began.setdefault(stretch, prompt))))
                first[other] = least
    return {prompt: find(prompt) for prompt in first}
