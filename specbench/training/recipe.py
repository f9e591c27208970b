"""What a method's ``train.py`` is given and has to have, and the options that recipes share."""

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

#: A token id as files have it: int32 holds every vocabulary, and torch takes no more in an index than int64.
Token = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class Text:
    """A prompt with the target's own answer.

    Attributes:
        answer: those of the answer, at least one; the stop token included where it ended by itself.
    """

    id: str
    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Job:
    """What is to be trained on what.

    Attributes:
        texts: to learn from: each a :class:`Text`, or a ``Trajectory`` of :mod:`specbench.training.data`, which is one
            with more to it.
        held_out: never learnt from; what progress is measured on.
        out: folder that receives everything; what is in there from an interrupted run is gone on with.
        say: takes a line for the user.
        about: what there is to say of the texts, for the card of what comes of it: plain values by name.
        score: (prompt id, text of an answer) -> whether it is right; None where nobody can say.
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
        """Trains, going on from the last checkpoint in ``job.out``."""
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
    """Texts to learn from, in their order, and ``count`` others, drawn by the seed."""
    aside = set(random.Random(seed).sample(range(len(texts)), count))
    learnt = [text for at, text in enumerate(texts) if at not in aside]
    return learnt, [texts[at] for at in sorted(aside)]


def some(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """``count`` of the texts, in their order, drawn by the seed: of fewer, those are among those of more."""
    if count > len(texts):
        raise UsageError(f"there are {len(texts)} texts to learn from, not {count}; lower --texts, or hold fewer out")
    drawn = list(range(len(texts)))
    random.Random(seed).shuffle(drawn)
    return [texts[at] for at in sorted(drawn[:count])]


def digest(texts: Sequence[Text]) -> str:
    """Hash of texts and their order, to tell whether work goes on with the same ones."""
    sums = hashlib.sha256()
    for text in texts:
        sums.update(json.dumps([text.id, list(text.prompt), list(text.answer)]).encode())
    return sums.hexdigest()


#: Options that may differ when a training goes on: they are no part of what is learnt.
FREE = frozenset({"log_every", "eval_every", "save_every", "watched", "activation_checkpointing"})
#: Those of them that are one where a look may end the training.
LOOKS = frozenset({"eval_every", "watched"})


class LoopOptions(Options):
    """Options of :func:`specbench.training.loop.trainer.fit`."""

    epochs: float = option(1.0, help="passes over the texts", gt=0)
    steps: int = option(0, help="steps in place of epochs; 0 is by epochs", ge=0)
    batch: int = option(1, help="texts of a step, on each device", ge=1)
    accumulation: int = option(1, help="batches whose gradients make one step", ge=1)
    lr: float = option(1e-4, help="learning rate, after warm-up and before its cosine", gt=0)
    warmup: float = option(0.03, help="share of the steps", ge=0, le=1)
    weight_decay: float = option(0.0, help="of AdamW", ge=0)
    beta1: float = option(0.9, help="of AdamW", ge=0, lt=1)
    beta2: float = option(0.999, help="of AdamW", ge=0, lt=1)
    clip: float = option(1.0, help="largest norm of the gradient", gt=0)
    bf16: bool | None = option(None, help="products in bfloat16; default is on CUDA, and on CPUs that have it")
    log_every: int = option(10, help="steps", ge=1)
    eval_every: int = option(200, help="steps between looks at held-out texts", ge=1)
    save_every: int = option(200, help="steps between checkpoints", ge=1)


class WeightOptions(LoopOptions):
    """Options of :func:`specbench.training.finetuning.finetune`."""

    full: bool = option(False, help="train all weights and keep a checkpoint; default is a LoRA adapter")
    lora_rank: int = option(16, "r", help="of the adapter", ge=1)
    lora_alpha: float = option(32.0, help="of the adapter: its part is scaled by alpha/rank", gt=0)
    lora_dropout: float = option(0.0, help="of the adapter's input", ge=0, lt=1)
    lora_targets: str = option("all-linear", help="names of layers, joined by +; all-linear leaves the LM head out")
    activation_checkpointing: bool = option(
        False, "checkpointing", help="compute activations again in the backward pass: less memory, a third more time"
    )
    attention: Literal["auto", "sdpa", "eager", "flex_attention"] = option(
        "auto", help="of training; auto: flex_attention on CUDA where blocks are masked, eager for bfloat16 on a CPU"
    )
    watched: int = option(8, help="held-out prompts decoded at each look; before and after training all are", ge=1)
    max_loops: float | None = option(
        None,
        help="a look ends the training where closing loops have so much more of the tokens than before it, as a share; "
        "the weights of the look before are kept. Default is never",
        ge=0,
        le=1,
    )
    max_unlikely: float | None = option(
        None,
        help="likewise where the log-likelihood under the target, of answers that do not loop, is lower by so large a "
        "share",
        ge=0,
    )

    @model_validator(mode="after")
    def _has_the_target_at_hand(self) -> WeightOptions:
        if self.full and self.max_unlikely is not None:
            raise ValueError("max_unlikely goes with an adapter: where all weights learn, the target's are gone")
        return self

    @property
    def may_end(self) -> bool:
        """Whether a look may end the training."""
        return self.max_loops is not None or self.max_unlikely is not None
