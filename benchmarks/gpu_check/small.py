"""A real model through the command line: every method lossless in fp32, graded in bf16, and timed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.records import Figure

PROMPTS = Path(__file__).with_name("prompts.jsonl")


def tests(paths: Sequence[str], *options: str) -> Iterator[Figure]:
    """A part of the test suite, on the device."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *options, *paths],
        capture_output=True,
        text=True,
    )
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # 5: nothing was collected, which is no success here
    count = len(failed) if done.returncode == 1 else int(done.returncode != 0)
    yield Figure(f"tests {' '.join(paths)}", count, "failures", "== 0", "; ".join([last, *failed[:8]]))


def lossless(
    model: str, methods: Sequence[str], dtype: str, tokens: int, limit: int, settings: Sequence[str] = ()
) -> Iterator[Figure]:
    """Answers of every method against AR's. In fp32 each must be the same; in half precision ties may part them."""
    found = _specbench(
        "check-lossless", "--method", ",".join(methods), "--model", model, "--dtype", dtype, "--task", "prompts",
        "--data-file", str(PROMPTS), "--max-new-tokens", str(tokens), "--limit", str(limit), "--first", "--json",
        *(f"--set={setting}" for setting in settings), ok=(0, 4),
    )  # fmt: skip
    for label in dict.fromkeys(row["method"] for row in found["rows"]):
        mine = [row for row in found["rows"] if row["method"] == label]
        exact, ties, lossy = (sum(row[grade] for row in mine) for grade in ("exact", "numeric_tie", "lossy"))
        floor = max((row["noise_floor"] or 0 for row in mine), default=0)
        note = f"{exact} exact, {ties} ties, {lossy} lossy over {len(mine)} samplings; noise floor {floor:.3g}"
        differ = lossy + (ties if dtype == "float32" else 0)
        yield Figure(f"{label} in {dtype}: answers that differ from AR's", differ, "failures", "== 0", note)


def speed(model: str, methods: Sequence[str], tokens: int, out: Path) -> Iterator[Figure]:
    """A run of all methods; its folder stays in ``out``."""
    found = _specbench(
        "run", "--method", ",".join(methods), "--model", model, "--task", "prompts", "--data-file", str(PROMPTS),
        "--max-new-tokens", str(tokens), "--out", str(out), "--json",
    )  # fmt: skip
    for row in found[0]["rows"]:
        label, speedup = row["method"], row["speedup"]
        note = f"{row['prompts']} prompts × {tokens} tokens"
        yield Figure(f"{label}: tokens per forward", row["tokens_per_forward"], "tokens", note=note)
        yield Figure(f"{label}: decoding", row["decode_tok_s"], "tok/s", note=note)
        if label != "ar":
            low, high = speedup["low"], speedup["high"]
            note += f", 95% interval {low:.2f} to {high:.2f}" if low else ", too few prompts for an interval"
            yield Figure(f"{label}: over AR", speedup["value"], note=note)


def _specbench(*arguments: str, ok: Sequence[int] = (0,)) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run([sys.executable, "-m", "specbench", *arguments], capture_output=True, text=True)
    if done.returncode not in ok:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"specbench {arguments[0]} ended with {done.returncode}: {last}")
    return json.loads(done.stdout)
