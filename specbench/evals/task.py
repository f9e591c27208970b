"""What a task is: prompts in, verdicts out. No torch is reachable from here (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench.common import Prompt, UsageError


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
        reason: "pass", or a short class of failure ("fail", "timeout", "memory", "empty"), or the exception's name.
        detail: one line for a human, at most 200 characters; never trusted, never parsed.
        also: further metrics by name, each right or wrong ("base", "strict"); all answers of a task have the same.
        extracted: the rule that found the program or the answer in the text; "" where the whole text is it.
    """

    passed: bool
    reason: str
    detail: str = ""
    also: Mapping[str, bool] = field(default_factory=dict)
    extracted: str = ""


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
        """Finds and checks the data; ``data_dir`` is ``--data-dir``, None for the other places of DESIGN §7.

        What :func:`specbench.evals.data.resolve_file` finds, here and in ``prompts``, is recorded with the run.
        """
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
        """What confines the model-written code that ``score`` runs, a line each; empty for a task that runs none."""
        ...

    def score(self, prompt_id: str, text: str) -> Verdict:
        """The verdict on one generation. Runs in the scoring process, in several threads at once."""
        ...


class JudgedTask(Task, Protocol):
    """A task whose ``task.toml`` says ``judge = true``: a model rates its answers (:mod:`specbench.evals.judge`)."""

    def questions(self) -> Mapping[str, Question]:
        """What a judge is shown, by prompt id."""
        ...
