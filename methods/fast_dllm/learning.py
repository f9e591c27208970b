"""Fast-dLLM v2's loss: fill masked tokens of a block after clean text (Wu et al. 2025, arXiv:2509.26328).

A text is cut into blocks at absolute positions. A clean stream holds all of it; a noisy stream holds its blocks from
the one with the first answer token on, where mask tokens replace some of the answer's tokens. A row predicts the token
after it. The last block is filled up with mask tokens that are not learnt, because decoding always sees whole blocks.
As published, all tokens weigh the same, whatever the mask ratio, and the loss is their mean over the batch.

Differences from the published trainer:

* A block's first token is learnt by the last clean row before the block, from which decoding takes it. The published
  loss only has noisy rows, so there the last row of the noisy block before learns it: ``first_tokens=noisy``.
* Both noisy streams of a text share its clean stream. The published trainer doubles the batch instead, with the same
  loss, and its noisy stream has the prompt's blocks too, which learn nothing.
* Mask ratios are uniform in (0, 1], published in [0.001, 1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specbench.decoding import option
from specbench.training import (
    CLEAN,
    NOISY,
    BlockCausalMask,
    Frozen,
    LabelOptions,
    Labels,
    Packed,
    Pairs,
    Student,
    Targets,
    Text,
    evaluate_losses,
    mean_of_rows,
    stack,
)


class Options(LabelOptions):
    """Options of the method's training."""

    block_size: int = option(8, "n", help="tokens of a block; the published models have blocks of 32", ge=2)
    mask: int | None = option(
        None, help="id of the mask token; default is the model's own, or an unused special token", ge=0
    )
    complementary: bool = option(True, help="learn each text with its mask and with the complement, as published")
    first_tokens: Literal["clean", "noisy"] = option(
        "clean", help="learn a block's first token from the clean block before it, or from the noisy one (published)"
    )
    ar_weight: float = option(1.0, help="weight of tokens that clean rows learn, next to 1 for masked ones", ge=0)
    max_tokens: int = option(2048, help="tokens of a text, prompt included; longer answers are cut", ge=8)


