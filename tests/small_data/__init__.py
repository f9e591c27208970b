"""Small data: the files of the tasks, written by us in the published files' formats, for tests of behaviour.

A task refuses any file but the published one; :func:`accept` lets ours through, and no others.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from small_data import gsm8k, humaneval, livecodebench, math500, mathematics, mbpp, mt_bench, speed, spider
from specbench.evals import data

Row = dict[str, Any]

FILES: dict[str, list[Row]] = {
    "HumanEval.jsonl.gz": humaneval.PROBLEMS, "HumanEvalPlus-v0.1.10.jsonl.gz": humaneval.PLUS_PROBLEMS,
    "MbppPlus-v0.2.0.jsonl.gz": mbpp.PLUS, "mbpp.jsonl": mbpp.ROWS, "sanitized-mbpp.json": mbpp.SANITIZED,
    "gsm8k_test.jsonl": gsm8k.TEST, "gsm8k_train.jsonl": gsm8k.TRAIN, "math500.jsonl": math500.ROWS,
    "mt_bench_question.jsonl": mt_bench.QUESTIONS, "mt_bench_reference_gpt4.jsonl": mt_bench.REFERENCES,
    "mt_bench_judge_prompts.jsonl": mt_bench.JUDGE_PROMPTS, "spec_bench_question.jsonl": mt_bench.SPEC_BENCH,
    **livecodebench.FILES, **spider.FILES,
    "math_test.jsonl": mathematics.MATH, "aime25.jsonl": mathematics.AIME,
    "codesearchnet_python_test.jsonl": speed.FUNCTIONS, "codesearchnet_python_train.jsonl": speed.FUNCTIONS[:1],
    "speed_bench_qualitative.jsonl": speed.QUALITATIVE,
    "speed_bench_throughput_1k.jsonl": speed.THROUGHPUT,
}  # fmt: skip


def lines(rows: Iterable[Any]) -> str:
    """Rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write(folder: Path) -> Path:
    """Writes all files into ``folder``, compressed where the published ones are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in FILES.items():
        content = (json.dumps(rows, indent=2) if name.endswith(".json") else lines(rows)).encode()
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    spider.write_databases(folder / "spider")
    return folder


@contextmanager
def accept(*paths: Path) -> Iterator[None]:
    """These files, and those in these folders, pass for the published ones; any others are checked as ever."""
    checked = data._checked

    def passed(path: Path, file: data.DataFile) -> tuple[int, str]:
        return data.digest(path) if {path, path.parent} & {*paths} else checked(path, file)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(data, "_checked", passed)
        yield


def run(code: str, folder: Path) -> tuple[int, str, str]:
    """Runs code in a process of its own that accepts ``folder``, and calls it so: exit code and what was printed."""
    code = f"import sys, small_data\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n{code}"
    code = f"import sys\nsys.path.append({str(Path(__file__).parents[1])!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
