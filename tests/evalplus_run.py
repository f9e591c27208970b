"""EvalPlus's own verdicts, by its code in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

# In a process of its own: its children inherit the address space, and its memory limit counts it.
_EVALPLUS = """
import json, sys
from evalplus.data.mbpp import mbpp_deserialize_inputs
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.evaluate import check_correctness
from evalplus.gen.util import trusted_exec
out, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    dataset, problem, solutions = json.loads(line)
    expected = {}
    for kind in ("base", "plus"):
        if dataset == "mbpp":
            problem[kind + "_input"] = mbpp_deserialize_inputs(problem["task_id"], problem[kind + "_input"])
        expected[kind], expected[kind + "_time"] = trusted_exec(
            problem["prompt"] + problem["canonical_solution"], problem[kind + "_input"], problem["entry_point"],
            record_time=True, output_not_none=problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS,
        )
    found = []
    for solution in solutions:
        said = check_correctness(dataset, 0, problem, solution, expected, fast_check=True, min_time_limit=4.0)
        base, plus = said["base"][0] == "pass", said["plus"][0] == "pass"
        found.append([base, base and plus])
    out.write(json.dumps(found) + "\\n")
    out.flush()
"""


def evalplus(jobs: Sequence[tuple[str, dict[str, Any], list[str]]]) -> list[list[list[bool]]]:
    """[base, base and plus] of each solution of each job (data set, problem, solutions)."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run([sys.executable, "-c", _EVALPLUS], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
