"""``make gpu-check``: is everything right on this GPU, and how fast is it?

    python3 -m benchmarks.gpu_check [--only PART] [--seconds S] [--model FOLDER|FILE.gguf] [--out DIR] [--rehearse]
    python3 -m benchmarks.gpu_check --predict CARD[,CARD] [--only PART]

Installs nothing and uses no network: torch, triton, transformers, numpy and pandas are the machine's, the other
packages come with a bundle (``make gpu-bundle``). The most valuable parts run first, each in its own process; every
figure is written to disk as soon as it is measured. ``--rehearse`` runs every part with tiny models on a CPU: its
output is no result. ``--predict`` measures nothing and needs no GPU: it prints what the parts predict for GPUs of
``specbench list gpus``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import page
from benchmarks.gpu_check.catalog import DEVICE, PARTS, Part
from benchmarks.gpu_check.processes import Processes
from benchmarks.gpu_check.records import NOT_MEASURED, Journal, passed

SECONDS = 900.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(part.name for part in PARTS)
    parser.add_argument("--only", default="", metavar="PART", help=f"parts, comma-separated: {names}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"time limit of the whole check; default {SECONDS:g}"
    )
    parser.add_argument(
        "--model",
        default="",
        help="a real model on this machine; default: a model with an alias whose weights are here",
    )
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check"))
    parser.add_argument("--rehearse", action="store_true", help="run with tiny models on a CPU")
    parser.add_argument(
        "--predict", default="", metavar="CARD", help="only print predictions for these GPUs, comma-separated"
    )
    args = parser.parse_args(argv)
    wanted = [name.strip() for name in args.only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in [part.name for part in PARTS]]
    if unknown:
        print(f"unknown part '{unknown[0]}'; parts are {names}", file=sys.stderr)
        return 2
    parts = [part for part in PARTS if not wanted or part.name in wanted]
    if args.predict and (args.rehearse or args.model):
        print("--predict runs no parts; remove --rehearse and --model", file=sys.stderr)
        return 2
    if args.predict:
        return predict(args.predict.split(","), parts)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the process of the running part is ended too
    try:
        return check(args.out, parts, args.seconds, rehearse=args.rehearse, model=args.model, again=bool(wanted))
    except KeyboardInterrupt:
        print(f"interrupted; figures measured so far are in {args.out}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"cannot write to {args.out}: {error.strerror or error}; choose another --out", file=sys.stderr)
        return 2


def predict(names: Sequence[str], parts: Sequence[Part]) -> int:
    """Print what parts predict for some GPUs.

    Returns:
        The exit code: 0, or 2 for an unknown GPU.
    """
    # Imports torch, which the check itself uses only in the processes of its parts.
    from benchmarks.gpu_check import forecast
    from specbench.common import EnvironmentRefused, UsageError

    try:
        print(forecast.table(names, parts))
    except (UsageError, EnvironmentRefused) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def check(
    folder: Path, parts: Sequence[Part], seconds: float, *, rehearse: bool, model: str = "", again: bool = False
) -> int:
    """Run parts and write the page after each of them.

    Args:
        folder: folder of the check.
        parts: parts to run, in order.
        seconds: time limit for all of them.
        rehearse, model: see :class:`benchmarks.gpu_check.bench.Bench`.
        again: keep the figures of other parts in the folder; otherwise they are moved aside.

    Returns:
        The exit code: 0 passed, 1 not passed, 2 the folder belongs to another device or running check, 3 no device.

    Raises:
        OSError: the folder cannot be written.
    """
    journal = Journal(folder / "figures.jsonl")
    with (folder / ".lock").open("w") as lock:  # held until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"cannot use {folder}: another check writes to it; wait for it or choose another --out")
            return 2
        return _check(folder, journal, parts, seconds, rehearse=rehearse, model=model, again=again)


def _check(
    folder: Path, journal: Journal, parts: Sequence[Part], seconds: float, *, rehearse: bool, model: str, again: bool
) -> int:
    before = journal.last("device")
    if not again or before.get("rehearse", rehearse) != rehearse:
        _put_aside(journal)
        before = {}
    expected = DEVICE.seconds + sum(part.seconds for part in parts)
    what = ", ".join(f"{part.name} {part.seconds:.0f} s" for part in parts)
    _say(
        f"gpu-check{' (a rehearsal)' if rehearse else ''}: {what}; about {_minutes(min(seconds, expected))} in total, "
        f"at most {_minutes(seconds)}; each figure is written to {journal.path} as soon as it is measured"
    )
    settings: dict[str, Any] = {"rehearse": rehearse, "model": model}
    patience = max(1.0, seconds / expected)  # a longer time limit gives each part more time
    processes = Processes(folder, journal, settings, time.monotonic() + seconds, _say, rehearse, patience)
    everything = [DEVICE, *PARTS]
    size = journal.path.stat().st_size if before else 0
    _name_device(journal, rehearse)
    try:
        processes.run(DEVICE)
        if journal.outcomes()[DEVICE.name].state == "failed" and journal.last("no device"):
            return 3
        here = journal.last("device")
        if before and before["name"] != here.get("name"):
            os.truncate(journal.path, size)  # otherwise the next check would assign the old figures to this device
            _say(
                f"cannot use {folder}: it has figures of {before['name']}, and this is {here.get('name')}; choose "
                "another --out"
            )
            return 2
        for part in parts:
            processes.run(part)
            page.write(journal, everything)
    finally:
        page.write(journal, everything)
    found = journal.outcomes()
    good = passed({name: found[name] for name in (DEVICE.name, *(part.name for part in parts))})
    failed, missing = (
        [outcome.part for outcome in found.values() if outcome.state == state] for state in ("failed", NOT_MEASURED)
    )
    _say(
        f"{folder / 'gpu-check.html'}: {'passed' if good else 'NOT passed'}"
        + (f"; parts that failed: {', '.join(failed)}" if failed else "")
        + (f"; not measured: {', '.join(missing)}" if missing else "")
    )
    return 0 if good else 1


def _name_device(journal: Journal, rehearse: bool) -> None:
    """Record the GPU's name from the kernel driver, which is known even if importing torch fails.

    Without a name, or with several different GPUs, the part ``device`` records the name of the GPU that torch uses.
    """
    try:
        from specbench.hardware import gpus
    except ImportError:  # a missing package is reported by the part that needs it
        return
    names = set(gpus.seen() or ())
    if not rehearse and len(names) == 1:
        journal.append("device", rehearse=False, name=names.pop(), memory_bytes=None, versions={})


def _put_aside(journal: Journal) -> None:
    """Rename the figures of an earlier check with a number, so that they stay in the folder."""
    if journal.path.exists():
        numbers = (number for number in range(1, 10_000))
        free = (journal.path.with_name(f"figures-{number}.jsonl") for number in numbers)
        journal.path.rename(next(path for path in free if not path.exists()))


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def _say(text: str) -> None:
    with suppress(OSError):  # the check continues when its output is closed
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
