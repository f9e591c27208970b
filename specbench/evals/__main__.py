"""``python -m specbench.evals RUN_DIR``: score a run in a process that never imports torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.common import SpecbenchError, plugins, replies
from specbench.evals.grading.scoring import score_run


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, or that of a SpecbenchError, whose text is the last line on stderr; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m specbench.evals", description="Score the answers of a run.")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder with run.json and requests.jsonl")
    parser.add_argument("--data-dir", type=Path, help="folder of data files")
    parser.add_argument("--workers", type=_positive, help="programs run at a time (default: all processors)")
    parser.add_argument(
        "--progress",
        action="store_true",
        help='JSON lines on stdout: {"done", "total"}, at the end {"finished"} or {"error"}',
    )
    args = parser.parse_args(argv)

    say = replies() if args.progress else _tell

    def report(done: int, total: int) -> None:
        if args.progress:
            say({"done": done, "total": total})

    try:
        path = score_run(args.run, args.data_dir, args.workers, report)
    except SpecbenchError as error:
        say({"error": str(error)})
        return error.exit_code
    except plugins.EXITS as left:  # not caught by any guard: only a task's own code ends this process like that
        fault = plugins.fault(left)
        say({"error": str(fault)})
        return fault.exit_code
    except KeyboardInterrupt:
        say({"error": "interrupted; the run's verdicts are as they were"})
        return 130
    if args.progress:
        say({"finished": True})
    else:
        sys.stdout.write(f"{path}\n")
    return 0


def _tell(line: dict[str, Any]) -> None:
    sys.stderr.write(f"{line['error']}\n")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
