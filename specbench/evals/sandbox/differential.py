"""EvalPlus's way of testing, on the judge's side of ``child.py``: the same inputs must give the reference's outputs.

The comparison is that of ``evalplus/eval/__init__.py`` (0.3.1), with four differences: ``find_zero`` is judged by the
value of the polynomial, as EvalPlus means to (0.3.1 fails every answer to it); time is the program's CPU time and not
the wall's, with 4 s an input at least; large values (``fingerprint.py``) are compared without a tolerance; and values
are plain data (``codec.py``), so an object that claims to equal everything equals nothing.

Standard library only.
"""

from __future__ import annotations

import cmath
import math
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from specbench.evals.sandbox import codec
else:  # in the child, which knows no packages
    import codec

VERSION = "1"
"""Raised whenever a verdict can change."""

RULES = ("exact", "set", "not_none", "pyramid", "digits", "polynomial")
"""How outputs are compared; ``right`` defines the names."""

_RTOL, _FLOAT_ATOL = 1e-07, 1e-6  # numpy's assert_allclose, and EvalPlus's own for floats where a problem has none
_SLACK = 3  # wall seconds per CPU second: a machine may be busy, a program may sleep

Reply = dict[str, Any]
"""What a call gave: {"value": packed} or {"digest": of a large value}."""


class TimeUp(BaseException):
    """The time ran out. Not an Exception, so that a test that catches exceptions does not catch it."""


class Wrong(Exception):
    """The program returned another value than the reference; ``args`` has both."""


