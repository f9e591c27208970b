"""Decode the student's own answers during training, for on-policy distillation from the frozen target.

Generalised knowledge distillation (Agarwal et al. 2024, arXiv:2306.13649). Seed and visit determine which batches are
on-policy. Every ``on_policy_every`` steps the engine decodes the answers for the next batches with the current weights.
They are written to disk before they are used, so a resumed training learns from the same answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from specbench.common import (
    UsageError,
    check_writable,
    option,
    read_json_lines,
    temperature_fault,
    validate,
    write_text_atomic,
)
from specbench.engine import Sampling
from specbench.models import LoadedModel
from specbench.planning import plan_methods
from specbench.results import BASELINE
from specbench.training.evaluation.held_out import decode_texts
from specbench.training.objectives.distances import DistanceOptions
from specbench.training.recipe import Job, Text, Token

_FOLDER = "on_policy"
_TOGETHER = 32  # sequences stepped together
_TODO = "train again into another --out"


class OnPolicyOptions(DistanceOptions):
    """Options of recipes that may learn from the student's own answers."""

    on_policy: float = option(
        0.0,
        help="share of batches that consist of the student's own answers and learn the target's distributions",
        ge=0,
        le=1,
    )
    on_policy_every: int = option(20, help="steps after which the student's answers are decoded again", ge=1)
    on_policy_temperature: float = option(
        1.0, help="temperature of the student's answers; 0 is greedy", ge=0, allow_inf_nan=False
    )

    @field_validator("on_policy_temperature")
    @classmethod
    def _divides(cls, temperature: float) -> float:
        if fault := temperature_fault(temperature):
            raise ValueError(fault)
        return temperature


class _Row(BaseModel):
    """A line of the file that holds a round's answers."""

    model_config = ConfigDict(strict=True)

    id: str
    answer: list[Token] = Field(min_length=1)


#: Context manager that yields the transformers model with the training so far merged into its weights.
Decoded = Callable[[], AbstractContextManager[Any]]