class Lesson(nn.Module):
    """L = 1/M Σᵢ wᵢ CE(xᵢ, pθ(· | row i−1)): M masked and first tokens, w = ``ar_weight`` for rows of the clean stream.

    ``frozen`` gives the labels as distributions after the text before a token; None: labels are the text's tokens.
    """

    def __init__(self, model: Any, options: Options, frozen: Frozen | None = None) -> None:
        super().__init__()
        self.model = model
        self._student, self._options, self._frozen = Student(model), options, frozen

    def forward(self, learns: Tensor, **batch: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``learns``: bool [B, S] whether a row learns its next token; ``batch``: :class:`Packed`, with a text per
        sequence, whose clean stream comes first. Returns scalars: ``loss``; ``denoising`` and ``autoregressive``, the
        mean loss of noisy and of clean rows; ``accuracy``, the share of noisy rows whose best token is right.
        """
        packed = Packed(**batch)
        rows = learns.flatten().nonzero()[:, 0]
        tokens = packed.ids.gather(1, packed.following.clamp(min=0)).flatten()[rows]
        clean = packed.stream.flatten()[rows] == CLEAN
        weights = torch.ones(rows.shape, device=rows.device).masked_fill(clean, self._options.ar_weight)
        labels = self._labels(packed, self._frozen) if self._frozen else None
        states = self._student.states(packed, BlockCausalMask).flatten(0, 1)
        found = evaluate_losses(
            self._student.scores,
            states,
            Pairs(rows[:0], rows[:0], weights[:0]),
            Targets(rows, tokens, weights),
            at_once=self._student.rows_at_once,
            distance=self._options.measure,
            labels=labels,
        )
        return {
            "loss": (found.surprise * weights).sum() / max(1, len(rows)),
            "denoising": mean_of_rows(found.surprise[~clean]),
            "autoregressive": mean_of_rows(found.surprise[clean]),
            "accuracy": mean_of_rows(found.right[~clean]),
        }

    def _labels(self, packed: Packed, frozen: Frozen) -> Labels:
        """Return the labels of packed rows: those of the row at the same position in the plain text."""
        width = int((packed.stream == CLEAN).sum(1).max())
        columns = torch.arange(packed.ids.shape[1], device=packed.ids.device)
        place = torch.where(packed.teacher < 0, columns, packed.teacher)
        plain = (place + width * torch.arange(len(place), device=place.device)[:, None]).flatten()
        labels = frozen.labels(lambda target: target.text_states(packed.ids[:, :width]))
        return lambda rows: labels(plain[rows])


class Collator:
    """Texts as a batch of :class:`Lesson`, with fresh masks at each visit.

    ``mask``: id of the mask token. ``seed``, visit and the text's id decide the random numbers; sequences are padded to
    a multiple of ``multiple``; the caller sets ``visit``, the number of earlier passes over the data.
    """

    def __init__(self, options: Options, mask: int, seed: int = 0, multiple: int = 1) -> None:
        self._options, self._mask, self._seed, self._multiple = options, mask, seed, multiple
        self.visit = 0

    def __call__(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        laid = [self._laid(number, text) for number, text in enumerate(texts)]
        packed = stack([[token for token, _ in tokens] for tokens in laid], self._multiple)
        learns = torch.zeros(packed.ids.shape, dtype=torch.bool)
        for row, tokens in enumerate(laid):
            learns[row, : len(tokens)] = torch.tensor([learnt for _, learnt in tokens])
        return {**packed.tensors(), "learns": learns}

    def size(self, text: Text) -> int:
        """Return the tokens of a text's sequence."""
        end, noisy = len(self._ids(text)), self._noisy(text)
        return end + (1 + self._options.complementary) * len(noisy)

    def _ids(self, text: Text) -> list[int]:
        return [*text.prompt, *text.answer[: max(1, self._options.max_tokens - len(text.prompt))]]

    def _noisy(self, text: Text) -> range:
        """Return the positions of a noisy stream: whole blocks, from the one with the first answer token on."""
        n = self._options.block_size
        return range(len(text.prompt) // n * n, -(-len(self._ids(text)) // n) * n)

    def _masked(self, text: Text) -> list[set[int]]:
        """Sample the positions that are masked in each noisy stream."""
        draw, n = random.Random(f"{self._seed}/{self.visit}/{text.id}"), self._options.block_size
        answer = {*range(len(text.prompt), len(self._ids(text)))}
        masked = set[int]()
        for start in self._noisy(text)[::n]:
            ratio = 1 - draw.random()
            masked |= {place for place in range(start, start + n) if draw.random() < ratio} & answer
        return [masked, answer - masked] if self._options.complementary else [masked]

    def _laid(self, number: int, text: Text) -> list[tuple[tuple[int, ...], bool]]:
        """Return the tokens of a sequence in the order of :class:`Packed`'s attributes, and whether each row learns."""
        ids, n, prompt = self._ids(text), self._options.block_size, len(text.prompt)
        end, published = len(ids), self._options.first_tokens == "noisy"
        after = [*range(1, end), *[-1] * n]  # column of the next clean token
        found: list[tuple[tuple[int, ...], bool]] = []
        for place, token in enumerate(ids):
            first = prompt <= place + 1 < end and (place + 1) % n == 0
            # Without a noisy block before the answer, only a clean row can predict its first token.
            learns = first and (not published or place + 1 == prompt)
            found.append(((token, place, CLEAN, place // n, number, -1, after[place]), learns))
        for stream, masked in enumerate(self._masked(text), NOISY):
            for place in self._noisy(text):
                token = ids[place] if place < end and place not in masked else self._mask
                learns = place + 1 in masked and ((place + 1) % n != 0 or published)
                clean = place if place < end else -1
                found.append(((token, place, stream, place // n, number, clean, after[place]), learns))
        return found
