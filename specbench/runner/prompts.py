"""Render and tokenise a task's prompts for one model, turn by turn."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any

from specbench.common import EnvironmentRefused, Prompt, UsageError, one_line, plugins, read_text
from specbench.evals import draw_from_each, draw_prompts, recording_files
from specbench.models import LoadedModel
from specbench.planning import Plan, TaskPlan
from specbench.results import Dated, PromptDraw, TaskSpec
from specbench.runner.growing import grow_prompts, other_prompts
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

# An answer's text may take more tokens as history than when it was generated; a quarter more and some is ample.
_GROWTH, _SLACK = 1.25, 32

_MOST_SPARE = 64

# A time that stands for any time, and the tokens by which times may differ.
_FIXED, _DATE = datetime(2001, 2, 3, 4, 5, 6), 32


@dataclass(frozen=True)
class Prepared:
    """A task, ready to run; prompts by id, in the order of the data (in a sweep, in the order of use).

    ``spare``: some prompts that the run does not measure, for requests that only load the system.
    """

    task: TaskPlan
    spec: TaskSpec
    budget: int
    prompts: Mapping[str, Prompt]
    longest: int
    _model: LoadedModel
    _first: dict[str, Sequence[int]] = field(repr=False)  # token ids of the first turns
    # Control token -> number of turns from which a duplicate was removed.
    _taken: Mapping[int, int] = field(default_factory=dict)
    spare: Mapping[str, Prompt] = field(default_factory=dict)

    def request(self, prompt_id: str, repeat: int = 0, answers: Sequence[str] = ()) -> Request:
        """One turn of one prompt; the number of ``answers`` so far decides which."""
        prompt = self.prompts.get(prompt_id) or self.spare[prompt_id]
        ids = self._model.encode(prompt.after(answers)) if answers else self._first[prompt_id]
        rule = StopRule(self._model.stop_ids, prompt.stops, self.budget, self._model.decode)
        return Request(
            prompt_id, repeat, ids, rule, 1 + len(answers), prompt.category, prompt.temperature,
            grown_from=prompt.grown_from,
        )  # fmt: skip

    def reference(self, prompt_id: str) -> tuple[Sequence[int], Sequence[int]]:
        """Token ids of what comes before the prompt's reference text and of that text, up to the budget."""
        prompt = self.prompts[prompt_id]
        asked, whole = self._first[prompt_id], self._model.encode(replace(prompt, text=prompt.text + prompt.reference))
        alike = next((at for at, pair in enumerate(zip(asked, whole, strict=False)) if pair[0] != pair[1]), len(asked))
        return whole[:alike], whole[alike : len(asked) + self.budget]

    def as_recorded(self, record: TaskSpec) -> Prepared:
        """The same task with the recorded time in its prompts; EnvironmentRefused if the prompts then differ from the
        recorded ones.
        """
        if record.dated is None or self.spec.dated is None or record.dated.at == self.spec.dated.at:
            return self
        model = self._model.at(datetime.fromisoformat(record.dated.at))
        rendered = _rendered(self.task, [*self.prompts.values()], model, self.budget)
        if rendered.sha256 != record.prompts_sha256:
            raise EnvironmentRefused(
                f"prompts of {self.task.card.name} are other tokens than on {record.dated.at}, although the time in "
                "them is the same; choose another --out to start again"
            )
        return replace(self, spec=record, _model=model, _first=rendered.first)

    @property
    def notes(self) -> list[str]:
        """Notes for the user about these prompts, one line each."""
        names = ", ".join(
            f"{one_line(repr(self._model.tokenizer.convert_ids_to_tokens(token)), 40)} ({token}) in {count}"
            for token, count in sorted(self._taken.items())
        )
        return [f"one of two equal control tokens in a row was removed from prompts: {names}"] if names else []

    def only(self, prompt_ids: Sequence[str]) -> Prepared:
        """The same task with some of its prompts, in the given order."""
        return replace(self, prompts={prompt_id: self.prompts[prompt_id] for prompt_id in prompt_ids})

    @property
    def temperatures(self) -> list[float | None]:
        """The temperatures prescribed by the prompts, each once; None is the run's own."""
        return list(dict.fromkeys(prompt.temperature for prompt in self.prompts.values()))

    @property
    def ids(self) -> list[Sequence[int]]:
        """Token ids of the first turn of every prompt."""
        return [self._first[prompt_id] for prompt_id in self.prompts]


