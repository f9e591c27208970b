"""Trainings of a sweep: one recipe with different options on the same answers, and a prediction of each one's cost.

The cost per text is measured: in two steps of the recipe, or, once a training is finished, over all its steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import (
    UsageError,
    option_names,
    parse_count,
    parse_flags,
    read_json_object,
    registry,
    safe_name,
    unknown_name,
    validate,
)
from specbench.models import CARD
from specbench.training.choose import choose
from specbench.training.recipe import LoopOptions
from specbench.training.running import check_given, run_collection, run_training
from specbench.training.training_plan import TrainPlan, TrajectoriesPlan

#: Axes that are not options of a recipe: the number of training texts, and the block size of their trajectories.
TEXTS, BLOCK_SIZE = "texts", "block_size"
_PROBED = 2  # steps
#: Options removed for a probe: it sets its own number of steps and has no held-out prompts.
_NOT_PROBED = frozenset({"steps", "max_loops", "max_unlikely"})
_TODO = "delete it and repeat the command"


class Predicted(NamedTuple):
    """Predicted cost of a training: tokens through the model, operations (None if not counted), hours."""

    tokens: int
    flops: float | None
    hours: float


@dataclass(frozen=True)
class Made:
    """Weights of a finished training."""

    model: str
    settings: tuple[str, ...]
    card: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training of a sweep."""

    label: str
    values: Mapping[str, Any]
    plan: TrainPlan
    options: LoopOptions

    @property
    def a_step(self) -> int:
        """Texts that one process learns from in a step."""
        return self.options.batch * self.options.accumulation

    def steps(self, texts: int) -> int:
        """Return the number of steps of a training on this many texts."""
        return self.options.steps or math.ceil(self.options.epochs * math.ceil(texts / self.a_step))


class _Took(BaseModel):
    """Fields of a card's cost that are read."""

    model_config = ConfigDict(strict=True)

    tokens_seen: int = Field(ge=0)
    flops: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    hours: float = Field(ge=0, allow_inf_nan=False)


class Finished(BaseModel):
    """Fields of a training's card that are read."""

    model_config = ConfigDict(strict=True)

    weights: str = Field(min_length=1)
    texts: int = Field(ge=0)
    steps: int = Field(ge=0)
    cost: _Took | None = None


class _Rate(NamedTuple):
    """Cost per text, and the number of texts."""

    tokens: float
    flops: float | None
    hours: float
    texts: int


