"""What a method's recipe is given, and what it has to have (``methods/<name>/train.py``)."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench.models import LoadedModel


@dataclass(frozen=True)
class Text:
    """A prompt with the target's own answer.

    Attributes:
        id: of the prompt, the set it comes from included.
        prompt: its token ids.
        answer: those of the answer, at least one; the stop token included where it ended by itself.
    """

    id: str
    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Job:
    """What is to be trained on what.

    Attributes:
        target: the model that is drafted for.
        texts: to learn from: each a :class:`Text`, or a :class:`specbench.training.trajectory.Trajectory`, which is one
            with more to it.
        held_out: never learnt from; what progress is measured on.
        out: folder that receives everything; what is in there from an interrupted run is gone on with.
        seed: of initial weights, order and whatever else is drawn.
        say: takes a line for the user.
        model: what ``--model`` called the target.
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

    Attributes:
        Options: its :class:`specbench.options.Options`, by which ``--set NAME=VALUE`` is checked.
    """

    Options: Any

    def train(self, options: Any, job: Job) -> Mapping[str, Any]:
        """Trains, going on from the last checkpoint in ``job.out``.

        Returns:
            What there is to say of the result, for its card: plain values by name.
        """
        ...


def apart(texts: Sequence[Text], count: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Texts to learn from, in their order, and ``count`` others, drawn by the seed."""
    aside = set(random.Random(seed).sample(range(len(texts)), count))
    learnt = [text for at, text in enumerate(texts) if at not in aside]
    return learnt, [texts[at] for at in sorted(aside)]


def digest(texts: Sequence[Text]) -> str:
    """Hash of texts and their order, to tell whether work goes on with the same ones."""
    sums = hashlib.sha256()
    for text in texts:
        sums.update(json.dumps([text.id, list(text.prompt), list(text.answer)]).encode())
    return sums.hexdigest()
