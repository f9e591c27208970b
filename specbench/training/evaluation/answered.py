"""What weights in training write by themselves to held-out prompts, and how likely that is to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specbench.analysis import agreement, degeneration, loops_at_its_end, text_ids
from specbench.results import RequestRecord
from specbench.training.recipe import Text

_ROWS = 256  # whose logits exist at a time


@dataclass(frozen=True)
class Answered:
    """Figures of answers, as those of a run's rows: see :mod:`specbench.analysis.text_quality`.

    Attributes:
        loop_share: tokens of closing loops over all.
        distinct: by n, different n-grams over all, mean over answers.
        agreement: positions of the target's own answers that have its token, running free.
        common_prefix_tokens: before the first other one, mean.
        log_likelihood: of a token under the target; None where its weights are not at hand.
        sound_log_likelihood: the same of the answers that do not loop: rounds of a loop are next to certain, so that
            answers which loop less look less likely.
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
        """Answers that end in a closing loop."""
        return sum(self.loops)

    def figures(self) -> dict[str, Any]:
        """As a record has them, under the names that a run's rows have."""
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
        """As the user sees them."""
        alike = "" if self.agreement is None else f", running free {self.agreement:.1%} of the positions"
        likely = "" if self.log_likelihood is None else f", log-likelihood {self.log_likelihood:.2f} a token"
        sound = "" if self.sound_log_likelihood is None else f" ({self.sound_log_likelihood:.2f} of the others)"
        return f"{alike}{likely}, {self.looping} of {len(self.texts)} answers loop{sound}"

    def rated(self, target: Any) -> Answered:
        """The same with how likely the answers are to the target, a transformers causal LM."""
        found = [*zip(log_likelihoods(target, self.texts), self.texts, strict=True)]
        sound = [each for each, loops in zip(found, self.loops, strict=True) if not loops]
        return replace(self, log_likelihood=_per_token(found), sound_log_likelihood=_per_token(sound))


def answered(records: Sequence[RequestRecord], texts: Sequence[Text]) -> Answered:
    """What answers are like beside the target's own.

    Args:
        texts: with the target's own answers. They may be cut where they go round in circles, so positions behind their
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
    """The logarithm, to base e, of each answer's probability behind its prompt, at temperature 1.

    Args:
        model: a transformers causal LM; its mode is left as it was.
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
                said = scores.gather(1, ids[0, rows + 1, None])[:, 0]
                total += float((said - scores.logsumexp(-1)).sum())
            found.append(total)
    finally:
        model.train(training)
    return found


def _per_token(found: Sequence[tuple[float, Text]]) -> float | None:
    """Mean over the tokens of answers, given the sum of each; None without any."""
    tokens = sum(len(text.answer) for _, text in found)
    return sum(total for total, _ in found) / tokens if tokens else None
