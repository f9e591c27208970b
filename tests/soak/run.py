"""Soak: thousands of requests in one process, by the real command on a tiny model; nothing may grow. For `make soak`.

Two variants: two rows one request at a time, and a row that learns from earlier requests, four sequences together. Each
tenth of a variant is one repeat of the same prompts, so it is the same work as every other tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.watching import TENTHS, Sample, Watch, cpu_seconds, faults, watched
from specbench.cli.app import main as specbench

#: Name -> arguments of ``specbench run``; AR is the other row of each.
VARIANTS = {
    "one at a time": ("--method", "pld", "--concurrency", "1"),
    "four at a time": ("--method", "suffix", "--concurrency", "4"),
}
ROWS = 2


def soak(folder: Path, requests: int, options: tuple[str, ...], watch: Watch, tokens: int) -> None:
    """Runs the command to its end.

    Args:
        folder: gets the prompts and the run.
        requests: of all rows, repeats and prompts; a multiple of twenty.
        options: those of a variant.
        watch: takes note.
        tokens: of an answer.
    """
    count, over = divmod(requests, ROWS * TENTHS)
    assert not over, f"--requests must be a multiple of {ROWS * TENTHS}"
    prompts = folder / "prompts.jsonl"
    lines = (json.dumps({"prompt": f"Count from {at} to {at + 5}, then back, and on."}) for at in range(count))
    prompts.write_text("".join(f"{line}\n" for line in lines))
    asked = ("--task", "prompts", "--data-file", prompts, "--max-new-tokens", tokens, "--repeats", TENTHS)
    line = ("run", "--model", "config:tiny", *asked, "--out", folder / "runs", *options)
    code = specbench([str(part) for part in line])
    assert code == 0, f"exit code {code}"
    assert len(watch.samples) * (requests // len(watch.samples)) == requests, "requests went by unseen"


def summary(samples: list[Sample]) -> str:
    """Growth from the end of the first tenth to the end, in figures."""
    first, last = samples[len(samples) // TENTHS - 1], samples[-1]
    grown, records = last.resident - first.resident, last.records - first.records
    before, after = cpu_seconds(samples)
    return (
        f"memory {grown / first.resident:+.2%}, {grown / 1e6:.1f} MB, of which records {records / 1e6:.1f} MB "
        f"({records / max(1, last.requests - first.requests) / 1e3:.1f} kB a request); "
        f"CPU {1e3 * before:.1f} ms a request in the first tenth, {1e3 * after:.1f} in the last"
    )


def main() -> int:
    """Runs the variants; the exit code says whether nothing grew."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--requests", type=int, default=2000, help="of each variant; a multiple of 40")
    parse.add_argument("--tokens", type=int, default=8, help="of an answer")
    parse.add_argument("--only", default="", help="variants whose name has this in it")
    given = parse.parse_args()
    if given.requests < 40 or given.requests % 40:
        parse.error("--requests has to be a multiple of 40")
    failed = False
    for name, options in VARIANTS.items():
        if given.only not in name:
            continue
        print(f"== {name}", flush=True)
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="soak-") as folder,
            watched(given.requests // 40, lambda line: print(line, flush=True)) as watch,
        ):
            soak(Path(folder), given.requests, (*options, "--quiet"), watch, given.tokens)
        found = faults(watch.samples)
        failed |= bool(found)
        print(f"{summary(watch.samples)}; {time.monotonic() - began:.0f} s")
        print("\n".join(found) or "nothing grew", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
