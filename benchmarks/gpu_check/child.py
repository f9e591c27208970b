"""The process of one part. Figures are on disk as soon as they are measured; the exit status shows how it ended."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import foreign, vendor
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.catalog import DEVICE
from benchmarks.gpu_check.orphans import end_with_the_parent
from benchmarks.gpu_check.records import Figure, Journal, line

_BEFORE_S = 2.0  # seconds before the time limit, when a part that still runs logs its traceback


def main() -> int:
    """Run ``python -m benchmarks.gpu_check.child PART MODULE:FUNCTION JOURNAL``, with settings on stdin."""
    part, target, path = sys.argv[1:]
    end_with_the_parent()  # if the check is killed, this process must not keep the device
    settings: dict[str, Any] = json.loads(sys.stdin.read())
    limit = settings.pop("limit_s")
    if os.getppid() != settings.pop("parent"):  # the parent was killed earlier
        return 1
    journal = Journal(Path(path))
    faulthandler.enable()  # log a Python traceback on abort
    # Log a traceback shortly before the parent ends this process, to show where it hangs.
    faulthandler.dump_traceback_later(max(limit / 2, limit - _BEFORE_S))
    foreign.hide_broken(journal, again=part == DEVICE.name)
    compiled = _watch_compiler()
    try:
        module, function = target.split(":")
        bench = Bench(journal, **settings)
        measure = getattr(import_module(module), function)
        _foretell(part, module, bench)
        for figure in measure(bench):
            assert isinstance(figure, Figure)
            try:
                journal.figure(part, figure)
            finally:  # print the figure even if the disk is full
                with suppress(OSError):  # the reader may be gone
                    print(line(figure), flush=True)
    except Exception as error:  # any error that a part meets on new hardware
        traceback.print_exc()
        with suppress(OSError):
            journal.append("raised", part=part, why=_in_a_line(error), lacks=_lacking(error))
        return 1
    finally:
        if compiled:
            with suppress(OSError):
                journal.append("compiled", part=part, kernels=len(compiled), seconds=round(sum(compiled), 3))
    return 0


def _watch_compiler() -> list[float]:
    """Return a list that collects the compile seconds of each Triton kernel in this process."""
    seconds: list[float] = []

    def note(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds.append(times.total / 1e6)

    with suppress(Exception):  # triton may be too old for this hook, missing or broken
        from triton import knobs

        knobs.compilation.listener = note
    return seconds


def _foretell(part: str, module: str, bench: Bench) -> None:
    """Record the predictions of a part, so that the page has them even if the part fails."""
    predicted = getattr(import_module(module), "predicted", None)
    if predicted is None or bench.rehearse:
        return
    try:
        from benchmarks.gpu_check.predict import known_of, with_range

        known = known_of(bench)
        for figure in with_range(predicted, known) if known else ():
            bench.journal.append("predicted", part=part, **asdict(figure))
    except Exception:  # a failed prediction must not cost a figure
        traceback.print_exc()


def _lacking(error: Exception) -> str:
    """Return the package of the bundle that an ImportError misses; empty for any other error."""
    name = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
    brought = {package.lower().replace("-", "_"): package for group in vendor.GROUPS.values() for package in group}
    return brought.get(name.lower(), "")


def _in_a_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, ModuleNotFoundError):
        first += "; make gpu-bundle packs the packages that an image may lack, and make setup installs them"
    return f"{type(error).__name__}: {first}".rstrip(": ")[:300]


if __name__ == "__main__":
    sys.exit(main())
