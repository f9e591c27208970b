"""Group prompts into blocks that are stepped together and therefore timed together.

If sequences share the engine, the prompts of a block are not independent measurements: the block is the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from specbench.results import RequestRecord

#: Prompts per slot in a block, at least. Slots are empty at the end of a block, and with one prompt per slot that would
#: dominate the measurement.
FILLINGS = 4


#: Fewest requests in a block under load: a queue needs some arrivals to build up.
LOADED = 8


def blocks_of(prompts: Sequence[str], concurrency: int, least: int = 1) -> list[tuple[str, ...]]:
    """Blocks in which prompts are decoded: single prompts, or :data:`FILLINGS` prompts per slot, of similar size.

    ``least``: prompts in a block, at least.
    """
    size = max(least, 1 if concurrency == 1 else FILLINGS * concurrency)
    count = max(1, len(prompts) // size) if prompts else 0
    ends = [len(prompts) * block // count for block in range(1 + count)] if count else [0]
    return [tuple(prompts[start:end]) for start, end in pairwise(ends)]


def prompts_for(blocks: int, concurrency: int) -> int:
    """The number of prompts that fill ``blocks`` blocks."""
    return blocks if concurrency == 1 else blocks * FILLINGS * concurrency


def prompt_segments(records: Iterable[RequestRecord]) -> Iterator[tuple[str, int]]:
    """Prompt and segment of each request of a row, as :func:`timing_units` needs them."""
    return ((record.prompt_id, record.segment) for record in records)


def timing_units(arms: Iterable[Iterable[tuple[str, int]]], *, shared: bool) -> Mapping[str, str]:
    """Prompt id -> smallest prompt id of its unit, which are all prompts timed together with it.

    ``arms`` holds (prompt, segment) of the requests of each compared row; unless ``shared``, every prompt is a unit.
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
