"""EvalPlus's tests (Liu et al. 2023, arXiv 2305.01210) in our sandbox: base and plus inputs against the reference.

What is right is what the canonical solution returns, so that runs first, once for each problem and process, in the same
sandbox. Its CPU time sets the limits of the answers to it. Nothing is kept from one process to the next: a limit taken
on another machine, or on this one when it was busy, would be a wrong one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.errors import EnvironmentRefused
from specbench.scoring import codec, differential
from specbench.scoring.sandbox import Limits, Program, Sandbox
from specbench.task import Verdict

MIN_INPUT_S, FACTOR, MAX_TOTAL_S = 4.0, 4.0, 60.0  # of CPU time; EvalPlus's --min-time-limit 4 and its other defaults
LIMITS = Limits(cpu_s=62, wall_s=190.0, memory=2 << 30, load_s=MIN_INPUT_S)
"""Of one answer: CPU and wall seconds are for all its inputs together (EvalPlus: 60 s of wall time), 2 GiB (it: 4)."""
_REFERENCE_LIMITS = Limits(cpu_s=600, wall_s=1800.0, memory=2 << 30)

VERSION = f"{differential.VERSION} (as evalplus 0.3.1)"
"""Of the comparison, for a task's ``versions``."""


@dataclass(frozen=True)
class Reference:
    """A problem of EvalPlus.

    Attributes:
        id: such as "HumanEval/0".
        entry_point: name of the function.
        solution: source of the canonical solution, prompt included.
        base, plus: packed (``codec.pack``) argument lists.
        atol: absolute tolerance.
        rule: how outputs are compared, one of ``differential.RULES``.
    """

    id: str
    entry_point: str
    solution: str
    base: Sequence[Any]
    plus: Sequence[Any]
    atol: float
    rule: str


def pack_inputs(inputs: Sequence[Sequence[Any]]) -> list[Any]:
    """Argument lists as plain data that keep tuples, sets and complex numbers."""
    return [codec.pack(list(args)) for args in inputs]


class Checker:
    """Runs answers on the inputs of their problems. Safe to share between threads."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, dict[str, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def check(self, reference: Reference, sources: tuple[str, ...], lenient: bool) -> Verdict:
        """The verdict on one answer: right on all inputs; ``also`` says base (the base inputs) and plus (all).

        The base inputs come first, in the same process as the others, and the first wrong output ends it.

        Args:
            sources, lenient: as in :class:`specbench.scoring.sandbox.Program`.

        Raises:
            EnvironmentRefused: the sandbox does not work here, or the reference does not run in it.
        """
        cases = self._cases(reference)
        total = min(sum(cases["limits"]), max(MAX_TOTAL_S, FACTOR * sum(cases["cpu_s"])))
        cpu_s = math.ceil(total) + 2
        limits = Limits(cpu_s, 3.0 * cpu_s, LIMITS.memory, LIMITS.disk, LIMITS.load_s)
        program = Program(sources, reference.entry_point, "", "", lenient)
        answer = self._sandbox.compare(program, cases, limits)
        passed = answer["reason"] == "pass"
        base = passed or answer.get("right", -1) >= len(reference.base)
        return Verdict(passed, answer["reason"], answer["detail"], {"base": base, "plus": passed})

    def isolation(self) -> list[str]:
        """What confines an answer, a line each."""
        return self._sandbox.confinement.describe(LIMITS)

    def _cases(self, reference: Reference) -> dict[str, Any]:
        with self._lock:
            lock = self._locks.setdefault(reference.id, threading.Lock())
        with lock:  # answers to one problem wait for its reference, those to others do not
            if reference.id not in self._known:
                self._known[reference.id] = self._record(reference)
        return self._known[reference.id]

    def _record(self, reference: Reference) -> dict[str, Any]:
        inputs = [*reference.base, *reference.plus]
        program = Program((reference.solution,), reference.entry_point, "", "")
        found = self._sandbox.compare(program, {"inputs": inputs}, _REFERENCE_LIMITS)
        if found["reason"] != "pass":
            raise EnvironmentRefused(
                f"the reference solution of {reference.id} does not run here ({found['reason']}: {found['detail']}); "
                "score on a machine with more free memory, or with fewer --workers"
            )
        return {
            "inputs": inputs,
            "expected": found["expected"],
            "cpu_s": found["cpu_s"],
            "limits": [max(MIN_INPUT_S, FACTOR * used) for used in found["cpu_s"]],
            "rule": reference.rule,
            "atol": reference.atol,
        }
