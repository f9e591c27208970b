"""EvalPlus: its prompts, and its tests (Liu et al. 2023, arXiv 2305.01210) run in our sandbox.

The canonical solution's outputs are the expected outputs, so it runs first, once per problem and process, in the same
sandbox; its CPU time sets the limits. Prompts are those of EvalPlus 0.3.1 (``codegen.py``, ``provider/utility.py``);
its package (extra ``eval``) runs in a worker process.
"""

from __future__ import annotations

import importlib.metadata
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.common import EnvironmentRefused, Prompt
from specbench.evals.grading.workers import DiedError, TimedOutError, Workers
from specbench.evals.sandbox import codec, differential
from specbench.evals.sandbox.sandbox import Limits, Program, Sandbox
from specbench.evals.task import Verdict

MIN_INPUT_S, FACTOR, MAX_TOTAL_S = (
    4.0,
    4.0,
    60.0,
)  # seconds of CPU time; EvalPlus's --min-time-limit 4 and its other defaults
LIMITS = Limits(cpu_s=62, wall_s=190.0, memory=2 << 30, load_s=MIN_INPUT_S)
"""Limits of one answer, all inputs together: CPU and wall seconds (EvalPlus: 60 s wall), 2 GiB (EvalPlus: 4)."""
_REFERENCE_LIMITS = Limits(cpu_s=600, wall_s=1800.0, memory=2 << 30)

VERSION = f"{differential.VERSION} (as evalplus 0.3.1)"
"""Version of the comparison, for a task's ``versions``."""


@dataclass(frozen=True)
class Reference:
    """A problem of EvalPlus.

    Attributes:
        solution: source of the canonical solution, prompt included.
        base, plus: packed (``codec.pack``) argument lists.
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
    """Run answers on the inputs of their problems. Safe to share between threads."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, dict[str, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def check(self, reference: Reference, sources: tuple[str, ...], lenient: bool) -> Verdict:
        """Whether one answer is right on all inputs; ``also`` has base (on the base inputs) and plus (on all inputs).

        The base inputs come first, in the same process as the others. Stops at the first wrong output.
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
        """What confines an answer, one line each."""
        return self._sandbox.confinement.describe(LIMITS)

    def _cases(self, reference: Reference) -> dict[str, Any]:
        with self._lock:
            lock = self._locks.setdefault(reference.id, threading.Lock())
        with lock:  # answers to one problem wait for its reference; answers to other problems do not
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


_SANITISE_S = 30.0
_INPUTS_S = 60.0


def version() -> str | None:
    """Version of the installed package; None if it is not installed."""
    try:
        return importlib.metadata.version("evalplus")
    except importlib.metadata.PackageNotFoundError:
        return None


class EvalPlus:
    """EvalPlus in a worker process. Safe to share between threads; started when first needed."""

    def __init__(self, needed_for: str) -> None:
        """
        Args:
            needed_for: the option and value that need it, for the error.

        Raises:
            EnvironmentRefused: the package is not installed.
        """
        if version() is None:
            raise EnvironmentRefused(
                f"{needed_for} needs the evalplus package: pip install 'specbench-llm[eval]', or choose another value"
            )
        self._workers = Workers("specbench.evals.grading.plus_worker")

    def sanitise(self, text: str, entry_point: str) -> str:
        """Reduce code to imports and the definitions that ``entry_point`` needs, with EvalPlus's sanitiser.

        Text on which the sanitiser takes too long or crashes is returned unchanged.
        """
        try:
            return str(self._workers.ask({"text": text, "entry_point": entry_point}, _SANITISE_S)["code"])
        except (TimedOutError, DiedError):
            return text

    def mbpp_inputs(self, id: str, entry_point: str, base: list[Any], plus: list[Any]) -> tuple[list[Any], Any, str]:
        """(packed base inputs, packed plus inputs, rule of comparison) of an MBPP problem."""
        try:
            found = self._workers.ask({"id": id, "entry_point": entry_point, "base": base, "plus": plus}, _INPUTS_S)
            return found["base"], found["plus"], found["rule"]
        except (TimedOutError, DiedError, KeyError) as error:
            raise EnvironmentRefused(
                f"evalplus {version()} did not read the inputs of {id} ({error}); install evalplus 0.3.1"
            ) from error


_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
)
_RESPONSE = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)
_STOPS = ("\nif __name__", "\ndef main(", "\nprint(")
_CHAT_STOPS = (*_STOPS, "\n```\n")


def chat(id: str, problem: str) -> Prompt:
    """For a model with a chat template: the problem in a fence, and the answer's fence already opened."""
    text = f"{_INSTRUCTION}\n```\n{problem.strip()}\n```\n"
    return Prompt(id, text, True, f"{_RESPONSE}\n```python\n", _CHAT_STOPS)


def completion(id: str, problem: str, stops: Sequence[str]) -> Prompt:
    """For a model without a chat template: the problem as it is.

    Args:
        stops: stop strings of the data set, in addition to EvalPlus's general ones.
    """
    return Prompt(id, problem.strip() + "\n", False, "", (*_STOPS, *stops))