class Watch:
    """End a call that takes too long by TimeUp, and report the time of a call. Uses SIGALRM."""

    def __init__(self, pid: int, wall_s: float) -> None:
        """"""
        self._clock = (~pid << 3) | 2  # CPU time of another process: linux/posix-timers.h, CPUCLOCK_SCHED
        self._end = time.monotonic() + wall_s
        self._wall_s = wall_s
        self.start(math.inf)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

    def start(self, cpu_s: float) -> None:
        """Start a call that may use ``cpu_s``."""
        self._limit = cpu_s
        self._since = self._cpu()
        self._began = time.monotonic()

    def stop(self) -> float:
        """CPU seconds since ``start``. Raises TimeUp when it was too much, even if the call came back."""
        used = self._cpu() - self._since
        if used > self._limit:
            raise TimeUp(f"more than {self._limit:g} s of CPU time for one call")
        self._limit = math.inf
        return used

    def _look(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if now > self._end:
            raise TimeUp(f"more than {self._wall_s:g} s of wall time")
        if now - self._began > _SLACK * self._limit:
            raise TimeUp(f"more than {_SLACK * self._limit:g} s of wall time for one call")
        if self._cpu() - self._since > self._limit:
            raise TimeUp(f"more than {self._limit:g} s of CPU time for one call")

    def _cpu(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the program is gone; the next read reports it
            return 0.0


def record(ask: Callable[[Any], Reply], cases: dict[str, Any], watch: Watch, found: dict[str, Any]) -> None:
    """Call the reference on all inputs.

    Args:
        cases: {"inputs": packed argument lists}.
        found: receives "expected" (replies) and "cpu_s" (seconds), an entry per input.
    """
    found["expected"], found["cpu_s"] = [], []
    for args in cases["inputs"]:
        watch.start(math.inf)
        found["expected"].append(ask(args))
        found["cpu_s"].append(watch.stop())


def check(ask: Callable[[Any], Reply], cases: dict[str, Any], watch: Watch, found: dict[str, Any]) -> None:
    """Call a program on the inputs until one is wrong.

    Args:
        cases: "inputs"; by input "expected" (replies of the reference) and "limits" (CPU seconds); "rule", "atol".
        found: receives "right", the number of right outputs.

    Raises:
        Wrong, TimeUp: with a line that names the input.
    """
    found["right"] = 0
    atol = cases["atol"]
    for args, expected, limit in zip(cases["inputs"], cases["expected"], cases["limits"], strict=True):
        watch.start(limit)
        reply = ask(args)
        watch.stop()
        try:
            ok, atol = right(cases["rule"], atol, args, reply, expected)
        except Exception:  # as in EvalPlus: a value that cannot be compared is wrong
            ok = False
        if not ok:
            raise Wrong(f"{_show({'value': args})} gave {_show(reply)}, expected {_show(expected)}")
        found["right"] += 1


def right(rule: str, atol: float, args: Any, reply: Reply, expected: Reply) -> tuple[bool, float]:
    """Whether a reply is right, and the tolerance for the inputs after it (EvalPlus keeps one that it has raised).

    Args:
        rule: one of RULES.
    """
    if "digest" in reply or "digest" in expected:
        if rule == "not_none":
            return _is_something(expected), atol
        return reply.get("digest") == expected.get("digest"), atol
    out, exp = codec.unpack(reply["value"]), codec.unpack(expected["value"])
    if rule == "polynomial":
        (coefficients,) = codec.unpack(args)
        return abs(sum(c * math.pow(out, i) for i, c in enumerate(coefficients))) <= atol, atol
    if rule == "not_none":
        return (out if isinstance(out, bool) else out is not None) == (exp is not None), atol
    exact = bool(out == exp)
    if rule == "set":
        exact = set(out) == set(exp)
    elif rule == "pyramid":
        exact = exact or abs(out - _pyramid(*codec.unpack(args))) <= atol
    elif rule == "digits":
        exact = exact or out == _digits(*codec.unpack(args))
    if atol == 0 and _are_floats(exp):
        atol = _FLOAT_ATOL
    if exact or atol == 0:
        return exact, atol
    if type(out) is not type(exp) or (isinstance(exp, (list, tuple)) and len(out) != len(exp)):
        return False, atol
    return _close(out, exp, atol), atol


def _is_something(reply: Reply) -> bool:
    return "digest" in reply or reply["value"] is not None


def _are_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _pyramid(base: Any, height: Any) -> int:
    """Surface of a square pyramid by its perpendicular height, which Mbpp/581 leaves open."""
    return round(base**2 + 4 * (base * math.sqrt((base / 2) ** 2 + height**2)) / 2)


def _digits(first: Any, second: Any) -> int:
    """Digit-wise distance of two numbers padded to one length, which Mbpp/558 leaves open."""
    a, b = str(first), str(second)
    width = max(len(a), len(b))
    return sum(abs(int(x) - int(y)) for x, y in zip(a.zfill(width), b.zfill(width), strict=True))


def _close(out: Any, exp: Any, atol: float) -> bool:
    """numpy.allclose without numpy: nested sequences of numbers, broadcast."""
    a, b = _shape(out), _shape(exp)
    for _ in range(len(b) - len(a)):
        out = [out]
    for _ in range(len(a) - len(b)):
        exp = [exp]
    return _each_close(out, exp, max(len(a), len(b)), atol)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    inner = {_shape(item) for item in value}
    if len(inner) > 1:
        raise ValueError("ragged")
    return (len(value), *(inner.pop() if inner else ()))


def _each_close(out: Any, exp: Any, depth: int, atol: float) -> bool:
    if depth:
        if len(out) != len(exp) and 1 not in (len(out), len(exp)):
            raise ValueError("shapes do not match")
        width = len(exp) if len(out) == 1 else len(out)
        pairs = zip(out * width if len(out) == 1 else out, exp * width if len(exp) == 1 else exp, strict=True)
        found = [
            _each_close(x, y, depth - 1, atol) for x, y in pairs
        ]  # all of them: any may be something else than a number
        return all(found)
    for number in (out, exp):
        if not isinstance(number, (int, float, complex)) or (isinstance(number, int) and number.bit_length() > 63):
            raise TypeError("not a number of numpy's")
    return bool(out == exp or (cmath.isfinite(exp) and abs(out - exp) <= atol + _RTOL * abs(exp)))


def _show(reply: Reply) -> str:
    try:
        return repr(codec.unpack(reply["value"]))[:80]
    except (KeyError, ValueError):  # a digest, or an integer with more digits than Python prints
        return "a large value"
