"""A local judge: any model that the loader supports, decoded greedily by AR on our engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from specbench import models
from specbench.analysis import read_run
from specbench.common import Tenths, Turn
from specbench.evals import (
    JudgePrompt,
    Unanswered,
    build_dialogue,
    choose_style,
)
from specbench.models import LoadedModel
from specbench.planning import plan_methods
from specbench.results import BASELINE, JudgeSpec, RunFolder
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.stop import StopRule


def judge_runs(
    runs: Sequence[Path], judge: str, say: Callable[[str], None], data_dir: Path | None = None, *,
    max_tokens: int = 2048, **loading: Any,
) -> None:  # fmt: skip
    """Let a model, loaded once, rate the answers of runs that it has not rated; ``loading``: how to load it."""
    from specbench.evals import JudgePrompts, judge_all, judge_questions, judged_answers

    asked = []
    for run in runs:  # before the judge is loaded, which takes time
        with RunFolder.reopen(run):
            read = read_run(run)
            questions = judge_questions(read.config.task, data_dir)
            asked.append((run, judged_answers(read.records, questions, JudgePrompts(data_dir))))
    say(f"loading {judge} …")
    model = models.load(judge, **loading)
    progress = Tenths(say, lambda done, total: f"judging answers, {done} of {total} …")
    for run, made in asked:
        texts = [answer.prompt for answer in made]
        with RunFolder.reopen(run), closing(LocalJudge(model, texts, max_tokens=max_tokens)) as who:
            judge_all(run, who, made, progress)


class LocalJudge:
    """A loaded model with a session of its own. Close it when done."""

    def __init__(self, model: LoadedModel, prompts: Sequence[JudgePrompt], *, max_tokens: int) -> None:
        """The cache is sized for the longest of ``prompts`` that fits.

        Raises UsageError if its chat template does not accept a system prompt.
        """
        self._model = model
        self._style = choose_style("auto", model.has_chat_template, "")
        self._control = _control_tokens(model.tokenizer)
        self._stops = build_dialogue("", [""], self._style).stops
        self._ids = {prompt.sha256: self._encode(prompt) for prompt in prompts}
        room = (model.context or 1 << 30) - max_tokens
        self._fits = {sha for sha, ids in self._ids.items() if len(ids) <= room}
        longest = max((len(self._ids[sha]) for sha in self._fits), default=1)
        self._session = Session(model, plan_methods([BASELINE], []), capacity=longest + max_tokens)
        self.spec = JudgeSpec(
            id=model.spec.name,
            kind="local",
            fingerprint=model.spec.fingerprint,
            dtype=model.spec.dtype,
            max_tokens=max_tokens,
        )

    def _encode(self, prompt: JudgePrompt) -> list[int]:
        system: Turn = ("system", prompt.system)
        user = prompt.free_of(self._control)
        return self._model.encode(build_dialogue(prompt.name, [user], self._style, history=[system]))

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's words. Raises Unanswered if prompt and judgment do not fit in its context."""
        ids = self._ids[prompt.sha256]
        budget = self.spec.max_tokens
        assert budget is not None
        if prompt.sha256 not in self._fits:
            raise Unanswered(f"{len(ids)} tokens and {budget} more do not fit in its {self._model.context}")
        rule = StopRule(self._model.stop_ids, self._stops, budget, self._model.decode)
        (ar,) = self._session.methods
        (record,) = self._session.decode(ar, [Request(prompt.sha256, 0, ids, rule)])
        return record.text

    def close(self) -> None:
        """Free the engine."""
        self._session.close()


def _control_tokens(tokenizer: Any) -> frozenset[str]:
    """Texts that this judge's tokenizer reads as control tokens anywhere."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset({str(token) for token in added if token.special} | {*getattr(tokenizer, "all_special_tokens", ())})
