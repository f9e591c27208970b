"""``python -m specbench.evals.grading.plus_worker``: a worker process that calls the evalplus package.

A separate process, because importing evalplus takes seconds and much memory, and because its sanitiser parses text that
a model wrote, which can take very long or crash the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specbench.evals.grading.workers import Job, serve
from specbench.evals.sandbox import codec

MAX_LINES, MAX_CHARS = 200, 20_000
"""Most lines of a text to sanitise: EvalPlus tries every pair of lines, and 400 lines of prose would take seconds."""

_RULES = {"surface_Area": "pyramid", "digit_distance_nums": "digits"}  # Mbpp/581 and 558


def longest_code(text: str, parses: Callable[[str], bool]) -> str:
    """EvalPlus's ``code_extract``: the run of at least two lines that parses and has the most non-blank lines.

    The result is EvalPlus's, but longer runs are tried first: code that parses as a whole is parsed once, not L²/2
    times.
    """
    lines = text.split("\n")
    filled = [0]
    for line in lines:
        filled.append(filled[-1] + bool(line.strip()))
    spans = [(filled[j + 1] - filled[i], i, j) for i in range(len(lines)) for j in range(i + 1, len(lines))]
    for count, i, j in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
        if count and parses("\n".join(lines[i : j + 1])):
            return "\n".join(lines[i : j + 1])
    return lines[0]


def prepare() -> Callable[[Job], Job]:
    """Import evalplus once, and return the function that answers a job.

    ``{"text", "entry_point"}``: {"code": what EvalPlus's sanitiser leaves of the text}. ``{"id", "entry_point",
    "base", "plus"}``, the inputs of an MBPP problem as JSON: {"base", "plus", "rule"}, the inputs packed after
    EvalPlus's type coercions, and how outputs are compared.
    """
    from evalplus import sanitize
    from evalplus.data.mbpp import mbpp_deserialize_inputs
    from evalplus.eval import _special_oracle as oracle
    from evalplus.syncheck import syntax_check

    def parses(code: str) -> bool:
        try:
            return bool(syntax_check(code))
        except (ValueError, RecursionError):  # null bytes, deep nesting: EvalPlus would raise here
            return False

    sanitize.code_extract = lambda text: longest_code(text, parses)

    def clean(job: Job) -> Job:
        text = "\n".join(job["text"][:MAX_CHARS].split("\n")[:MAX_LINES])
        try:
            return {"code": sanitize.sanitize(text, job["entry_point"])}
        except Exception:  # EvalPlus recurses into the syntax tree; text that it cannot clean runs unchanged
            return {"code": text}

    def rule(entry_point: str) -> str:
        if entry_point in oracle.MBPP_OUTPUT_SET_EQ_TASKS:
            return "set"
        if entry_point in oracle.MBPP_OUTPUT_NOT_NONE_TASKS:
            return "not_none"
        return _RULES.get(entry_point, "exact")

    def inputs(job: Job) -> Job:
        found: dict[str, Any] = {"rule": rule(job["entry_point"])}
        for kind in ("base", "plus"):
            found[kind] = [codec.pack(list(args)) for args in mbpp_deserialize_inputs(job["id"], job[kind])]
        return found

    return lambda job: clean(job) if "text" in job else inputs(job)


if __name__ == "__main__":
    serve(prepare)
