"""Text quality of the answers that weights in training write to held-out prompts, and their likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specbench.analysis import agreement, degeneration, loops_at_its_end, text_ids
from specbench.results import RequestRecord
from specbench.training.recipe import Text

_ROWS = 256  # rows whose logits are in memory at a time


@dataclass(frozen=True)
class Answered:
    """Text quality of free-running answers, with the figures of :mod:`specbench.analysis.text_quality`.

    Attributes:
        loop_share: share of tokens in repeated segments at the ends of answers.
        distinct: n -> distinct n-grams divided by all n-grams, mean over answers.
        agreement: share of positions with the same token as the target's own answer.
        common_prefix_tokens: tokens before the first difference, mean.
        texts: prompts with these answers.
        loops: for each answer, whether it ends in repetitive text.
        log_likelihood: mean per token under the target; None where the target's weights are not available.
        sound_log_likelihood: the same over answers that are not repetitive: repeated segments are almost certain, so
            that less repetition would look like a lower likelihood.
    """

    loop_share: float | None
    distinct: dict[int, float | None]
    agreement: float | None
    common_prefix_tokens: float | None
    texts: Sequence[Text]
    loops: Sequence[bool]
    log_likelihood: float | None = None
    sound_log_likelihood: float | None = None

    @property
    def looping(self) -> int:
        """Number of answers that end in repetitive text."""
        return sum(self.loops)

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain values, under the names that a run's tables use."""
        found: dict[str, float | None] = {
            "looping": self.looping,
            "loop_share": self.loop_share,
            **{f"distinct_{n}": value for n, value in self.distinct.items()},
            "agreement": self.agreement,
            "common_prefix_tokens": self.common_prefix_tokens,
            "log_likelihood_per_token": self.log_likelihood,
            "sound_log_likelihood_per_token": self.sound_log_likelihood,
        }
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }

    def line(self) -> str:
        """Return the figures as a part of a printed line."""
        alike = "" if self.agreement is None else f", {self.agreement:.1%} free-running"
        likely = "" if self.log_likelihood is None else f", log-likelihood {self.log_likelihood:.2f} per token"
        if self.sound_log_likelihood is not None:
            likely += f" ({self.sound_log_likelihood:.2f} without repetitive answers)"
        return f"{alike}{likely}, {self.looping} of {len(self.texts)} answers repetitive"

    def rated(self, target: Any) -> Answered:
        """Return a copy with the log-likelihoods of the answers under the target, a transformers causal LM."""
        found = [*zip(log_likelihoods(target, self.texts), self.texts, strict=True)]
        sound = [each for each, loops in zip(found, self.loops, strict=True) if not loops]
        return replace(self, log_likelihood=_per_token(found), sound_log_likelihood=_per_token(sound))


def answered(records: Sequence[RequestRecord], texts: Sequence[Text]) -> Answered:
    """Compute the text quality of answers and compare them with the target's own.

    Args:
        texts: prompts with the target's own answers. Repetitive answers may have been cut, so positions after their
            ends are not compared.
    """
    own = {text.id: text for text in texts}
    found = degeneration([(text_ids(record), record.output_tokens) for record in records])
    pairs = [(record.output_ids, own[record.prompt_id].answer) for record in records]
    alike = agreement((mine[: len(target)], target) for mine, target in pairs)
    return Answered(
        loop_share=found.share,
        distinct=found.distinct,
        agreement=alike.share if alike else None,
        common_prefix_tokens=alike.prefix_tokens if alike else None,
        texts=[Text(record.prompt_id, own[record.prompt_id].prompt, record.output_ids) for record in records],
        loops=[loops_at_its_end(record) for record in records],
    )


@torch.inference_mode()
def log_likelihoods(model: Any, texts: Sequence[Text]) -> list[float]:
    """Return the natural logarithm of each answer's probability after its prompt, at temperature 1.

    Args:
        model: a transformers causal LM; its training mode is restored.
    """
    training, found = model.training, list[float]()
    model.eval()
    try:
        for text in texts:
            total = 0.0
            ids = torch.tensor([[*text.prompt, *text.answer]], device=model.device)
            last = ids.shape[1] - 1
            for start in range(len(text.prompt) - 1, last, _ROWS):
                rows = torch.arange(start, min(start + _ROWS, last), device=model.device)
                scores = model(input_ids=ids, use_cache=False, logits_to_keep=rows).logits[0].float()
                chosen = scores.gather(1, ids[0, rows + 1, None])[:, 0]
                total += float((chosen - scores.logsumexp(-1)).sum())
            found.append(total)
    finally:
        model.train(training)
    return found


def _per_token(found: Sequence[tuple[float, Text]]) -> float | None:
    """Return the mean per token, given (sum over the answer, text) of each; None without tokens."""
    tokens = sum(len(text.answer) for _, text in found)
    return sum(total for total, _ in found) / tokens if tokens else None
