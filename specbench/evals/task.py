"""The protocol of tasks: prompts in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench.common import Prompt, UsageError


@dataclass(frozen=True)
class Question:
    """The judge's input in addition to the answers, for tasks with a judge.

    Attributes:
        turns: the user turns, as in the data.
        references: reference answers by turn; None if the judge rates without one.
        forced: as in :class:`Prompt`.
    """

    turns: tuple[str, ...]
    references: tuple[str, ...] | None = None
    forced: bool = False


@dataclass(frozen=True)
class Verdict:
    """The verdict on one generation.

    Attributes:
        reason: "pass", or a short class of failure ("fail", "timeout", "memory", "empty"), or the exception's name.
        detail: one line for a human, at most 200 characters; never trusted, never parsed.
        also: further metrics by name, each True or False ("base", "strict"); the same names for all answers of a task.
        extracted: the rule that found the program or the answer in the text; "" if the whole text is the answer.
    """

    passed: bool
    reason: str
    detail: str = ""
    also: Mapping[str, bool] = field(default_factory=dict)
    extracted: str = ""


class Unscored:
    """Base of a task without verdicts (``metric = ""``)."""

    @property
    def versions(self) -> Mapping[str, str]:
        """No libraries decide a verdict."""
        return {}

    @property
    def isolation(self) -> Sequence[str]:
        """No program of a model is run, so nothing confines one."""
        return []

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Never called: ``specbench score`` refuses a task without a metric."""
        raise UsageError("this task has no verdict; there is nothing to score")


class Task(Protocol):
    """A data set with its prompts and its grader. Implemented in ``tasks/<name>/task.py``, described by ``task.toml``.

    Attributes:
        options: the task's ``Options``. ``prompts`` resolves all ``auto`` values in them, so a run that records them
            afterwards (``options.model_dump()``) tells the scorer exactly how the prompts were made.
    """

    options: Any

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        """Find and check the data; ``data_dir`` is ``--data-dir``, None for the usual places.

        Files found by :func:`specbench.evals.data.resolve_file`, here and in ``prompts``, are recorded with the run.
        """
        ...

    def prompts(self, chat: bool) -> Sequence[Prompt]:
        """All prompts in data order. ``chat``: whether the model has a chat template."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the libraries that decide a verdict; recorded with each."""
        ...

    @property
    def isolation(self) -> Sequence[str]:
        """What confines the model-written code that ``score`` runs, one line each; empty if it runs none."""
        ...

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Grade one answer. Runs in the scoring process, in several threads at once."""
        ...


class JudgedTask(Task, Protocol):
    """A task with ``judge = true`` in ``task.toml``: a model rates its answers (:mod:`specbench.evals.judge`)."""

    def questions(self) -> Mapping[str, Question]:
        """The judge's input in addition to the answers, by prompt id."""
        ...
