"""What a task is: prompts in, verdicts out. No torch is reachable from here (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from specbench.errors import UsageError

Turn = tuple[Literal["system", "user", "assistant"], str]


@dataclass(frozen=True)
class Prompt:
    """One item of a task before tokenisation.

    Attributes:
        id: stable id of the item within its task ("HumanEval/0"); the key that joins speed and verdict.
        text: the raw prompt (``completion`` style) or the user turn (``chat`` style).
        chat: render ``text`` as a user turn through the model's chat template.
        prefill: text put at the start of the assistant's answer, chat style only; part of the prompt, not the output.
        stops: strings that end the answer; the answer's text is cut before the first of them.
        history: turns before ``text``, chat style only: a system prompt, few-shot examples, earlier turns.
        follow_ups: user turns asked one by one, each after the answer to the one before. In completion style a
            follow-up is the text that goes on behind the answer.
        forced: follow-ups are asked after AR's answers and not the method's own, so that all methods are timed on the
            same input.
        category: row of a per-category table, "GROUP" or "GROUP/CATEGORY"; empty for none.
        temperature: what the protocol prescribes for this item; None is the run's.
    """

    id: str
    text: str
    chat: bool
    prefill: str = ""
    stops: tuple[str, ...] = ()
    history: tuple[Turn, ...] = ()
    follow_ups: tuple[str, ...] = ()
    forced: bool = False
    category: str = ""
    temperature: float | None = None

    @property
    def turns(self) -> int:
        """How often it is answered."""
        return 1 + len(self.follow_ups)

    def after(self, answers: Sequence[str]) -> Prompt:
        """The prompt of the next turn, the turns so far in its history.

        Args:
            answers: texts of the answers so far, fewer than ``turns``.
        """
        if not self.chat:
            text = self.text + "".join(map("".join, zip(answers, self.follow_ups, strict=False)))
            return replace(self, text=text, follow_ups=self.follow_ups[len(answers) :])
        asked = (self.text, *self.follow_ups)
        said: list[Turn] = list(self.history)
        for question, answer in zip(asked, answers, strict=False):
            # Without the blanks around it, as FastChat and Spec-Bench write a turn back; most templates drop them too.
            said += [("user", question), ("assistant", answer.strip())]
        return replace(self, text=asked[len(answers)], history=tuple(said), follow_ups=asked[len(answers) + 1 :])


@dataclass(frozen=True)
class Question:
    """What a judge is shown beside the answers, for tasks that are judged.

    Attributes:
        turns: the user turns as the data have them.
        references: right answers by turn; None where the judge rates without.
        forced: as in :class:`Prompt`.
    """

    turns: tuple[str, ...]
    references: tuple[str, ...] | None = None
    forced: bool = False


@dataclass(frozen=True)
class Verdict:
    """The verdict on one generation.

    Attributes:
        passed: whether the answer is right, by the task's headline metric.
        reason: "pass", or a short class of failure ("fail", "timeout", "memory", "empty"), or the exception's name.
        detail: one line for a human, at most 200 characters; never trusted, never parsed.
        also: further metrics by name, each right or wrong ("base", "strict"); all answers of a task have the same.
    """

    passed: bool
    reason: str
    detail: str = ""
    also: Mapping[str, bool] = field(default_factory=dict)


class Unscored:
    """Base of a task with ``metric = ""``: what a scorer would ask for, were there a verdict."""

    @property
    def versions(self) -> Mapping[str, str]:
        """There is no verdict to decide."""
        return {}

    @property
    def isolation(self) -> Sequence[str]:
        """No program of a model is run."""
        return []

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Never asked for: ``specbench score`` refuses a task without a metric."""
        raise UsageError("this task has no verdict; there is nothing to score")


class Task(Protocol):
    """A data set with its prompts and its verdict. Implemented in ``tasks/<name>/task.py``, described by ``task.toml``.

    Attributes:
        options: the task's ``Options``. After ``prompts`` nothing in them is left to be decided, so that a run which
            records them then (``options.model_dump()``) gives the scorer what the prompts were made with.
    """

    options: Any

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        """Finds and checks the data; ``data_dir`` is ``--data-dir``, None for the other places of DESIGN §7."""
        ...

    def prompts(self, chat: bool) -> Sequence[Prompt]:
        """All prompts in data order; ``chat`` says whether the model has a chat template."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the libraries that decide a verdict; recorded with each."""
        ...

    @property
    def isolation(self) -> Sequence[str]:
        """What confines the model-written code that ``score`` runs, a line each; empty for a task that runs none.

        Raises:
            EnvironmentRefused: this machine cannot run it safely.
        """
        ...

    def score(self, prompt_id: str, text: str) -> Verdict:
        """The verdict on one generation. Runs in the scoring process, in several threads at once."""
        ...


class JudgedTask(Task, Protocol):
    """A task whose ``task.toml`` says ``judge = true``: a model rates its answers (:mod:`specbench.judging`)."""

    def questions(self) -> Mapping[str, Question]:
        """What a judge is shown, by prompt id."""
        ...
