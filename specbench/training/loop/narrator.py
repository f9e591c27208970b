"""Callback around training steps: prints progress, evaluates before the first step, calls the course's hook."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from specbench.training.recipe import Job

_OF_LOOP = ("loss", "grad_norm", "learning_rate", "epoch")


class Narrator(TrainerCallback):
    """Print progress, and evaluate before the first step and after the last one.

    Args:
        answer_tokens: steps -> answer tokens that they learn from.
        before_step: the course's hook, called with (step, all steps) before each step.
    """

    def __init__(
        self,
        job: Job,
        answer_tokens: Callable[[int], int],
        evaluate: Callable[[], object],
        before_step: Callable[[int, int], None] | None,
    ) -> None:
        self._job, self._answer_tokens = job, answer_tokens
        self._evaluate, self._before_step = evaluate, before_step
        self._since = (0, time.perf_counter())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.global_step:
            self._evaluate()
        self._since = (state.global_step, time.perf_counter())

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._before_step is not None:
            self._before_step(state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == state.max_steps:
            control.should_log = True
            control.should_evaluate = args.eval_strategy != "no"
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        step, began = self._since
        tokens = self._answer_tokens(state.global_step) - self._answer_tokens(step)
        speed = tokens / max(1e-9, time.perf_counter() - began)
        self._since = (state.global_step, time.perf_counter())
        figures = [f"{name} {value:.3f}" for name, value in logs.items() if name not in _OF_LOOP]
        self._job.say(
            f"step {state.global_step}/{state.max_steps}  "
            + "  ".join([f"loss {logs['loss']:.3f}", *figures, f"lr {logs['learning_rate']:.1e}", f"{speed:.0f} tok/s"])
        )

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = (state.global_step, time.perf_counter())  # exclude the evaluation from the printed speed