class Cells:
    """Trainings of one method on one model.

    Args:
        base: plan that all trainings share; each training gets a folder in its ``out``.

    Attributes:
        method: name of the method that uses the trained weights.
        option: the method's option that takes the trained weights; None where they replace the model.
    """

    def __init__(self, base: TrainPlan, say: Callable[[str], None]) -> None:
        self._base, self._say = base, say
        self._card = registry.trainable(base.method)
        self._recipe = self._card.recipe()
        self.method = self._card.name
        self._states = bool(getattr(self._recipe, "TRAJECTORIES", False))
        self.option: str | None = getattr(self._recipe, "OPTION", None)
        if base.trajectories is not None and self._states:
            raise UsageError("cannot sweep trainings on given trajectories: the sweep makes its own; give the answers")
        if base.given:
            try:
                check_given(base, self._recipe)
            except UsageError as error:
                flags = str(error).replace("--given", "--train-given").replace("--prompts", "--train-prompts")
                raise UsageError(flags) from None
        if not base.sets and base.answers is None:
            raise UsageError(
                "cannot train: there are no training prompts or answers; give --train-prompts gsm8k-train, for "
                "example, or --train-answers FOLDER"
            )
        self._rate: _Rate | None = None

    def cell(self, values: Mapping[str, str]) -> Cell:
        """Return the training with these values of the axes."""
        known = option_names(self._recipe.Options)
        extra = [TEXTS, *([BLOCK_SIZE, "n"] if self._states and "n" not in known else [])]
        own: dict[str, str] = {}
        for name, value in values.items():
            option = known.get(name.replace("-", "_"))
            if option is None and name.replace("-", "_") not in extra:
                raise unknown_name("option", name, [*known, *extra], f"of the recipe of {self.method}")
            chosen = option or (BLOCK_SIZE if name == "n" else name.replace("-", "_"))
            if chosen in own:
                raise UsageError(
                    f"cannot use --train-grid: it sets {chosen} twice, once as {name}; write all values in one axis"
                )
            own[chosen] = value
        if both := own.keys() & {known.get(_name(setting)) for setting in self._base.settings}:
            raise UsageError(f"cannot set {min(both)} in both --train-set and --train-grid; keep one")
        whole = {name: _whole(name, own.pop(name)) for name in (TEXTS, BLOCK_SIZE) if name in own and name in extra}
        settings = [*self._base.settings, *(f"{name}={value}" for name, value in own.items())]
        options = choose(self._card, self._recipe.Options, self._base.recipe, settings)
        written = options.model_dump(mode="json")
        typed = {**whole, **{name: written[name] for name in own}}
        label = " ".join(f"{name}={value}" for name, value in values.items())
        changes: dict[str, Any] = {"settings": tuple(settings), "texts": whole.get(TEXTS, self._base.texts)}
        if self._states:
            changes["trajectories"] = self._collection(whole.get(BLOCK_SIZE)).into
        elif not self._base.given:
            changes["answers"] = self._answers
        plan = self._base.model_copy(update=changes)
        return Cell(label, typed, plan.model_copy(update={"out": self._folder(label, plan)}), options)

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Make missing trajectories, and the answers that they need, for recipes that learn from trajectories."""
        sizes = dict.fromkeys(cell.values.get(BLOCK_SIZE) for cell in cells) if self._states else {}
        for size in sizes:
            self._say(f"Jacobi states{f' of blocks of {size} tokens' if size else ''} …")
            run_collection(self._collection(size), self._say)

    def predict(self, cell: Cell) -> Predicted:
        """Predict the cost of a training from a cost per text that is measured once."""
        if self._rate is None:
            self._rate = self._probe(cell)
        rate = self._rate
        met = cell.steps(cell.plan.texts or rate.texts) * cell.a_step
        flops = None if rate.flops is None else met * rate.flops
        return Predicted(round(met * rate.tokens), flops, met * rate.hours)

    def made(self, cell: Cell) -> Made | None:
        """Return the weights of a finished training; None if it is unfinished or its weights are gone."""
        path = cell.plan.into / CARD
        if not path.exists():
            return None
        card = read_json_object(path, _TODO)
        if not Path(validate(Finished, card, path, _TODO).weights).exists():
            return None
        self._rate = self._rate_of(cell, card) or self._rate
        return self._weights(card, cell)

    def train(self, cell: Cell) -> Made:
        """Run the training, or resume it if it was interrupted."""
        made = self._weights(run_training(cell.plan, self._say), cell)
        self._rate = self._rate_of(cell, made.card) or self._rate
        return made

    @property
    def _answers(self) -> Path:
        return self._base.answers or self._base.into / "answers"

    def _collection(self, size: int | None) -> TrajectoriesPlan:
        shared = {name: getattr(self._base, name) for name in TrajectoriesPlan.model_fields.keys() & _SHARED}
        chosen = {} if size is None else {"block_size": size}
        out = self._base.into / f"states{'' if size is None else f'-n{size}'}"
        return parse_flags(TrajectoriesPlan, {**shared, **chosen, "answers": self._answers, "out": out})

    def _folder(self, label: str, plan: TrainPlan) -> Path:
        """Folder named by the axis values and a hash of everything that decides the weights."""
        deciding = plan.model_dump(mode="json", exclude={"out", "concurrency", "quiet"})
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:6]
        return self._base.into / f"{safe_name(label.replace(' ', '-'))}-{digest}"

    def _probe(self, cell: Cell) -> _Rate:
        self._say(f"measuring the cost of {_PROBED} training steps of {cell.label} …")
        with tempfile.TemporaryDirectory(prefix="specbench-") as place:
            known = option_names(self._recipe.Options)
            settings = [each for each in cell.plan.settings if known[_name(each)] not in _NOT_PROBED]
            out = {"settings": (*settings, f"steps={_PROBED}"), "held_out": 0, "out": Path(place), "texts": None}
            card = run_training(cell.plan.model_copy(update=out), lambda line: None)
        rate = self._rate_of(cell, card)
        if rate is None:
            raise UsageError(
                f"cannot predict hours: the recipe of {self._base.method} does not report its cost; remove --max-hours"
            )
        return rate._replace(texts=max(1, rate.texts - self._base.held_out))  # the probe held out none

    def _rate_of(self, cell: Cell, card: Mapping[str, Any]) -> _Rate | None:
        cost, met = card.get("cost"), card.get("steps", 0) * cell.a_step
        if not cost or not met:
            return None
        flops = cost.get("flops")
        texts = self._rate.texts if self._rate and cell.plan.texts else card["texts"]
        return _Rate(cost["tokens_seen"] / met, flops and flops / met, cost["hours"] / met, texts)

    def _weights(self, card: Mapping[str, Any], cell: Cell) -> Made:
        weights = str(card.get("weights", cell.plan.into))
        if self.option is None:
            return Made(weights, (), card)
        return Made(self._base.model, (f"{self.method}.{self.option}={weights}",), card)


#: Fields that a collection of trajectories takes from the training's plan.
_SHARED = frozenset(TrainPlan.model_fields) - {"out", "answers", "trajectories"}


def _name(setting: str) -> str:
    return setting.partition("=")[0].replace("-", "_")


def _whole(name: str, value: str) -> int:
    if not (number := parse_count(value)):
        raise UsageError(f"cannot set {name}={value}: it is not a whole number of at least 1; correct --train-grid")
    return number
