"""Callbacks of transformers' loop: what is said, looked at and done around its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from specbench.training.recipe import Job


class FirstLook(TrainerCallback):
    """A look before the first step, which the later ones are held against.

    Args:
        look: takes it.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.global_step:
            self._look()


class Says(TrainerCallback):
    """Lines for the user while a training goes on; the last step is logged and looked at, too.

    Args:
        job: says them.
        answer_tokens: (steps) -> tokens of answers that they learn from.
    """

    def __init__(self, job: Job, answer_tokens: Callable[[int], int]) -> None:
        self._job, self._answer_tokens = job, answer_tokens
        self._since = (0, time.perf_counter())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = (state.global_step, time.perf_counter())

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
        loop = ("loss", "grad_norm", "learning_rate", "epoch")
        figures = [f"{name} {value:.3f}" for name, value in logs.items() if name not in loop]
        self._job.say(
            f"step {state.global_step}/{state.max_steps}  "
            + "  ".join([f"loss {logs['loss']:.3f}", *figures, f"lr {logs['learning_rate']:.1e}", f"{speed:.0f} tok/s"])
        )

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = (state.global_step, time.perf_counter())  # a look is no time of learning


class Before(TrainerCallback):
    """What a course does before a step.

    Args:
        before_step: told (steps taken, steps in all).
    """

    def __init__(self, before_step: Callable[[int, int], None]) -> None:
        self._before_step = before_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._before_step(state.global_step, state.max_steps)
