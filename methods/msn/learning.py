"""MSN's loss: next tokens after noisy input, as in fine-tuning (Wang et al. 2024, arXiv:2406.17404, §3.2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from specbench.decoding import option
from specbench.methods.msn.noise import lowest, noised, replaced, segment_length, segment_start, sources, strangers
from specbench.training import (
    Frozen,
    LabelOptions,
    Labels,
    Losses,
    Pairs,
    Student,
    Targets,
    Text,
    evaluate_losses,
    mean_of_rows,
)


class Options(LabelOptions):
    """Options of the method's training."""

    noise_length: int = option(
        4, "L", help="tokens of the noisy segment; the repository's snippet says 5; 0 is ordinary fine-tuning", ge=0
    )
    noise_content: Literal["context", "vocabulary"] = option(
        "context",
        help="sample noise from the tokens before it (the paper's ahead noise), or for comparison from the vocabulary",
    )
    place: Literal["random", "lowest"] = option(
        "random", help="place of the segment: anywhere, or where the loss is lowest"
    )
    in_place: bool = option(False, help="noise may copy earlier noise, as in the repository's snippet but not in Eq. 4")
    include_prompt: bool = option(False, help="include the prompt's tokens in the loss, as in Eq. 3")
    max_tokens: int = option(2048, help="tokens of a text, prompt included; longer answers are cut", ge=8)

    @model_validator(mode="after")
    def _copies_where_it_says_so(self) -> Options:
        if self.in_place and self.noise_content == "vocabulary":
            raise ValueError("in_place needs noise_content=context: noise from the vocabulary is not copied")
        return self


class Lesson(nn.Module):
    """L = −1/M Σᵢ log pθ(xᵢ | x̂_<i), x̂ the text with its noisy segment; labels stay clean, also after the segment.

    ``frozen`` gives the labels as distributions after the clean text; None: labels are the text's tokens.
    """

    def __init__(self, model: Any, options: Options, frozen: Frozen | None = None) -> None:
        super().__init__()
        self.model = model
        self._student, self._options, self._frozen = Student(model), options, frozen

    def forward(
        self, ids: Tensor, sources: Tensor, prompts: Tensor, answers: Tensor, starts: Tensor, lengths: Tensor
    ) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] clean texts, padded at their ends; ``sources``: int64 [B, S] positions from which noise
        is copied, or the noise tokens themselves with ``noise_content=vocabulary``; the other arguments: int64 [B].
        ``starts`` are ignored with ``place=lowest``; ``lengths`` are 0 if an answer is too short. Returns scalars:
        ``loss``; ``accuracy``, the share of tokens that are the model's best; ``denoising``, the loss of the tokens
        predicted by noisy rows, if there are any.
        """
        if self._options.place == "lowest" and self._options.noise_length:
            starts = lowest(self._surprise(ids, prompts, answers), prompts, answers, lengths)
        if self._options.noise_content == "vocabulary":
            noisy = replaced(ids, sources, starts, lengths)
        else:
            noisy = noised(ids, sources, starts, lengths, self._options.in_place)
        first = torch.zeros_like(prompts) if self._options.include_prompt else prompts - 1
        targets = _targets(ids, first, prompts + answers)
        labels = self._frozen.labels(lambda target: target.text_states(ids)) if self._frozen else None
        found = self._losses(noisy, targets, labels)
        figures = {"loss": (found.surprise * targets.shares).sum(), "accuracy": mean_of_rows(found.right)}
        if not self._options.noise_length:
            return figures
        row = targets.rows % ids.shape[1]
        text = targets.rows // ids.shape[1]
        noise = (row >= starts[text]) & (row < (starts + lengths)[text])
        return {**figures, "denoising": mean_of_rows(found.surprise[noise])}

    @torch.no_grad()
    def _surprise(self, ids: Tensor, prompts: Tensor, answers: Tensor) -> Tensor:
        """Each answer token's loss after the clean text before it, float32 [B, S]; 0 elsewhere."""
        targets = _targets(ids, prompts - 1, prompts + answers)
        out = torch.zeros(ids.shape, device=ids.device)
        out.view(-1)[targets.rows + 1] = self._losses(ids, targets).surprise
        return out

    def _losses(self, ids: Tensor, targets: Targets, labels: Labels | None = None) -> Losses:
        states = self._student.text_states(ids).flatten(0, 1)
        none = targets.rows[:0]
        scores, at_once = self._student.scores, self._student.rows_at_once
        pairs, distance = Pairs(none, none, targets.shares[:0]), self._options.measure
        return evaluate_losses(scores, states, pairs, targets, at_once=at_once, distance=distance, labels=labels)


def _targets(ids: Tensor, first: Tensor, ends: Tensor) -> Targets:
    """The rows ``first`` to ``ends`` - 2 (int64 [B]) with their next tokens as labels, equally weighted."""
    places = torch.arange(ids.shape[1], device=ids.device)
    learns = (places >= first[:, None]) & (places < (ends - 1)[:, None])
    rows = learns.flatten().nonzero()[:, 0]
    return Targets(rows, ids.flatten()[rows + 1], torch.full(rows.shape, 1 / max(1, len(rows)), device=ids.device))


class Collator:
    """Texts as a batch of :class:`Lesson`, with fresh noise at each visit.

    ``seed``, visit and the text's id decide the random numbers; texts are padded to a multiple of ``multiple``; the
    caller sets ``visit``, the number of earlier passes over the data.
    """

    def __init__(self, options: Options, seed: int = 0, multiple: int = 1, vocab_size: int | None = None) -> None:
        self._options, self._seed, self._multiple, self._vocab_size = options, seed, multiple, vocab_size
        self.visit = 0

    def __call__(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        options = self._options
        ids, copied, numbers = [], [], []
        for text in texts:
            draw = random.Random(f"{self._seed}/{self.visit}/{text.id}")
            prompt = len(text.prompt)
            answer = text.answer[: max(1, options.max_tokens - prompt)]
            length = segment_length(len(answer), options.noise_length)
            ids.append(torch.tensor([*text.prompt, *answer]))
            copied.append(torch.tensor(self._sources(prompt + len(answer), draw)))
            numbers.append([prompt, len(answer), segment_start(prompt, len(answer), length, draw), length])
        prompts, answers, starts, lengths = torch.tensor(numbers).unbind(1)
        # Padded at the end, where causal attention does not reach.
        filled = [pad_sequence(rows, batch_first=True) for rows in (ids, copied)]
        spare = -filled[0].shape[1] % self._multiple
        both = [torch.nn.functional.pad(rows, (0, spare)) for rows in filled]
        return {
            "ids": both[0], "sources": both[1], "prompts": prompts, "answers": answers, "starts": starts,
            "lengths": lengths,
        }  # fmt: skip

    def _sources(self, length: int, draw: random.Random) -> list[int]:
        if self._options.noise_content == "vocabulary":
            assert self._vocab_size is not None
            return strangers(length, self._vocab_size, draw)
        return sources(length, draw)
