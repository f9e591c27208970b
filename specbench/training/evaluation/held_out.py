"""Evaluate weights in training: decode held-out prompts with the method itself in the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from specbench.decoding import Method
from specbench.engine import Sampling
from specbench.models import LoadedModel
from specbench.results import RequestRecord
from specbench.runner import Request, Session, StopRule
from specbench.training.evaluation.answered import Answered, answered
from specbench.training.recipe import Text

#: (prompt id, text of an answer) -> whether it is correct; None if it cannot be scored.
Score = Callable[[str, str], bool | None]
_TOGETHER = 8  # sequences stepped together


class Figures(BaseModel):
    """Recorded figures of held-out prompts; None where a record lacks a figure."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompts: int = Field(ge=1)
    tpf: float
    scored: int | None = None
    pass_rate: float | None = None
    agrees: float
    looping: int | None = None
    loop_share: float | None = None
    distinct_1: float | None = None
    distinct_2: float | None = None
    distinct_4: float | None = None
    agreement: float | None = None
    common_prefix_tokens: float | None = None
    log_likelihood_per_token: float | None = None
    sound_log_likelihood_per_token: float | None = None


@dataclass(frozen=True)
class Held:
    """Figures of held-out prompts, decoded greedily.

    Attributes:
        tokens, forwards: sums over all answers, after the prefill; see :mod:`specbench.runner.loop`.
        scored, passed: answers that could be scored, and correct ones among them.
        agrees: share of tokens of the target's own (or the given) answer that these weights rank first after the
            answer's text so far. A wrong token has no effect on the next one (teacher forcing), so it says little about
            answers that the weights write themselves.
        answered: text quality of the decoded answers.
        given: whether ``agrees`` compares with given answers.
    """

    prompts: int
    tokens: int
    forwards: int
    scored: int
    passed: int
    agrees: float
    answered: Answered | None = None
    given: bool = False

    @property
    def tpf(self) -> float:
        """Tokens per forward."""
        return self.tokens / max(1, self.forwards)

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain values for a record."""
        passed = {"scored": self.scored, "pass_rate": round(self.passed / self.scored, 4)} if self.scored else {}
        own = self.answered.figures() if self.answered else {}
        return {"prompts": self.prompts, "tpf": round(self.tpf, 4), **passed, "agrees": round(self.agrees, 4), **own}

    def line(self) -> str:
        """Return the figures as a printed line."""
        passed = f"{self.passed}/{self.scored} correct, " if self.scored else ""
        own = self.answered.line() if self.answered else ""
        whose = "of the given answers' tokens" if self.given else "of tokens as before training"
        return f"{self.tpf:.3f} tokens per forward, {passed}{self.agrees:.1%} {whose}{own}"

    def rated(self, target: Any) -> Held:
        """Return a copy with the answers' log-likelihoods under the target, a transformers causal LM, unless None."""
        if target is None or self.answered is None:
            return self
        return replace(self, answered=self.answered.rated(target))


def held_out(loaded: LoadedModel, model: Any, method: Method, texts: Sequence[Text], seed: int, score: Score) -> Held:
    """Decode the prompts of texts greedily and return the figures.

    A lossless method emits the same answers as plain decoding of these weights, so their accuracy holds for both.

    Args:
        model: the weights, a transformers causal LM; its training mode is restored.
    """
    with torch.inference_mode(), evaluated(model):
        agreed = sum(_agreed(model, text) for text in texts)
    budget = max(len(text.answer) for text in texts)
    records = decode_texts(loaded, model, method, texts, Sampling(seed=seed), lambda text: budget)
    verdicts = [found for record in records if (found := score(record.prompt_id, record.text)) is not None]
    return Held(
        prompts=len(records),
        tokens=sum(sum(record.accepted_lengths) for record in records),
        forwards=sum(record.target_forwards for record in records),
        scored=len(verdicts),
        passed=sum(verdicts),
        agrees=agreed / sum(len(text.answer) for text in texts),
        answered=answered(records, texts),
    )


def decode_texts(
    loaded: LoadedModel,
    model: Any,
    method: Method,
    texts: Sequence[Text],
    sampling: Sampling,
    budget: Callable[[Text], int],
    together: int = _TOGETHER,
) -> list[RequestRecord]:
    """Decode the prompts of texts with weights in training and return the records.

    Args:
        loaded: the target; its weights are not used.
        model: the weights, a transformers causal LM; its training mode and every random generator are restored.
        budget: text -> most new tokens.
        together: sequences stepped together.
    """
    requests = [
        Request(text.id, 0, text.prompt, StopRule(loaded.stop_ids, (), budget(text), loaded.decode)) for text in texts
    ]
    capacity = max(len(text.prompt) for text in texts) + max(map(budget, texts))
    slots = min(together, len(texts))
    with (
        # Evaluations must not change the random numbers of the training.
        torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
        evaluated(model),
        Session(loaded, [method], sampling, capacity=capacity, slots=slots, weights=model) as session,
    ):
        session.capture(capacity - 1)
        return list(session.decode(session.methods[0], requests))


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode within the ``with`` block."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _agreed(model: Any, text: Text) -> int:
    """Return the number of answer tokens that the model ranks first after the text before them."""
    ids = torch.tensor([[*text.prompt, *text.answer]], device=model.device)
    rows = slice(len(text.prompt) - 1, ids.shape[1] - 1)
    states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, rows]
    best = model.get_output_embeddings()(states).argmax(-1)
    return int((best == ids[0, len(text.prompt) :]).sum())


def method_of(name: str, settings: Mapping[str, Any]) -> Method:
    """Return a method with these options."""
    from specbench.planning import plan_methods

    _, method = plan_methods([name], [f"{name}.{option}={value}" for option, value in settings.items()])
    return method
