"""Starts the scoring process: generations are judged where torch was never imported (DESIGN §9)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, keys
from specbench.common.errors import PluginFault
from specbench.common.reading import parse_json
from specbench.results.verdicts import read_verdicts

_END_S = 10.0  # for the scorer to end in order; it needs a tenth of a second, on a busy machine a few
# Between two answers. The longest that a task of ours may take is half of that: reference solutions on a slow machine.
_SILENT_S = 3600.0
_LOOK_S = 2.0


class Tenths:
    """Tells how far scoring is, at the start and at a tenth from time to time.

    Args:
        say: takes the sentence.
        seconds: between two sentences at least; what is done in a moment needs no ten of them.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = 3.0) -> None:
        self._say = say
        self._seconds = seconds
        self._told = -1
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self._told and time.monotonic() >= self._next:
            self._told, self._next = tenth, time.monotonic() + self._seconds
            self._say(f"scoring answers, {done} of {total}")


def score_in_child(
    folder: Path,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int | None = None,
) -> dict[str, bool]:
    """Scores a run in a fresh process.

    Args:
        folder: the run folder.
        data_dir: folder of data files.
        progress: called with (answers scored, answers).
        workers: answers judged at a time; all processors by default.

    Returns:
        Request key -> whether its answer is right.

    Raises:
        PluginFault: nothing was scored for an hour: the task's code hangs.
        SpecbenchError: the scorer's own one-line reason, of its own kind.
    """
    command = [sys.executable, "-m", "specbench.evals", str(folder), "--progress"]
    if data_dir is not None:
        command += ["--data-dir", str(data_dir)]
    if workers is not None:
        command += ["--workers", str(workers)]
    said = ""
    try:
        scorer = subprocess.Popen(
            command,
            env=keys.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:  # no more processes, files or memory
        raise EnvironmentRefused(
            f"the scorer did not start ({error.strerror}); close other programs and score again"
        ) from error
    heard, done, hangs = [time.monotonic()], threading.Event(), threading.Event()
    with scorer as process:
        threading.Thread(target=_watch, args=(process, heard, done, hangs), name="scorer", daemon=True).start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                heard[0] = time.monotonic()
                state = _state(line)
                if state is None:
                    said = line.strip().removeprefix("error: ") or said
                else:
                    progress(*state)
        except BaseException:
            _end(process)
            raise
        finally:
            done.set()
    if hangs.is_set():
        raise PluginFault(
            f"nothing was scored for {_SILENT_S:g} s, so the task's own code hangs; what was decoded is kept: mend it, "
            f"and specbench score {folder}"
        )
    if process.returncode:
        kinds = {kind.exit_code: kind for kind in (UsageError, EnvironmentRefused, PluginFault)}
        kind = kinds.get(process.returncode, SpecbenchError)
        raise kind(said or f"the scoring process ended with code {process.returncode}; repeat the command")
    return read_verdicts(folder)


def _watch(process: subprocess.Popen[str], heard: list[float], done: threading.Event, hangs: threading.Event) -> None:
    """Ends a scorer that says nothing for too long. Counted in looks: a machine that slept has not taken that time."""
    last, spent = heard[0], 0.0
    while not done.wait(_LOOK_S):
        spent = spent + _LOOK_S if heard[0] == last else 0.0
        last = heard[0]
        if spent >= _SILENT_S:
            hangs.set()
            process.kill()
            return


def _state(line: str) -> tuple[int, int] | None:
    """(answers scored, answers) in a line of progress; None of any other line."""
    try:
        state = parse_json(line, "progress", "")
        done, total = state["done"], state["total"]
    except (UsageError, KeyError, TypeError):
        return None
    return (done, total) if isinstance(done, int) and isinstance(total, int) else None


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the scorer: Ctrl-C may have reached this process alone, and then it would go on without us."""
    try:
        process.send_signal(signal.SIGINT)  # a second one does it no harm, and it takes its programs with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    finally:  # a second Ctrl-C does not wait; programs die with the scorer, but for their temporary folders
        process.kill()
