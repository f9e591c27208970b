"""Draft with a model that has another vocabulary: its tokens are decoded, and their text is encoded for the target.

Universal assisted decoding (Timor et al. 2025, arXiv:2502.05202, §3.1), as in transformers. The target verifies tokens
of its own, so its text is AR's, whatever was lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.methods.sps.drafter import Drafter

_WINDOW = 32  # tokens before the drafts that are decoded and encoded with them, so that tokens join as in a whole text
_CUT = "\ufffd"  # how a tokenizer decodes the first bytes of a character


class TranslatedDrafter(Drafter):
    """A drafter whose texts are those of the target, encoded by the draft model's tokenizer.

    The draft model decodes greedily: its tokens have no positions in the target's text, whose noise they could share.
    After each step the text is encoded again, and the cache keeps what has not changed.
    """

    def __init__(self, *args: Any, target: Any, tokenizer: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._target, self._own = target, tokenizer
        self._ids: dict[int, list[int]] = {}  # slot -> the target's tokens
        self._read: dict[int, list[int]] = {}  # slot -> tokens that the cache may hold: the text's, then drafts
        self.weights: Mapping[str, str] = {**self.weights, "vocabulary": "translated"}

    def begin(self, prompt: Sequence[int]) -> int:
        slot = super().begin(self._encoded(prompt)[: self.engine.capacity - 1])
        self._ids[slot], self._read[slot] = list(prompt), list(self._texts[slot])
        return slot

    def extend(self, slot: int, emitted: Sequence[int]) -> None:
        self._ids[slot] += emitted
        text = self._texts[slot] = self._encoded(self._ids[slot])
        same = _common(self._read[slot], text)
        self.engine.rewind(slot, min(self.engine.length(slot), same, len(text) - 1))
        self._read[slot] = list(text)
        if len(text) <= self.engine.capacity:
            self._waiting.add(slot)
        else:  # in the draft model's words a text may be longer than in the target's
            self._drafts[slot], self.passes[slot] = [], 0

    def draft(self, slot: int) -> tuple[list[int], None]:
        drafts, _ = super().draft(slot)
        self._read[slot] = [*self._texts[slot], *drafts]
        return self._decoded(slot, drafts)[: self._draft_tokens], None

    def end(self, slot: int) -> None:
        super().end(slot)
        del self._ids[slot], self._read[slot]

    def _follow(self) -> None:
        greedy = type(self.engine.sampling)()
        sampling, self._sampling = self._sampling, lambda: greedy
        try:
            super()._follow()
        finally:
            self._sampling = sampling

    def _encoded(self, ids: Sequence[int]) -> list[int]:
        """The draft model's tokens of a text of the target's; an incomplete character at its end is left out."""
        text = _text(self._target, ids).rstrip(_CUT)
        return list(self._own(text, add_special_tokens=False)["input_ids"]) or [0]

    def _decoded(self, slot: int, drafts: Sequence[int]) -> list[int]:
        """The target's tokens of the drafts; none where the text ends, or is drafted, within a character."""
        before, known = self._texts[slot][-_WINDOW:], self._ids[slot][-_WINDOW:]
        ours, theirs = _text(self._own, before), _text(self._target, known)
        whole = _text(self._own, [*before, *drafts]).rstrip(_CUT)
        if not whole.startswith(ours) or theirs.endswith(_CUT):
            return []
        new = whole[len(ours) :]
        found: list[int] = self._target(theirs + new, add_special_tokens=False)["input_ids"]
        if found[: len(known)] == known:
            return found[len(known) :]
        return list(self._target(new, add_special_tokens=False)["input_ids"])  # the target has split words differently


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    found: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens at the beginning that are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
