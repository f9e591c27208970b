"""LiveCodeBench's comparison of outputs, on the judge's side of ``child.py``.

The rules are those of ``lcb_runner/evaluation/testing_util.py`` (commit 28fef95). Printed text is compared line by
line, stripped; a line that differs is equal if its words are the same decimal numbers. A returned value is compared
with ``==``, tuples as lists. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from specbench.evals.sandbox import codec, differential
else:  # in the child, which knows no packages
    import codec
    import differential

VERSION = "1"
"""Raised whenever a verdict can change."""


def check(
    ask: Callable[[Any], differential.Reply], cases: dict[str, Any], watch: differential.Watch, found: dict[str, Any]
) -> None:
    """Run a program on the inputs until one is wrong.

    Args:
        cases: by input "inputs" (packed argument lists) and "expected" (packed values: a text is what is to be
            printed where "printed" is true); "limit", CPU seconds for one input.
        found: receives "right", the number of right outputs.
    """
    found["right"] = 0
    for number, (args, packed) in enumerate(zip(cases["inputs"], cases["expected"], strict=True), 1):
        watch.start(cases["limit"])
        reply = ask(args)
        watch.stop()
        value, expected = codec.unpack(reply["value"]), codec.unpack(packed)
        if not (same_text(value, expected) if cases["printed"] else same_value(value, expected)):
            gave = "printed" if cases["printed"] else "returned"
            raise differential.Wrong(f"test {number}: {gave} {_show(value)}, expected {_show(expected)}")
        found["right"] += 1


def same_text(printed: object, expected: str) -> bool:
    """Whether a program printed the expected text."""
    if not isinstance(printed, str):
        return False
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_value(returned: object, expected: object) -> bool:
    """Whether a function returned the expected value."""
    if isinstance(returned, tuple):
        returned = list(returned)
    return bool(returned == expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    try:
        return [Decimal(word) for word in printed.split()] == [Decimal(word) for word in expected.split()]
    except InvalidOperation:  # not a number, or a signalling NaN
        return False


def _show(value: object) -> str:
    try:
        return repr(value[:200] if isinstance(value, str) else value)[:80]
    except ValueError:  # an integer with more digits than Python prints
        return "a large value"
