"""Run programs that read and print, or functions, on the tests of programming contests in our sandbox.

Tests and rules are LiveCodeBench's (Jain et al. 2024, arXiv 2403.07974; ``testing_util.py`` at commit 28fef95). Its
limit of 6 s wall time per input is CPU time here, with three times as much wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.evals.sandbox import codec, printed
from specbench.evals.sandbox.sandbox import Limits, Program, Sandbox
from specbench.evals.task import Verdict

INPUT_S = 6
"""CPU seconds that one input may take."""

VERSION = f"{printed.VERSION} (as LiveCodeBench 28fef95)"
"""Version of the comparison, for a task's ``versions``."""

_MEMORY, _FILES = 2 << 30, 64 << 20  # bytes of address space, and of input and output each; more for a longer input
_WALL = 3  # wall seconds per second of CPU time

# The authors' imports before every answer, so that answers without imports run: all names of these modules, then the
# modules themselves.
_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "builtins typing"
)
PREAMBLE = "\n".join(
    [
        *(f"from {name} import *" for name in _STARRED.split()),
        f"import {', '.join(_STARRED.split()[:-2])}",
        "sys.setrecursionlimit(50000)",
    ]
)
"""Source that runs before an answer."""

# One object of class Solution serves all inputs, as in the authors' code.
_CALLER = """
specbench_target = Solution() if "Solution" in globals() else None
def specbench_call(name, *args):
    return (getattr(specbench_target, name) if specbench_target is not None else globals()[name])(*args)
"""


@dataclass(frozen=True)
class Cases:
    """The tests of one problem, public ones first.

    Attributes:
        inputs: for each test, a script's input; or the arguments of a call.
        outputs: for each test, the script's output; or the value of the call.
        function: name of the function or method to call, None for a script.
        public: how many of the tests are in the problem's statement.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    function: str | None
    public: int


def check(sandbox: Sandbox, cases: Cases, code: str) -> Verdict:
    """The verdict on one answer: whether it is right on all inputs. ``also`` has "public": whether it is right on the
    tests of the problem's statement.

    Stops at the first wrong output.
    """
    script = cases.function is None
    if script:
        program = Program((PREAMBLE, code), "", "", "", kind="script")
    else:
        program = Program((PREAMBLE, code, _CALLER), "specbench_call", "", "")
    held = {
        "printed": script,
        "inputs": [[one] if script else codec.pack([cases.function, *one]) for one in cases.inputs],
        "expected": [codec.pack(one) for one in cases.outputs],
        "limit": INPUT_S,
    }
    answer = sandbox.compare(program, held, _limits(cases))
    passed = answer["reason"] == "pass"
    public = passed or answer.get("right", -1) >= cases.public
    return Verdict(passed, answer["reason"], answer["detail"], {"public": public})


def isolation(sandbox: Sandbox) -> list[str]:
    """What confines an answer, one line each; the seconds are for one input."""
    one = Limits(INPUT_S, float(_WALL * INPUT_S), _MEMORY, _FILES)
    return sandbox.confinement.describe(one, output="compared as text")


def _limits(cases: Cases) -> Limits:
    cpu_s = INPUT_S * (len(cases.inputs) + 1)
    longest = max(len(one.encode(errors="surrogatepass")) if isinstance(one, str) else 0 for one in cases.inputs)
    return Limits(cpu_s, float(_WALL * cpu_s), _MEMORY, max(_FILES, longest + (1 << 20)), float(INPUT_S))
