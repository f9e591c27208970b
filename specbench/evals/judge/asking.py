"""Questions to a judge, several at once, whose answers are taken in the order of the questions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from specbench.evals.judge.judge_prompts import JudgePrompt

_AHEAD = 4  # questions a worker that may be asked before the first one is answered; each costs, and may be for nothing
_LOOK_S = 0.1  # a wait without end may miss a Ctrl-C that comes just before it


class Asks(Protocol):
    """A judge, as far as it is asked; by several threads at once where there are several workers."""

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's words."""
        ...


class Asking:
    """Hands questions to workers in their order. Close it when done.

    One worker is the caller itself. More are threads, which end when the judge is closed. After a fault of the judge no
    further question is handed out; those before it are, so the fault raised is the first in the order of the questions.
    """

    def __init__(self, judge: Asks, prompts: Sequence[JudgePrompt], workers: int, refusal: type[Exception]) -> None:
        """
        Args:
            prompts: in the order in which their answers will be wanted; equal ones are asked once.
            refusal: what a judge raises that answers this one question not; no fault, others are asked on.
        """
        self._judge = judge
        self._left = deque({prompt.sha256: prompt for prompt in prompts}.values())
        self._refusal = refusal
        self._ahead = _AHEAD * workers
        self._came: dict[str, str | BaseException] = {}
        self._waiting = 0  # questions handed out whose answers nobody has taken yet
        self._over = False
        self._changed = threading.Condition()
        self._threads = workers > 1
        if self._threads:
            for _ in range(min(workers, len(self._left))):
                threading.Thread(target=self._work, name="judge worker", daemon=True).start()

    def answer(self, prompt: JudgePrompt) -> str:
        """The judge's words, waited for; each question is wanted once."""
        if not self._threads:
            self._came[prompt.sha256] = self._judge.ask(prompt)
        with self._changed:
            while prompt.sha256 not in self._came:
                self._changed.wait(_LOOK_S)
            self._waiting -= 1
            self._changed.notify_all()
        said = self._came[prompt.sha256]
        if isinstance(said, BaseException):
            raise said
        return said

    def came(self, prompt: JudgePrompt) -> str | None:
        """The judge's words if they are here; None where they are not, or never will be."""
        said = self._came.get(prompt.sha256)
        return said if isinstance(said, str) else None

    def close(self) -> None:
        """Has no further question asked."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (prompt := self._next()) is not None:
            try:
                said: str | BaseException = self._judge.ask(prompt)
            except BaseException as fault:  # of whatever kind: the caller waits for it
                said = fault
            with self._changed:
                self._came[prompt.sha256] = said
                self._over |= isinstance(said, BaseException) and not isinstance(said, self._refusal)
                self._changed.notify_all()

    def _next(self) -> JudgePrompt | None:
        with self._changed:
            while self._left and not self._over and self._waiting >= self._ahead:
                self._changed.wait()
            if not self._left or self._over:
                return None
            self._waiting += 1
            return self._left.popleft()
