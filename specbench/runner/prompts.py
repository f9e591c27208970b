"""A task's prompts, rendered and tokenised for one model, turn by turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from specbench.common import Prompt, UsageError, guests
from specbench.common.errors import one_line
from specbench.evals.data import recorded
from specbench.evals.draw import draw, draw_apart
from specbench.models import LoadedModel
from specbench.results.schema import Taken, TaskSpec
from specbench.runner.loop import Request
from specbench.runner.plan import Plan
from specbench.runner.stop import StopRule
from specbench.runner.tasks import TaskPlan

# An answer's text may take more tokens as history than it had when it was written; a quarter more and some is ample.
_GROWTH, _SLACK = 1.25, 32


@dataclass(frozen=True)
class Prepared:
    """A task, ready to be run.

    Attributes:
        task: as planned.
        spec: the record.
        budget: tokens of an answer.
        prompts: by id, in the order of the data; a sweep's in that in which they are used.
        longest: tokens that the longest prompt of any turn can have.
    """

    task: TaskPlan
    spec: TaskSpec
    budget: int
    prompts: Mapping[str, Prompt]
    longest: int
    _model: LoadedModel
    _first: dict[str, Sequence[int]] = field(repr=False)  # token ids of the first turns

    def request(self, prompt_id: str, repeat: int = 0, answers: Sequence[str] = ()) -> Request:
        """One turn of one prompt.

        Args:
            prompt_id: of ``prompts``.
            repeat: see :class:`Request`.
            answers: texts of the answers to its turns so far; their number decides the turn.
        """
        prompt = self.prompts[prompt_id]
        ids = self._model.encode(prompt.after(answers)) if answers else self._first[prompt_id]
        rule = StopRule(self._model.stop_ids, prompt.stops, self.budget, self._model.decode)
        return Request(prompt_id, repeat, ids, rule, 1 + len(answers), prompt.category, prompt.temperature)

    def only(self, prompt_ids: Sequence[str]) -> Prepared:
        """The same task with some of its prompts, in that order."""
        return replace(self, prompts={prompt_id: self.prompts[prompt_id] for prompt_id in prompt_ids})

    @property
    def temperatures(self) -> list[float | None]:
        """What the prompts prescribe, each once; None is the run's own."""
        return list(dict.fromkeys(prompt.temperature for prompt in self.prompts.values()))

    @property
    def ids(self) -> list[Sequence[int]]:
        """Token ids of the first turn of every prompt."""
        return [self._first[prompt_id] for prompt_id in self.prompts]


def prepare(plan: Plan, task: TaskPlan, model: LoadedModel, held_out: int | None = None) -> Prepared:
    """Reads a task's data, renders and tokenises its prompts, and checks that they fit.

    Args:
        plan: the run.
        task: one of its tasks.
        model: what renders and tokenises.
        held_out: of a sweep: so many further prompts, behind those of the plan's limit; these are then in the order of
            the draw, because a search may use the first few of them alone.

    Raises:
        UsageError: no prompts, fewer than a sweep wants, two of one id, or a prompt that leaves no room for its answers
            in the model's context.
        PluginFault: the task ended the command.
    """
    instance = copy(task.instance)  # it decides open options by the model, and another model may be asked next
    with recorded() as files, guests.hosting(task.card.who):
        every = _prompts(instance.prompts(model.has_chat_template))
    if held_out is None:
        found = draw(every, plan.limit, plan.drawn_by)
    else:
        found = [*chain(*draw_apart(every, plan.limit, held_out, plan.drawn_by))]
    if not found:
        raise UsageError(f"task '{task.card.name}' has no prompts to run")
    budget = plan.max_new_tokens or int(task.card.info["max_new_tokens"])
    prompts: dict[str, Prompt] = {}
    first: dict[str, Sequence[int]] = {}
    digest = hashlib.sha256()
    longest = 0
    for prompt in found:
        if prompt.id in prompts:
            raise UsageError(f"task '{task.card.name}' has two prompts '{prompt.id}'; give each an id of its own")
        # The last turn first: a thousand turns that do not fit are not all rendered to say so.
        last = model.encode(prompt.after([""] * (prompt.turns - 1)))
        reach = len(last) + prompt.turns * budget
        if model.context and reach > model.context:
            raise UsageError(
                f"prompt {one_line(prompt.id, 80)} has {len(last)} tokens and --max-new-tokens is {budget}"
                f"{f' in {prompt.turns} turns' if prompt.turns > 1 else ''}, but {model.spec.name} takes "
                f"{model.context} in all; lower --max-new-tokens or leave the prompt out"
            )
        asked = [*(model.encode(prompt.after([""] * turn)) for turn in range(prompt.turns - 1)), last]
        ids = asked[0]
        grown = [len(a) + turn * (int(_GROWTH * budget) + _SLACK) for turn, a in enumerate(asked)]
        longest = max(longest, *grown)
        prompts[prompt.id], first[prompt.id] = prompt, ids
        said = [prompt.id, ids, list(prompt.stops), *([list(prompt.follow_ups)] if prompt.follow_ups else [])]
        digest.update(json.dumps(said).encode())
    spec = TaskSpec(
        name=task.card.name,
        version=int(task.card.info["version"]),
        options=instance.options.model_dump(mode="json"),
        prompts=len(prompts),
        requests=sum(prompt.turns for prompt in prompts.values()),
        metric=task.card.info["metric"],
        judge=bool(task.card.info.get("judge", False)),
        prompts_sha256=digest.hexdigest(),
        taken=_taken(len(every), len(found), held_out or 0, plan.drawn_by),
        data=[*{**task.data, **files}.values()],
    )
    return Prepared(task, spec, budget, prompts, longest, model, first)


#: Letters of an id, the key of every record; those of chained prompts are long, beyond that it is a text by mistake.
_LONGEST_ID = 10_000


def _prompts(found: Any) -> Sequence[Prompt]:
    """What a task gave, where it gave prompts.

    Raises:
        Refused: it gave something else.
    """
    every = list(found)
    for at, prompt in enumerate(every):
        if not isinstance(prompt, Prompt):
            raise guests.Refused(f"prompt {at} is {type(prompt).__name__:.40}, where a Prompt is needed")
        texts = [prompt.id, prompt.text, prompt.prefill, prompt.category, *prompt.stops, *prompt.follow_ups]
        texts += [each for turn in prompt.history for each in turn]
        if not all(isinstance(each, str) for each in texts):
            raise guests.Refused(f"prompt {at} has something else than text where text is needed")
        if not 0 < len(prompt.id) <= _LONGEST_ID or len(prompt.category) > _LONGEST_ID:
            raise UsageError(f"prompt {at} has an id of {len(prompt.id):,} letters; give it 1 to {_LONGEST_ID:,}")
        warmth = prompt.temperature
        if not (warmth is None or (isinstance(warmth, (int, float)) and 0 <= warmth < float("inf"))):
            raise guests.Refused(f"prompt {at} has temperature {str(warmth)[:40]}")
    return every


def _taken(every: int, found: int, held_out: int, seed: int | None) -> Taken | None:
    """How the prompts were chosen; None where there was nothing to choose."""
    return Taken(of=every, seed=seed, held_out=held_out) if held_out or found < every else None
