"""Training a draft head on the target's own answers: what the recipes of all heads have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specbench.common import option
from specbench.models import LoadedModel
from specbench.training.evaluation.accepted import Accepted, leading
from specbench.training.evaluation.draft_vocabulary import covered, most_frequent
from specbench.training.loop.trainer import fit, in_bf16
from specbench.training.objectives.side_by_side import claim_for, learnable, plain_course, round_weights_to
from specbench.training.objectives.teacher import Remembered, Teacher
from specbench.training.recipe import Job, LoopOptions, Text, check_start

_KEPT = torch.bfloat16  # as published heads are


class HeadTrainingOptions(LoopOptions):
    """Options of every recipe that trains a head."""

    layers: int = option(1, help="of the head", ge=1)
    draft_vocab: int = option(0, help="tokens that can be drafted: the most frequent of the answers; 0 is all", ge=0)
    start: Literal["target", "random"] = option("target", help="first weights: parts of the target's own, or noise")
    max_tokens: int = option(2048, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    keep_circles: int = option(3, help="rounds that stay of an answer that repeats itself to its end; 0 is all", ge=0)
    keep_features: bool = option(
        False, help="the target's features of each text stay in memory: later epochs need no forward of it"
    )
    epochs: float = option(6.0, help="passes over the texts", gt=0)
    batch: int = option(4, help="texts of a step, on each device", ge=1)

    def drafted(self, vocabulary: int) -> int:
        """``draft_vocab`` for a target of so many tokens: 0 where it is all of them."""
        return self.draft_vocab if self.draft_vocab < vocabulary else 0


class FrozenParts:
    """The target's parts. No module, so that none of its weights is trained, saved or moved."""

    def __init__(self, head: Any, model: Any, keep: bool) -> None:
        teacher = Teacher(model, head.config.taps)
        remembered = Remembered(teacher)
        self._head = head
        self.teach = remembered if keep else lambda ids, ends: teacher(ids)
        self.embed = getattr(head, "embed_tokens", None) or model.get_input_embeddings()
        self.lm_head: Any = model.get_output_embeddings()

    @cached_property
    def scorer(self) -> Any:
        """The rows of the LM head that the head can draft."""
        return self._head.scorer(self.lm_head)


class HeadLesson(nn.Module, ABC):
    """A head with its loss.

    Args:
        depth: drafts that an evaluation counts after each token.
        keep: the target's features of each text stay in memory.
    """

    def __init__(self, head: Any, model: Any, *, depth: int, keep: bool = False) -> None:
        super().__init__()
        self.head: Any = head
        self.frozen = FrozenParts(head, model, keep)
        self.depth = depth

    @abstractmethod
    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """``loss`` of one step, and further figures.

        Args:
            ids: int64 [B, S] texts, filled up at their ends.
            starts: int64 [B] first position of each answer.
            ends: int64 [B] tokens of each text.
        """

    @abstractmethod
    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best drafts [end - 1 - start, depth] after each token of an answer but its last, in the head's own ids.

        Args:
            features: [1, S, T × H] of the tapped layers.
            ids: int64 [1, S] the text, whose answer goes from ``start`` to ``end``.
        """

    def answers(self, texts: Sequence[Text], device: torch.device) -> Iterator[tuple[Tensor, int, int]]:
        """(ids int64 [1, S], start and end of the answer) of the texts whose answers have a second token."""
        for text in texts:
            start, end = len(text.prompt), len(text.prompt) + len(text.answer)
            if end - start >= 2:
                yield torch.tensor([[*text.prompt, *text.answer]], device=device), start, end

    @torch.no_grad()
    def held_out(self, texts: Sequence[Text], device: torch.device) -> Accepted:
        """What decoding these texts, answers of the target itself, with the head's best chain would take."""
        right, known = [], self.head.draft_ids
        for ids, start, end in self.answers(texts, device):
            features, _ = self.frozen.teach(ids, torch.tensor([end]))
            drafts = self.drafts(features, ids, start, end)
            anchors = torch.arange(start, end - 1, device=device)
            right.append(leading(drafts if known is None else known[drafts], ids[0], anchors, end))
        return Accepted.of(right, self.depth)


def check_head(options: HeadTrainingOptions, target: LoadedModel) -> None:
    """Refuse a head that has more layers to start from than the target."""
    if options.start == "target":
        check_start(options.layers, target)


def train_head(
    options: Any,
    job: Job,
    kind: Any,
    config: Any,
    lesson_of: Callable[[Any], HeadLesson],
    *,
    start: Callable[[Any, Sequence[Text]], Any] | None = None,
    held_out: Callable[[Any], tuple[Accepted, Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Train a head, or continue from the last checkpoint in ``job.out``; the head is left in ``job.out/head``.

    Args:
        options: :class:`HeadTrainingOptions`.
        kind: the class of the head, made of ``config``.
        start: gives an untrained head its first weights from the target; takes the texts that it will learn from.
        held_out: accepted lengths of a lesson's head on ``job.held_out``, and figures for its model card; None is what
            the lesson counts.

    Returns:
        What the head's card says.

    Raises:
        UsageError: no text has an answer of two tokens, or ``job.out`` holds a head in training with other options.
    """
    texts = learnable(options, job)
    claim_for(options, job, "a head")
    device = job.target.model.device
    head = kind.random(config, device=device, seed=job.seed)
    if not config.whole:
        head.set_draft_ids(most_frequent(texts, config.draft_vocab_size, job.target.vocab_size))
    if options.start == "target" and start is not None:
        start(head, texts)
    lesson = lesson_of(head)

    def measure() -> tuple[Accepted, Mapping[str, Any]]:
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16(options, device)):
            if held_out is not None:
                return held_out(lesson)
            accepted = lesson.held_out(job.held_out, device)
            return accepted, accepted.look.figures

    done = fit(plain_course(lesson, texts, (lambda: measure()[0].look) if job.held_out else None), options, job)
    round_weights_to(_KEPT, head)
    figures: Mapping[str, Any] = {}
    if job.held_out:
        accepted, figures = measure()
        job.say(f"held out, head as kept: {accepted.look.line}")
    head.save(job.out / "head", dtype=_KEPT)
    return {
        "texts": len(texts),
        "answer_tokens": sum(len(text.answer) for text in texts),
        "steps": done.steps,
        "epochs": done.visits,
        "answer_tokens_learnt": done.answer_tokens,
        **{name: round(done.last[name], 4) for name in ("loss", "agrees") if name in done.last},
        "cost": done.cost.model_dump(mode="json", exclude_none=True),
        "curve": done.curve,
        "parameters": sum(p.numel() for p in head.parameters()),
        "held_out_texts": len(job.held_out),
        **covered(head.draft_ids, job.held_out),
        "weights": str(job.out / "head"),
        **{f"held_out_{name}": value for name, value in figures.items()},
    }