def prepare(plan: Plan, task: TaskPlan, model: LoadedModel, held_out: int | None = None) -> Prepared:
    """Read a task's data, render and tokenise its prompts, and check that they fit.

    A sweep takes ``held_out`` further prompts after those of the plan's limit; all are then in random order, because a
    search may use only the first few. Raises UsageError for no or too few prompts, duplicate ids, or a prompt that
    leaves no space for its answers; PluginFault if the task tried to end the command.
    """
    instance = copy(task.instance)  # it resolves options for the model, and another model may be used next
    with recording_files() as files, plugins.plugin_call(task.card.who):
        every = _prompts(instance.prompts(model.has_chat_template))
    if held_out is None:
        found = draw_prompts(every, plan.limit, plan.drawn_by)
    else:
        found = [*chain(*draw_from_each(every, plan.limit, held_out, plan.drawn_by))]
    if not found:
        raise UsageError(f"task '{task.card.name}' has no prompts to run")
    if plan.keep_prefix and (
        any(prompt.follow_ups for prompt in found) or not any(prompt.recorded for prompt in found)
    ):
        raise UsageError(
            f"cannot keep prefixes: task '{task.card.name}' has no recorded conversations, whose turns are known "
            "before they are answered; remove --keep-prefix"
        )
    budget = plan.max_new_tokens or int(task.card.info["max_new_tokens"])
    if plan.grown:
        if plan.context_file is not None:
            text = read_text(plan.context_file, "give another --context-file")
        else:
            text = other_prompts(every, found)
        found = [*grow_prompts(found, plan.grown, text, model)]
    rendered = _rendered(task, found, model, budget)
    dated = None
    if getattr(model, "asks_time", False):  # a model without a chat template may accept no chat
        undated = _rendered(task, found, model.at(_FIXED), budget)
        dated = Dated(at=model.now.isoformat(), undated_sha256=undated.sha256)
        slack = [rendered.longest + _DATE, *([model.context - budget] if model.context else [])]
        rendered = replace(rendered, longest=max(rendered.longest, min(slack)))
    prompts = {prompt.id: prompt for prompt in found}
    spec = TaskSpec(
        name=task.card.name,
        version=int(task.card.info["version"]),
        options=instance.options.model_dump(mode="json"),
        prompts=len(prompts),
        requests=sum(prompt.turns for prompt in prompts.values()),
        metric="" if plan.grown else task.card.info["metric"],
        lengths=plan.grown,
        judge=bool(task.card.info.get("judge", False)) and not plan.grown,
        prompts_sha256=rendered.sha256,
        taken=_taken(len(every), len(found) // max(1, len(plan.grown)), held_out or 0, plan.drawn_by),
        data=[*{**task.data, **files}.values()],
        dated=dated,
    )
    made = Prepared(task, spec, budget, prompts, rendered.longest, model, rendered.first, rendered.taken)
    return _with_spare(made, every, model) if plan.loaded and not plan.grown else made


def _with_spare(prepared: Prepared, every: Sequence[Prompt], model: LoadedModel) -> Prepared:
    """Add prompts that were not chosen and are no longer than the chosen ones."""
    others = [prompt for prompt in every if prompt.id not in prepared.prompts][:_MOST_SPARE]
    ids = {prompt.id: model.encode(prompt.after([])) for prompt in others}
    spare = {prompt.id: prompt for prompt in others if len(ids[prompt.id]) <= prepared.longest}
    first = {**prepared._first, **{name: ids[name] for name in spare}}
    return replace(prepared, spare=spare, _first=first)


@dataclass(frozen=True)
class _Rendered:
    """Tokenised prompts: first turns by id, a hash of all, length of the longest, and removed control tokens."""

    first: dict[str, Sequence[int]]
    sha256: str
    longest: int
    taken: Mapping[int, int]


def _rendered(task: TaskPlan, found: Sequence[Prompt], model: LoadedModel, budget: int) -> _Rendered:
    """Render and tokenise prompts."""
    first: dict[str, Sequence[int]] = {}
    before = Counter(getattr(model, "doubles", ()))
    digest = hashlib.sha256()
    longest = 0
    for prompt in found:
        if prompt.id in first:
            raise UsageError(f"task '{task.card.name}' has two prompts '{prompt.id}'; give each an id of its own")
        asked: dict[int, list[int]] = {}
        # The last turn first: if it does not fit, a thousand turns need not be rendered. Recorded turns in their order:
        # an error names the first turn that the model cannot take.
        for turn in range(prompt.turns) if prompt.recorded else reversed(range(prompt.turns)):
            asked[turn] = model.encode(prompt.after([""] * turn))
            _check_fits(prompt, turn, asked[turn], budget, model)
        growth = 0 if prompt.recorded else int(_GROWTH * budget) + _SLACK
        longest = max(longest, *(len(each) + turn * growth for turn, each in asked.items()))
        first[prompt.id] = asked[0]
        fields = [prompt.id, asked[0], list(prompt.stops)]
        later: list[Any] = [*prompt.follow_ups] or [asked[turn] for turn in range(1, prompt.turns)]
        digest.update(json.dumps([*fields, *([later] if later else [])]).encode())
    return _Rendered(first, digest.hexdigest(), longest, Counter(getattr(model, "doubles", ())) - before)


def _check_fits(prompt: Prompt, turn: int, ids: Sequence[int], budget: int, model: LoadedModel) -> None:
    answers = 1 if prompt.recorded else 1 + turn
    if model.context and len(ids) + answers * budget > model.context:
        raise UsageError(
            f"prompt {one_line(prompt.id, 80)} has {len(ids)} tokens and --max-new-tokens is {budget}"
            f"{f' in {answers} turns' if answers > 1 else ''}, but {model.spec.name} takes "
            f"{model.context} in all; lower --max-new-tokens or leave the prompt out"
        )


#: Most letters of an id, the key of every record; ids of chained prompts are long, and longer ones are mistakes.
_LONGEST_ID = 10_000


def _prompts(found: Any) -> Sequence[Prompt]:
    """Check that a task returned valid prompts."""
    every = list(found)
    for at, prompt in enumerate(every):
        if not isinstance(prompt, Prompt):
            raise plugins.Refused(f"prompt {at} is {type(prompt).__name__:.40}, not a Prompt")
        texts = [prompt.id, prompt.text, prompt.prefill, prompt.category, *prompt.stops, *prompt.follow_ups]
        texts += [each for turn in prompt.history for each in turn]
        texts += [message.get("role", "") for message in prompt.messages]
        if not all(isinstance(each, str) for each in texts):
            raise plugins.Refused(f"prompt {at} has something else than text where text is needed")
        if not 0 < len(prompt.id) <= _LONGEST_ID or len(prompt.category) > _LONGEST_ID:
            raise UsageError(f"prompt {at} has an id of {len(prompt.id):,} letters; give it 1 to {_LONGEST_ID:,}")
        warmth = prompt.temperature
        if not (warmth is None or (isinstance(warmth, (int, float)) and 0 <= warmth < float("inf"))):
            raise plugins.Refused(f"prompt {at} has temperature {str(warmth)[:40]}")
    return every


def _taken(every: int, found: int, held_out: int, seed: int | None) -> PromptDraw | None:
    """How the prompts were chosen; None if all were taken."""
    return PromptDraw(of=every, seed=seed, held_out=held_out) if held_out or found < every else None