class OnPolicy:
    """On-policy batches of a training and the student's answers for them.

    Args:
        batches: step -> (visit, index) of the texts in each of its batches.
        decoded: yields the model to decode with.

    Raises:
        UsageError: several processes train together.
    """

    def __init__(
        self,
        options: OnPolicyOptions,
        job: Job,
        batches: Callable[[int], list[list[tuple[int, int]]]],
        decoded: Decoded,
    ) -> None:
        if PartialState().num_processes > 1:
            raise UsageError(
                "cannot use on_policy with several processes: it trains on one device; set on_policy=0 or train in one "
                "process"
            )
        self._options, self._job, self._batches, self._decoded = options, job, batches, decoded
        self._budget = max((len(text.answer) for text in job.texts), default=1)
        self._first: int | None = None
        self._answers: dict[str, list[int]] = {}

    def own(self, visit: int, texts: Sequence[Text]) -> bool:
        """Return whether a batch of these texts is on-policy."""
        draw = random.Random(f"{self._job.seed}/{visit}/{texts[0].id}/own")
        return draw.random() < self._options.on_policy

    def collating(self, usual: Callable[[int, Any], Any]) -> Callable[[int, Sequence[Any]], Any]:
        """Return a collate function for :class:`specbench.training.objectives.distillation.DistillationLesson`.

        Args:
            usual: collate function of batches that are not on-policy.
        """
        at = {text.id: index for index, text in enumerate(self._job.texts)}

        def collate(visit: int, texts: Sequence[Any]) -> Any:
            return (
                {"own": torch.tensor([at[text.id] for text in texts])}
                if self.own(visit, texts)
                else usual(visit, texts)
            )

        return collate

    def texts(self, own: Tensor) -> list[Text]:
        """Return the prompts of a batch of this round with the student's own answers.

        Args:
            own: int64 [B] indices of texts.
        """
        asked = [self._job.texts[at] for at in own.tolist()]
        return [Text(text.id, text.prompt, self._answers[text.id]) for text in asked]

    def before_step(self, step: int, steps: int) -> None:
        """Load the answers that a step learns from, and decode them first where a new round begins."""
        first = step - step % self._options.on_policy_every
        if first == self._first:
            return
        path = self._path(first)
        if not path.exists():
            if first != step:  # the current weights would write other answers
                raise UsageError(f"cannot resume at step {step + 1}: its answers in {path} are gone; {_TODO}")
            self._decode(path, self._asked(first, steps), first)
        answers = self._written(first)
        if missing := [text.id for text in self._asked(first, steps) if text.id not in answers]:
            raise UsageError(f"cannot train: {path} has no answer to {missing[0]}; {_TODO}")
        self._first, self._answers = first, answers

    def figures(self, steps: int) -> dict[str, Any]:
        """Return the answer tokens of texts, and the number and tokens of own answers, that ``steps`` steps used."""
        learnt = list(self._learnt(steps))
        own = [len(answer) for _, answer in learnt if answer is not None]
        given = sum(len(text.answer) for text, answer in learnt if answer is None)
        return {"answer_tokens": given, "own_answers": {"answers": len(own), "tokens": sum(own)}}

    def tokens_seen(self, steps: int, size: Callable[[Any], int]) -> int:
        """Return the tokens that ``steps`` steps have brought through the model."""
        return sum(
            size(text) if answer is None else len(text.prompt) + len(answer) for text, answer in self._learnt(steps)
        )

    def _learnt(self, steps: int) -> Iterator[tuple[Text, Sequence[int] | None]]:
        """Yield every text of ``steps`` steps, with the student's own answer if its batch was on-policy."""
        every = self._options.on_policy_every
        for first in range(0, steps, every):
            written = self._written(first)
            for step in range(first, min(first + every, steps)):
                for visit, texts in self._met(step):
                    own = self.own(visit, texts)
                    yield from ((text, written[text.id] if own else None) for text in texts)

    def _written(self, first: int) -> dict[str, list[int]]:
        return dict(_read(self._path(first)))

    def _path(self, first: int) -> Path:
        return self._job.out / _FOLDER / f"{first:07}.jsonl"

    def _met(self, step: int) -> Iterator[tuple[int, list[Text]]]:
        for batch in self._batches(step):
            yield batch[0][0], [self._job.texts[index] for _, index in batch]

    def _asked(self, first: int, steps: int) -> list[Text]:
        """Return the texts whose prompts are answered in a round, without duplicates."""
        found = {
            text.id: text
            for step in range(first, min(first + self._options.on_policy_every, steps))
            for visit, texts in self._met(step)
            if self.own(visit, texts)
            for text in texts
        }
        return list(found.values())

    def _decode(self, path: Path, texts: Sequence[Text], first: int) -> None:
        check_writable(path.parent)
        # The noise has its own seed: decoding a round, or reading it from its file, does not change the training.
        answers: Mapping[str, Sequence[int]] = {}
        if texts:
            noise = random.Random(f"{self._job.seed}/{first}/own").getrandbits(62)
            sampling = Sampling(temperature=self._options.on_policy_temperature, seed=noise)
            with self._decoded() as model:
                answers = own_answers(self._job.target, model, texts, sampling, self._budget)
        lines = [json.dumps({"id": text.id, "answer": list(answers[text.id])}) + "\n" for text in texts]
        write_text_atomic(path, "".join(lines))


def own_answers(
    loaded: LoadedModel, model: Any, texts: Sequence[Text], sampling: Sampling, budget: int
) -> dict[str, Sequence[int]]:
    """Decode answers to the prompts of texts with weights in training; return their token ids by prompt id.

    Args:
        loaded: the target; its weights are not used.
        model: the weights, a transformers causal LM; its training mode and every random generator are restored.
    """
    room = loaded.context or 1 << 30
    (plain,) = plan_methods([BASELINE], [])
    records = decode_texts(loaded, model, plain, texts, sampling, lambda text: _most(text, budget, room), _TOGETHER)
    return {record.prompt_id: record.output_ids for record in records}


def _most(text: Text, budget: int, room: int) -> int:
    return max(1, min(budget, room - len(text.prompt)))


def _read(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield (prompt id, answer) of a round; raise a UsageError that names a bad line."""
    for number, content in read_json_lines(path, _TODO):
        row = validate(_Row, content, f"{path} line {number}", _TODO)
        yield row.id, row.answer
