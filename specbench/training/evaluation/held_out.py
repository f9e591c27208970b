"""Held-out look: what weights in training are worth, prompts decoded by the method itself in the engine."""

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

#: (prompt id, text of an answer) -> whether it is right; None where nobody can say.
Score = Callable[[str, str], bool | None]
_TOGETHER = 8  # sequences stepped together


class Figures(BaseModel):
    """Figures as a record has them; None is what is not in it."""

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
    """Figures of held-out prompts, greedy.

    Attributes:
        tokens, forwards: of all answers behind the prefill; see :mod:`specbench.runner.loop`.
        agrees: share of the target's own, or the given, answer that is these weights' next token too, behind that text.
            It forgives every departure at the next token, so of what they write by themselves it says little.
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
        """As a record has them."""
        passed = {"scored": self.scored, "pass_rate": round(self.passed / self.scored, 4)} if self.scored else {}
        own = self.answered.figures() if self.answered else {}
        return {"prompts": self.prompts, "tpf": round(self.tpf, 4), **passed, "agrees": round(self.agrees, 4), **own}

    def line(self) -> str:
        """As the user sees them."""
        passed = f"{self.passed}/{self.scored} right, " if self.scored else ""
        own = self.answered.line() if self.answered else ""
        whose = "of the given answers' tokens" if self.given else "of the tokens as before training"
        return f"{self.tpf:.3f} tokens per forward, {passed}{self.agrees:.1%} {whose}{own}"

    def rated(self, target: Any) -> Held:
        """The same with how likely the answers are to the target, a transformers causal LM; None: not at hand."""
        if target is None or self.answered is None:
            return self
        return replace(self, answered=self.answered.rated(target))


def held_out(loaded: LoadedModel, model: Any, method: Method, texts: Sequence[Text], seed: int, score: Score) -> Held:
    """Decodes the prompts of texts.

    A lossless method emits what plain decoding of these weights does, so the same answers say what both are worth.

    Args:
        model: the weights, a transformers causal LM; its mode is left as it was.
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
    """Records of the prompts of texts, decoded with weights in training.

    Args:
        loaded: the target, for all but its weights.
        model: the weights, a transformers causal LM; its mode, and every random generator, is left as it was.
        budget: new tokens of a text, at most.
        together: sequences stepped together.
    """
    requests = [
        Request(text.id, 0, text.prompt, StopRule(loaded.stop_ids, (), budget(text), loaded.decode)) for text in texts
    ]
    capacity = max(len(text.prompt) for text in texts) + max(map(budget, texts))
    slots = min(together, len(texts))
    with (
        # However often a training is evaluated, it draws the same.
        torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
        evaluated(model),
        Session(loaded, [method], sampling, capacity=capacity, slots=slots, weights=model) as session,
    ):
        session.capture(capacity - 1)
        return list(session.decode(session.methods[0], requests))


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Has a model in evaluation mode for as long as this lasts."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _agreed(model: Any, text: Text) -> int:
    """Tokens of the answer that are the best ones behind the text before them."""
    ids = torch.tensor([[*text.prompt, *text.answer]], device=model.device)
    rows = slice(len(text.prompt) - 1, ids.shape[1] - 1)
    states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, rows]
    best = model.get_output_embeddings()(states).argmax(-1)
    return int((best == ids[0, len(text.prompt) :]).sum())


def method_of(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with options by their names."""
    from specbench.planning import plan_methods

    _, method = plan_methods([name], [f"{name}.{option}={value}" for option, value in settings.items()])
    return method
