"""Child: the process of one part. What it measures is on disk at once; how it ends is its exit status."""

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

_BEFORE_S = 2.0  # of the limit, at which a part that still runs says where it is


def main() -> int:
    """``python -m benchmarks.gpu_check.child PART MODULE:FUNCTION JOURNAL``, with its settings on stdin."""
    part, target, path = sys.argv[1:]
    end_with_the_parent()  # a check that is killed leaves no process behind that holds the device
    settings: dict[str, Any] = json.loads(sys.stdin.read())
    limit = settings.pop("limit_s")
    if os.getppid() != settings.pop("parent"):  # it was killed before that
        return 1
    journal = Journal(Path(path))
    faulthandler.enable()  # an abort leaves the Python lines that it came from
    # Shortly before the parent ends this process: where it hangs is then in its log.
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
            finally:  # of a disk that is full, too
                with suppress(OSError):  # nobody may be left who reads it
                    print(line(figure), flush=True)
    except Exception as error:  # whatever a part runs into on hardware that nobody has seen yet
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
    """A list that takes the seconds of each kernel that Triton compiles in this process."""
    seconds: list[float] = []

    def note(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds.append(times.total / 1e6)

    with suppress(Exception):  # an older triton has no such hook, an image may have none at all or a broken one
        from triton import knobs

        knobs.compilation.listener = note
    return seconds


def _foretell(part: str, module: str, bench: Bench) -> None:
    """Writes down what a part predicts, so that the page has it whatever becomes of the part."""
    predicted = getattr(import_module(module), "predicted", None)
    if predicted is None or bench.rehearse:
        return
    try:
        from benchmarks.gpu_check.predict import known_of, with_range

        known = known_of(bench)
        for figure in with_range(predicted, known) if known else ():
            bench.journal.append("predicted", part=part, **asdict(figure))
    except Exception:  # predictions cost no figure
        traceback.print_exc()


def _lacking(error: Exception) -> str:
    """The package of a bundle whose absence an error is; empty where it is another one."""
    name = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
    brought = {package.lower().replace("-", "_"): package for group in vendor.GROUPS.values() for package in group}
    return brought.get(name.lower(), "")


def _in_a_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, ModuleNotFoundError):
        first += "; make gpu-bundle brings what an image may lack, and make setup installs it"
    return f"{type(error).__name__}: {first}".rstrip(": ")[:300]


if __name__ == "__main__":
    sys.exit(main())
