"""Prompts for warming up, from our own text, different from every timed prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice, product

from specbench.models import LoadedModel

_TEXT = (
    "A harbour pilot boards each ship a mile before the breakwater. She asks for the draught, the wind and the state "
    "of the engine, in that order, and writes the three numbers on the back of her hand. "
)


def warm_up_ids(model: LoadedModel, length: int, timed: Collection[Sequence[int]]) -> list[int]:
    """A prompt of ``length`` tokens, 1 or more, that equals none of the ``timed`` ones (token ids).

    The last tokens of our text are replaced if a timed prompt equals it, and it is longer if the timed prompts are all
    sequences of that length.
    """
    own = [token for token in model.tokenizer(_TEXT)["input_ids"] if 0 <= token < model.vocab_size]
    # Prefer tokens of the text: a special token may mean something to the model, such as an image.
    others = (token for token in range(model.vocab_size) if token not in own)
    tokens = [*dict.fromkeys(own), *islice(others, len(timed) + 1)]
    text = own or tokens
    ids = [text[at % len(text)] for at in range(length)]
    taken = {tuple(each) for each in timed}
    if tuple(ids) not in taken:
        return ids
    enough = (width for width in range(1, length + 1) if len(tokens) ** width > len(taken))
    for width in islice(enough, 1):
        for ending in product(tokens, repeat=width):
            if (*ids[:-width], *ending) not in taken:
                return [*ids[:-width], *ending]
    return warm_up_ids(model, length + 1, timed)
