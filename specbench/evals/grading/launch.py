"""Start the scoring process: answers are graded in a process that never imported torch."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from specbench.common import (
    Child,
    Ended,
    EngineFault,
    EnvironmentRefused,
    PluginFault,
    SpecbenchError,
    Stalled,
    Tenths,
    UsageError,
)
from specbench.results import read_verdicts

_END_S = 10.0  # for the scorer to end in order; it takes a tenth of a second, or a few on a busy machine
# Between two answers. Our slowest task takes half of that: reference solutions on a slow machine.
_SILENT_S = 3600.0
_APART_S = 3.0  # between two lines of progress


def score_in_child(
    folder: Path,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    workers: int | None = None,
) -> dict[str, bool]:
    """Score a run in a fresh process.

    Args:
        say: called with a line about progress from time to time.
        workers: answers graded at a time; all processors by default.

    Returns:
        Request key -> whether its answer is right.
    """
    command = [sys.executable, "-m", "specbench.evals", str(folder), "--progress"]
    if data_dir is not None:
        command += ["--data-dir", str(data_dir)]
    if workers is not None:
        command += ["--workers", str(workers)]
    try:
        child = Child(command, pipes=True)
    except EngineFault as error:  # no more processes, files or memory
        raise EnvironmentRefused(f"the scorer did not start: {error}; close other programs and score again") from error
    error_text, finished = "", False
    progress = Tenths(say, lambda done, total: f"scoring answers, {done} of {total}", _APART_S)
    try:
        while True:
            _, line = child.next(_SILENT_S, "score")
            finished = "finished" in line
            if finished:
                continue
            if "error" in line:
                error_text = str(line["error"])
            else:
                progress(line["done"], line["total"])
    except Ended as ended:
        code = child.process.returncode
        error_text = error_text or str(ended)
    except Stalled as error:
        raise PluginFault(
            f"no answer was scored for {_SILENT_S:g} s: the task's own code hangs; the answers are kept: fix the task, "
            f"and specbench score {folder}"
        ) from error
    except BaseException:
        child.process.send_signal(signal.SIGINT)  # it ends its programs and leaves the verdicts unchanged
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(_END_S)
        raise
    finally:
        child.kill()
    if not code and not finished:
        raise PluginFault(f"the task's own code ended the scorer; fix it, and run specbench score {folder}")
    if code:
        kinds = {kind.exit_code: kind for kind in (UsageError, EnvironmentRefused, PluginFault)}
        raise kinds.get(code, SpecbenchError)(error_text)
    return read_verdicts(folder)
