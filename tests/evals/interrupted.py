"""A scorer for the tests that gets Ctrl-C at one step after the other: ``python interrupted.py FOLDER EVERY``.

Its programs run until they are stopped. Prints a line for every step at which it did not end soon by Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from specbench.common import options
from specbench.evals.grading import scoring
from specbench.evals.task import Verdict

SOON_S, LONG_S, WAIT_S = 2.0, 5.0, 0.3


class Options(options.Options):
    """None."""


class Task:
    versions: dict[str, str] = {}  # noqa: RUF012
    isolation = ()
    stopped = threading.Event()

    def __init__(self, options: Options, data_dir: Path | None) -> None:
        self.options = options

    def score(self, prompt_id: str, text: str) -> Verdict:
        if text != "quick":
            self.stopped.wait(LONG_S)
        return Verdict(True, "pass", "")


def interrupt_at(step: int, folder: Path) -> bool:
    """Whether there was such a step before everything waited."""
    left = step
    where, begun = "", 0.0
    waiting = threading.Timer(WAIT_S, Task.stopped.set)  # what comes later is the same wait again

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, where, begun
        left -= 1
        if not left:
            sys.setprofile(None)
            waiting.cancel()
            begun = time.monotonic()
            where = f"{event} {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            signal.raise_signal(signal.SIGINT)

    def progress(done: int, total: int) -> None:
        sys.setprofile(None if done == total else profile if done == 0 else sys.getprofile())

    Task.stopped.clear()
    waiting.start()
    try:
        scoring.score_run(folder, None, 2, progress)
        result = "finished"
    except KeyboardInterrupt:
        result = ""
    except BaseException as error:
        result = repr(error)
    sys.setprofile(None)
    waiting.cancel()
    took = time.monotonic() - begun
    if (where and (result or took > SOON_S)) or result not in ("", "finished"):
        print(f"step {step}, {where}: {result} after {took:.1f} s", flush=True)  # noqa: T201
    return bool(where)


if __name__ == "__main__":
    module = SimpleNamespace(Task=Task, Options=Options)
    card = SimpleNamespace(info={"metric": "m", "version": 1}, load=lambda: module, who="task 'toy' (of a test)")
    scoring.registry.task = lambda name: card  # type: ignore[assignment, return-value]
    scoring.stop_all = Task.stopped.set
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step, every = 1, int(sys.argv[2])
    while interrupt_at(step, Path(sys.argv[1])):
        step += every
    print("steps", step // every)  # noqa: T201
