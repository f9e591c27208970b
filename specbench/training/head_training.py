"""Train a draft head on the target's own answers: code that the recipes of all heads share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from pydantic import field_serializer
from torch import Tensor, nn

from specbench.common import UsageError, one_line, option
from specbench.models import LoadedModel
from specbench.training.evaluation.accepted import Accepted, leading
from specbench.training.evaluation.draft_vocabulary import covered, most_frequent
from specbench.training.loop.trainer import fit, in_bf16
from specbench.training.objectives.side_by_side import claim_for, learnable, plain_course, round_weights_to
from specbench.training.objectives.teacher import Remembered, Teacher
from specbench.training.recipe import Job, LoopOptions, Text, check_start

_KEPT = torch.bfloat16  # precision of saved heads, as of published ones


class HeadTrainingOptions(LoopOptions):
    """Options of every recipe that trains a head."""

    layers: int = option(1, help="layers of the head", ge=1)
    draft_vocab: int = option(
        0, help="size of the draft vocabulary: the most frequent tokens of the answers; 0 is all tokens", ge=0
    )
    start: str = option(
        "target", help="initial weights: target (copies of the target's), random, or a trained head's folder or hub id"
    )
    max_tokens: int = option(2048, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    keep_circles: int = option(
        3, help="copies kept of a segment that an answer repeats until its end; 0 keeps all", ge=0
    )
    keep_features: bool = option(
        False, help="keep the target's features of each text in memory: later epochs need no target forward"
    )
    epochs: float = option(6.0, help="passes over the texts", gt=0)
    batch: int = option(4, help="texts per batch, on each device", ge=1)

    @field_serializer("start")
    def _named(self, start: str) -> str:
        """The start for the record; of a training's folder its name, and not the path."""
        return start.rstrip("/").removesuffix("/head").rpartition("/")[2] if self.trained else start

    @property
    def trained(self) -> bool:
        """Whether the training continues with a trained head."""
        return self.start not in ("target", "random")

    def drafted(self, vocabulary: int) -> int:
        """Return ``draft_vocab``, or 0 where it is not smaller than the target's ``vocabulary``."""
        return self.draft_vocab if self.draft_vocab < vocabulary else 0


class FrozenParts:
    """Parts of the target that a lesson reads. Not a module, so that its weights are not trained, saved or moved."""

    def __init__(self, head: Any, model: Any, keep: bool) -> None:
        teacher = Teacher(model, head.config.taps)
        remembered = Remembered(teacher)
        self._head = head
        self.teach = remembered if keep else lambda ids, ends: teacher(ids)
        self.embed = getattr(head, "embed_tokens", None) or model.get_input_embeddings()
        self.lm_head: Any = model.get_output_embeddings()

    @cached_property
    def scorer(self) -> Any:
        """LM head reduced to the tokens that the draft head can draft."""
        return self._head.scorer(self.lm_head)


class HeadLesson(nn.Module, ABC):
    """A head with its loss.

    Args:
        depth: draft tokens per position in an evaluation.
        keep: keep the target's features of each text in memory.
    """

    def __init__(self, head: Any, model: Any, *, depth: int, keep: bool = False) -> None:
        super().__init__()
        self.head: Any = head
        self.frozen = FrozenParts(head, model, keep)
        self.depth = depth

    @abstractmethod
    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """Return ``loss`` of one step, and further figures.

        Args:
            ids: int64 [B, S] texts, padded at their ends.
            starts: int64 [B] first position of each answer.
            ends: int64 [B] tokens of each text.
        """

    @abstractmethod
    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """Return the best drafts [end - 1 - start, depth] after each answer token but the last, in the head's ids.

        Args:
            features: [1, S, T × H] outputs of the tapped layers.
            ids: int64 [1, S] the text, whose answer goes from ``start`` to ``end``.
        """

    def answers(self, texts: Sequence[Text], device: torch.device) -> Iterator[tuple[Tensor, int, int]]:
        """Yield (ids int64 [1, S], start, end of the answer) of the texts whose answers have at least two tokens."""
        for text in texts:
            start, end = len(text.prompt), len(text.prompt) + len(text.answer)
            if end - start >= 2:
                yield torch.tensor([[*text.prompt, *text.answer]], device=device), start, end

    @torch.no_grad()
    def held_out(self, texts: Sequence[Text], device: torch.device) -> Accepted:
        """Return the accepted lengths of the head's best chain on these texts, which are the target's own answers."""
        right, known = [], self.head.draft_ids
        for ids, start, end in self.answers(texts, device):
            features, _ = self.frozen.teach(ids, torch.tensor([end]))
            drafts = self.drafts(features, ids, start, end)
            anchors = torch.arange(start, end - 1, device=device)
            right.append(leading(drafts if known is None else known[drafts], ids[0], anchors, end))
        return Accepted.of(right, self.depth)


def check_head(options: HeadTrainingOptions, target: LoadedModel) -> None:
    """Refuse a head that starts from the target's layers and has more layers than the target."""
    if options.start == "target":
        check_start(options.layers, target)


def _copy_trained(name: str, head: Any, target: Any) -> None:
    """Copy weights and draft vocabulary of the trained head ``name``, which is checked against the target's config."""
    trained = type(head).load(name, target, device=head.device, dtype=head.dtype)
    try:
        head.load_state_dict(trained.state_dict())
    except RuntimeError as error:
        raise UsageError(
            f"cannot train head {name} on: {one_line(str(error))}; give the options that it was trained with"
        ) from error


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
        kind: class of the head, constructed from ``config``.
        lesson_of: head -> its lesson.
        start: (head, training texts): initialises an untrained head from the target.
        held_out: lesson -> accepted lengths on ``job.held_out``, and figures for the model card; None uses
            :meth:`HeadLesson.held_out`.

    Returns:
        Content of the head's model card.

    Raises:
        UsageError: no text has an answer of two tokens, ``job.out`` holds a head in training with other options, or
            the head to start from has other sizes.
    """
    texts = learnable(options, job)
    claim_for(options, job, "a head")
    device = job.target.model.device
    head = kind.random(config, device=device, seed=job.seed)
    if options.trained:
        _copy_trained(options.start, head, job.target.model.config)
    elif not config.whole:
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
        job.say(f"held out, head as saved: {accepted.look.line}")
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
