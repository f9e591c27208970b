"""Interface between the training command and a method's ``train.py``, and the options that recipes share."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from specbench.common import Options, UsageError, option

if TYPE_CHECKING:
    from specbench.models import LoadedModel

#: A token id in a file: every vocabulary fits into int32.
Token = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and of its answer.

    Attributes:
        answer: at least one token; ends with the stop token unless the answer was cut at its token budget.
    """

    id: str
    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Job:
    """A training to run: target, texts and output folder.

    Attributes:
        texts: texts to learn from: each a :class:`Text`, or a ``Trajectory`` of :mod:`specbench.training.data`, which
            has the same attributes and more.
        held_out: texts for evaluations, never learnt from.
        out: folder for all output; a training that was interrupted there is resumed.
        say: prints a line for the user.
        model: name or path of the target.
        about: facts on the texts for the model card, plain values by name.
        score: (prompt id, text of an answer) -> whether the answer is correct; None if it cannot be scored.
    """

    target: LoadedModel
    texts: Sequence[Any]
    held_out: Sequence[Any]
    out: Path
    seed: int
    say: Callable[[str], None]
    model: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    score: Callable[[str, str], bool | None] = lambda prompt_id, text: None


class Recipe(Protocol):
    """The module ``methods/<name>/train.py``.

    It may have a function ``check(options, target)``, called when the target is loaded and before any answer is made,
    which raises a UsageError for options that this target cannot take.
    """

    Options: Any

    def train(self, options: Any, job: Job) -> Mapping[str, Any]:
        """Train, resuming from the last checkpoint in ``job.out``, and return the content of the model card."""
        ...


def check_start(layers: int, target: LoadedModel) -> None:
    """Check that a head of ``layers`` layers can begin as copies of the target's last layers."""
    there = target.model.config.get_text_config().num_hidden_layers
    if layers > there:
        raise UsageError(
            f"cannot start a head of {layers} layers from {target.spec.name}: it has {there}; set layers={there} or "
            "less, or start=random"
        )


def apart(texts: Sequence[Text], count: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Split texts into training texts and ``count`` held-out ones, sampled with the seed; both keep their order."""
    aside = set(random.Random(seed).sample(range(len(texts)), count))
    learnt = [text for at, text in enumerate(texts) if at not in aside]
    return learnt, [texts[at] for at in sorted(aside)]


def some(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """Return ``count`` texts sampled with the seed, in their order; a smaller sample is a subset of a larger one."""
    if count > len(texts):
        raise UsageError(
            f"cannot learn from {count} texts: there are {len(texts)} after the held-out ones; lower --texts or "
            "--held-out"
        )
    drawn = list(range(len(texts)))
    random.Random(seed).shuffle(drawn)
    return [texts[at] for at in sorted(drawn[:count])]


def digest(texts: Sequence[Text]) -> str:
    """Return a hash of texts and their order, which shows whether a resumed training has the same texts."""
    sums = hashlib.sha256()
    for text in texts:
        sums.update(json.dumps([text.id, list(text.prompt), list(text.answer)]).encode())
    return sums.hexdigest()


#: Options that may change when a training is resumed: they do not affect the weights.
FREE = frozenset({"log_every", "eval_every", "save_every", "watched", "activation_checkpointing"})
#: Options among them that must not change if an evaluation may end the training.
EVALUATION_OPTIONS = frozenset({"eval_every", "watched"})


class LoopOptions(Options):
    """Options of :func:`specbench.training.loop.trainer.fit`."""

    epochs: float = option(1.0, help="passes over the texts", gt=0)
    steps: int = option(0, help="number of steps, overrides epochs; 0 is set by epochs", ge=0)
    batch: int = option(1, help="texts per batch, on each device", ge=1)
    accumulation: int = option(1, help="batches whose gradients are combined into one step", ge=1)
    lr: float = option(1e-4, help="peak learning rate: after warm-up it decays along a cosine", gt=0)
    warmup: float = option(0.03, help="share of the steps that warm up the learning rate", ge=0, le=1)
    weight_decay: float = option(0.0, help="weight decay of AdamW", ge=0)
    beta1: float = option(0.9, help="beta1 of AdamW", ge=0, lt=1)
    beta2: float = option(0.999, help="beta2 of AdamW", ge=0, lt=1)
    clip: float = option(1.0, help="largest norm of the gradient", gt=0)
    bf16: bool | None = option(
        None, help="matrix products in bfloat16; by default on CUDA and on CPUs with bfloat16 instructions"
    )
    log_every: int = option(10, help="steps between printed lines", ge=1)
    eval_every: int = option(200, help="steps between evaluations on held-out texts", ge=1)
    save_every: int = option(200, help="steps between checkpoints", ge=1)


class WeightOptions(LoopOptions):
    """Options of :func:`specbench.training.finetuning.finetune`."""

    full: bool = option(False, help="train all weights and keep a checkpoint; default is a LoRA adapter")
    lora_rank: int = option(16, "r", help="rank of the adapter", ge=1)
    lora_alpha: float = option(32.0, help="the adapter's output is scaled by lora_alpha / lora_rank", gt=0)
    lora_dropout: float = option(0.0, help="dropout of the adapter's input", ge=0, lt=1)
    lora_targets: str = option(
        "all-linear", help="names of the adapted layers, joined by +; all-linear is all but the LM head"
    )
    activation_checkpointing: bool = option(
        False, "checkpointing", help="recompute activations in the backward pass: less memory, a third more time"
    )
    attention: Literal["auto", "sdpa", "eager", "flex_attention"] = option(
        "auto",
        help="attention in training; auto is eager for bfloat16 on a CPU, else sdpa",
    )
    watched: int = option(
        8, help="held-out prompts decoded in each evaluation; before and after training all are decoded", ge=1
    )
    max_loops: float | None = option(
        None,
        help="end training when the share of tokens in repetitive text has grown by more than this since before "
        "training; keep the weights of the evaluation before. Off by default",
        ge=0,
        le=1,
    )
    max_unlikely: float | None = option(
        None,
        help="end training likewise when the log-likelihood of non-repetitive answers under the target has dropped by "
        "more than this share",
        ge=0,
    )

    @model_validator(mode="after")
    def _has_the_target_at_hand(self) -> WeightOptions:
        if self.full and self.max_unlikely is not None:
            raise ValueError("max_unlikely needs an adapter: full=true overwrites the target's weights")
        return self

    @property
    def may_end(self) -> bool:
        """Whether an evaluation may end the training."""
        return self.max_loops is not None or self.max_unlikely is not None
