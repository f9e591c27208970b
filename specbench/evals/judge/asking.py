"""Ask a judge several questions at once; answers are taken in the order of the questions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from specbench.evals.judge.judge_prompts import JudgePrompt

_AHEAD = 4  # questions per worker that may be sent before the first answer; each costs, and may turn out unnecessary
_LOOK_S = 0.1  # an unlimited wait may miss a Ctrl-C just before it


class Asks(Protocol):
    """The part of a judge used here; called by several threads at once if there are several workers."""

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's reply."""
        ...


class Asking:
    """Hand questions to workers in order. Close it when done.

    One worker is the caller itself; more are threads, which end when the judge is closed. After a fault of the judge no
    further question is sent, but earlier ones are, so the fault raised is the first in the order of the questions.
    """

    def __init__(self, judge: Asks, prompts: Sequence[JudgePrompt], workers: int, refusal: type[Exception]) -> None:
        """
        Args:
            prompts: in the order in which their answers will be needed; equal prompts are asked once.
            refusal: exception of a judge that refuses one question; it is not a fault, and other questions go on.
        """
        self._judge = judge
        self._left = deque({prompt.sha256: prompt for prompt in prompts}.values())
        self._refusal = refusal
        self._ahead = _AHEAD * workers
        self._came: dict[str, str | BaseException] = {}
        self._waiting = 0  # questions sent whose answers were not taken yet
        self._over = False
        self._changed = threading.Condition()
        self._threads = workers > 1
        if self._threads:
            for _ in range(min(workers, len(self._left))):
                threading.Thread(target=self._work, name="judge worker", daemon=True).start()

    def answer(self, prompt: JudgePrompt) -> str:
        """Wait for the judge's reply to a question and return it. Each reply can be taken once."""
        if not self._threads:
            self._came[prompt.sha256] = self._judge.ask(prompt)
        with self._changed:
            while prompt.sha256 not in self._came:
                self._changed.wait(_LOOK_S)
            self._waiting -= 1
            self._changed.notify_all()
        answer = self._came[prompt.sha256]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def came(self, prompt: JudgePrompt) -> str | None:
        """The judge's reply if it has arrived, else None."""
        answer = self._came.get(prompt.sha256)
        return answer if isinstance(answer, str) else None

    def close(self) -> None:
        """Send no further question."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (prompt := self._next()) is not None:
            try:
                answer: str | BaseException = self._judge.ask(prompt)
            except BaseException as fault:  # of any kind: the caller waits for it
                answer = fault
            with self._changed:
                self._came[prompt.sha256] = answer
                self._over |= isinstance(answer, BaseException) and not isinstance(answer, self._refusal)
                self._changed.notify_all()

    def _next(self) -> JudgePrompt | None:
        with self._changed:
            while self._left and not self._over and self._waiting >= self._ahead:
                self._changed.wait()
            if not self._left or self._over:
                return None
            self._waiting += 1
            return self._left.popleft()
