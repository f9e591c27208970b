"""Combine an answer and MBPP's asserts into a program for the sandbox.

The asserts run in the judge process and call one function of the answer. The asserts are trusted data, so they are
parsed here; answers are not.
"""

from __future__ import annotations

import ast
import builtins
import re

from specbench.evals import Program
from specbench.tasks.mbpp.rows import Asserted

_PROBE = "specbench_probe"


def program(problem: Asserted, answer: str, lenient: bool) -> Program:
    """Combine an answer and its tests into a program.

    Args:
        lenient: ignore an exception after the function, for example in an example call that a chat model adds.
    """
    entry_point, foreign = _names(problem)
    if foreign:
        return _probed(problem, answer)
    return Program((answer,), entry_point, problem.setup, "\n".join(problem.test_list), lenient)


def _names(problem: Asserted) -> tuple[str, bool]:
    """(the function that the asserts call, whether asserts or setup use other names of the answer)."""
    # Without ast, because Python would warn about the escapes in some of these sources in each run of the scorer.
    defined = set(re.findall(r"^(?:def|class)[ ]+(\w+)", problem.code, re.MULTILINE))
    tests = _words("\n".join(problem.test_list)) & defined
    (entry_point,) = {name for name in tests if not hasattr(builtins, name)} or tests  # Mbpp/126 tests its own sum
    return entry_point, bool((_words(problem.setup) | tests) & defined - {entry_point})


def _words(source: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", source))


def _probed(problem: Asserted, answer: str) -> Program:
    """The program for Mbpp/367, whose tests build trees of the answer's own class, which cannot leave its process.

    The left sides of the asserts are evaluated in the answer's process, and the judge compares their values.
    """
    sides = []
    for test in problem.test_list:
        (statement,) = ast.parse(test).body
        assert isinstance(statement, ast.Assert), problem.id
        compared = statement.test
        assert isinstance(compared, ast.Compare), problem.id
        assert isinstance(compared.ops[0], ast.Eq), problem.id
        sides.append((ast.unparse(compared.left), ast.unparse(compared.comparators[0])))
    cases = ", ".join(f"lambda: {left}" for left, _ in sides)
    probe = f"{problem.setup}\ndef {_PROBE}(number): return [{cases}][number]()"
    tests = "\n".join(f"assert {_PROBE}({number}) == ({right})" for number, (_, right) in enumerate(sides))
    return Program((answer, probe), _PROBE, "", tests)
