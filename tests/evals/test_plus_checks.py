"""EvalPlus's verdicts from our sandbox: the same as its own, also for programs that try to get around them."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from specbench.common.errors import EnvironmentRefused
from specbench.evals import plus_checks
from specbench.evals.grading.plus_worker import MAX_LINES, longest_code
from specbench.evals.plus_checks import Checker, EvalPlus, Reference, pack_inputs
from specbench.evals.sandbox import codec, differential
from specbench.evals.sandbox.differential import right
from specbench.evals.sandbox.fingerprint import BOUND, fingerprint, large
from specbench.evals.sandbox.sandbox import Sandbox

needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker(Sandbox())


def reference(
    solution: str, inputs: list[list[Any]], rule: str = "exact", atol: float = 0.0, base: int = 1
) -> Reference:
    """A problem of our own: ``f``, the first ``base`` inputs in the base."""
    packed = pack_inputs(inputs)
    return Reference(
        f"own {crc32(f'{solution}{inputs}'.encode())}", "f", solution, packed[:base], packed[base:], atol, rule
    )


SQUARE = reference("def f(x): return x * x", [[0], [1], [2], [3], [-3]], base=2)


def test_base_is_the_base_inputs_and_plus_is_all(checker: Checker) -> None:
    for source, base, plus in (
        ("def f(x): return x ** 2", True, True),
        ("def f(x): return x", True, False),
        ("def f(x): return x if x > 2 else x * x", True, False),
        ("def f(x): return 1", False, False),
        ("def g(x): return x * x", False, False),
    ):
        verdict = checker.check(SQUARE, (source,), False)
        assert (verdict.passed, verdict.also) == (plus, {"base": base, "plus": plus}), source
    verdict = checker.check(SQUARE, ("def f(x): return x",), False)
    assert (verdict.reason, verdict.detail) == ("fail", "[2] gave 2, expected 4")


def test_the_reference_runs_once_however_many_ask(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []
    real = Sandbox.compare

    def counted(self: Sandbox, program: Any, cases: Any, limits: Any) -> Any:
        recorded.append("expected" in cases)
        return real(self, program, cases, limits)

    monkeypatch.setattr(Sandbox, "compare", counted)
    fresh = Checker(Sandbox())
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda _: fresh.check(SQUARE, ("def f(x): return x * x",), False), range(4)))
    assert all(verdict.passed for verdict in verdicts)
    assert (recorded.count(False), recorded.count(True)) == (1, 4)


def test_a_reference_that_does_not_run_is_the_machines_fault(checker: Checker) -> None:
    with pytest.raises(EnvironmentRefused, match="ZeroDivisionError"):
        checker.check(reference("def f(x): return 1 / x", [[0]]), ("def f(x): return 0",), False)


HOSTILE = {
    "loop": "def f(x):\n    while True: pass",
    "sleep": "import time\ndef f(x): time.sleep(1000)",
    "fork bomb": "import os\ndef f(x):\n    while True: os.fork()",
    "100 GB": "def f(x): return 'a' * (100 << 30)",
    "endless value": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "large wrong value": "def f(x): return ['a'] * (1 << 20)",
    "kills its parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return x * x",
    "prints a verdict": 'import sys\nsys.stdout.write(\'{"reason": "pass", "right": 5}\')\ndef f(x): return x',
    "exits well": "import os\ndef f(x): os._exit(0)",
    "equals everything": "class All(int):\n    def __eq__(self, other): return True\ndef f(x): return All(7)",
    "writes into its channel": (
        "import os, struct\n"
        'body = b\'{"value": 4, "digest": "0", "right": 5, "reason": "pass"}\'\n'
        "def f(x):\n"
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('>I', len(body)) + body)\n"
        "        except OSError: pass\n"
        "    return x"
    ),
    "looks for the expected values": (
        "import gc, sys\n"
        "def f(x):\n"
        "    for kept in gc.get_objects():\n"
        "        if isinstance(kept, dict) and 'expected' in kept: return kept['expected']\n"
        "    return None"
    ),
}


@pytest.fixture(scope="module")
def unused() -> Checker:
    return Checker(Sandbox())


@pytest.fixture
def hasty(unused: Checker, monkeypatch: pytest.MonkeyPatch) -> Checker:
    """A checker that gives an input a tenth of its time; one for all tests, so that references run once."""
    monkeypatch.setattr(plus_checks, "MIN_INPUT_S", 0.3)
    monkeypatch.setattr(plus_checks, "LIMITS", replace(plus_checks.LIMITS, load_s=0.3))
    return unused


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_fail_in_bounded_time(name: str, hasty: Checker) -> None:
    started = time.monotonic()
    verdict = hasty.check(SQUARE, (HOSTILE[name],), False)
    assert (verdict.passed, verdict.also["plus"]) == (False, False)
    assert time.monotonic() - started < 30  # half a second of CPU time, 3 s of sleep; the rest is a busy machine's
    if name in ("fork bomb", "kills its parent", "writes into its channel"):  # the next one is as if nothing had been
        assert hasty.check(SQUARE, ("def f(x): return x * x",), False).passed


def test_time_is_by_input_and_grows_with_the_reference(hasty: Checker) -> None:
    """By the reference's time on this machine, four times over: a slow machine fails no one."""
    burn = "import time\ndef burn(s):\n    end = time.process_time() + s\n    while time.process_time() < end: pass\n"
    slow = reference(burn + "def f(s):\n    burn(s)\n    return s", [[0.0], [0.12]])
    assert hasty.check(slow, (burn + "def f(s):\n    burn(3 * s)\n    return s",), False).passed
    verdict = hasty.check(slow, (burn + "def f(s):\n    burn(5 * s)\n    return s",), False)
    assert (verdict.reason, verdict.also) == ("timeout", {"base": True, "plus": False})


def test_the_total_time_limit_grows_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compare(self: Sandbox, program: Any, cases: Any, limits: Any) -> Any:
        asked.append(limits.cpu_s)
        return {"reason": "pass", "detail": "", "expected": [], "cpu_s": [20.0, 0.5]}

    monkeypatch.setattr(Sandbox, "compare", compare)
    Checker(Sandbox()).check(SQUARE, ("",), False)
    assert asked == [600, 4 * 20.5 + 2]  # the reference's own limit, then the answer's


def holds(out: Any, expected: Any, rule: str = "exact", atol: float = 0.0, args: Any = ()) -> bool:
    try:
        return right(rule, atol, codec.pack(list(args)), {"value": codec.pack(out)}, {"value": codec.pack(expected)})[0]
    except Exception:
        return False


@pytest.mark.parametrize(
    ("out", "expected", "atol", "equal"),
    [
        (1, 1.0, 0, True),
        (True, 1, 0, True),
        ([1, 2], (1, 2), 0, False),
        ({"a": 1}, {"a": 1.0}, 0, True),
        (0.1 + 0.2, 0.3, 0, True),  # floats have a tolerance of EvalPlus's own
        (3, 3.0000001, 0, False),  # but not across types
        ([0.1 + 0.2], [0.3], 0, True),
        ((0.1 + 0.2,), [0.3], 0, False),
        ([0.1 + 0.2, 1], [0.3, 1], 0, False),  # not all floats: no tolerance
        ([0.1 + 0.2, 1], [0.3, 1], 1e-6, True),
        ([[0.3], [1.0]], [[0.1 + 0.2], [1.0]], 1e-6, True),
        ([[0.3, 1.0]], [[0.1 + 0.2], [1.0]], 1e-6, False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, 1e-6, False),  # numpy cannot
        ("ab", "abc", 1e-6, False),
        (10**10 + 1, 10**10, 1e-6, True),  # numpy's relative tolerance; EvalPlus's own mercy
        (10**30 + 1, 10**30, 1e-6, False),  # no number of numpy's
        (float("inf"), float("inf"), 1e-6, True),
        (1e308, float("inf"), 1e-6, False),
        (float("nan"), float("nan"), 1e-6, False),
        (1 + 1e-9j, 1 + 0j, 1e-6, True),
        (None, 0.0, 1e-6, False),
        ([[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.1]], 1e-6, False),
    ],
)
def test_values_compare_as_in_evalplus(out: Any, expected: Any, atol: float, equal: bool) -> None:
    assert holds(out, expected, atol=atol) is equal


@pytest.mark.parametrize(
    ("rule", "out", "expected", "args", "equal"),
    [
        ("set", [1, 2, 2], (2, 1), (), True), ("set", [1, 2, 3], (2, 1), (), False),
        ("set", [[1]], ([1],), (), False), ("not_none", "x", codec.Opaque("<re.Match object>"), (), True),
        ("not_none", None, codec.Opaque("<re.Match object>"), (), False), ("not_none", False, None, (), True),
        ("not_none", True, "Found", (), True), ("pyramid", 33, 0, (3, 4), False), ("pyramid", 35, 0, (3, 4), True),
        ("digits", 1, 99, (123, 1124), False), ("digits", 1003, 0, (9, 10), False), ("digits", 10, 0, (9, 10), True),
        ("polynomial", -0.5, 7.0, ([1, 2],), True), ("polynomial", -0.49, -0.5, ([1, 2],), False),
        ("polynomial", None, -0.5, ([1, 2],), False),
    ],
)  # fmt: skip
def test_special_rules(rule: str, out: Any, expected: Any, args: Any, equal: bool) -> None:
    assert rule in differential.RULES
    assert holds(out, expected, rule, 1e-4 if rule == "polynomial" else 0, args) is equal


def test_the_tolerance_is_measured_by_what_is_expected_and_once_raised_stays() -> None:
    value = {"value": 0.5}
    assert right("exact", 0.0, [], value, value) == (True, 1e-6)
    for out in (math.inf, -math.inf, 1e300, 2.0, [math.inf]):
        assert not holds(out, [1.0] if isinstance(out, list) else 1.0, atol=1e-6), "so large that it is near everything"
    assert holds(1e10 + 900.0, 1e10, atol=1e-6)
    assert not holds(1e10 + 1100.0, 1e10, atol=1e-6)
    assert not holds(1e10, 0.0, atol=1e-6)


def test_equal_large_values_have_one_fingerprint() -> None:
    for a, b in (
        (["x"] * BOUND, ["".join(["", "x"])] * BOUND),
        ([1, 0, 2] * BOUND, [1.0, False, 2] * BOUND),
        ([(1, "a")] * BOUND, [(True, "a")] * BOUND),
        ({i: {i} for i in range(BOUND)}, {float(i): frozenset([i]) for i in reversed(range(BOUND))}),
        ("é" * BOUND, "é" * BOUND),
        (1 << (65 * BOUND), 1 << (65 * BOUND)),
    ):
        assert (a == b, large(a), large(b), fingerprint(a) == fingerprint(b)) == (True,) * 4


def test_other_large_values_have_other_fingerprints() -> None:
    many = [1] * BOUND
    values: list[Any] = [
        many, tuple(many), [*many[:-1], 2], many[:-1], ["1"] * BOUND, [many], [tuple(many)], [[1]] * BOUND,
        [(1,)] * BOUND, [[1, None]] * BOUND, [0.5] * BOUND, dict.fromkeys(range(BOUND), 1), set(range(BOUND)),
    ]  # fmt: skip
    assert len({fingerprint(value) for value in values}) == len(values)


def test_small_values_are_sent_as_they_are(checker: Checker) -> None:
    assert not large([1] * (BOUND - 2))
    close = reference("def f(n): return [0.1 + 0.2] * n", [[3], [BOUND]], atol=1e-6)
    verdict = checker.check(close, ("def f(n): return [0.3] * n",), False)
    assert verdict.also == {"base": True, "plus": False}  # a large value has no tolerance, and only a large one
    forged = {"digest": "0"}  # no program answers a small value by a hash
    for rule, out, expected in (("exact", forged, {"value": 4}), ("exact", {"value": 4}, forged)):
        assert not right(rule, 0, [], out, expected)[0]
    assert not right("polynomial", 1e-4, [], forged, {"value": 4})[0]


TEXTS = (
    "def f(x):\n    return x\n",
    "Here is the code:\n\nimport math\n\ndef f(x):\n    return math.sqrt(x)\n\nIt takes the root.\nf(3) is that of 3.",
    "def f(x):\n    return (x\n\ndef g(x):\n    return x\n",
    "no code\nat all here, I fear\n(",
    "x = 1\ny = 2\nnot code here\na = 1\nb = 2",
    "(",
    "",
    "\n\n\n",
    "def f():\n    '''\n    text\n    '''\n    return 1\n'''",
)


@pytest.fixture(scope="module")
def cleaner(task_data: Path) -> EvalPlus:
    return EvalPlus("this test")


@needs_evalplus
def test_sanitised_code_is_evalpluss(cleaner: EvalPlus) -> None:
    from evalplus import sanitize

    def parses(code: str) -> bool:
        with contextlib.suppress(SyntaxError):
            return bool(ast.parse(code))
        return False

    for text in TEXTS:
        assert longest_code(text, parses) == sanitize.code_extract(text)
        assert cleaner.sanitise(text, "f") == sanitize.sanitize(text, "f")
    assert cleaner.sanitise("def f(x):\n    return x\nprint(f(1))\nassert f(1) == 2", "f") == "def f(x):\n    return x"


@needs_evalplus
def test_hostile_text_is_sanitised_in_bounded_time(cleaner: EvalPlus) -> None:
    prose = "\n".join(f"Line {number} of a text that is no code, (unclosed" for number in range(5000))
    texts = ["(" * 10**5, "-" * 10**5 + "1", "a" + ".b" * 10**5, "\0", "def f():\n" * 10**5, prose]
    for text in (*texts, "[" * 90 + "\n" * 10**5):
        started = time.monotonic()
        cleaner.sanitise(text, "f")
        assert time.monotonic() - started < 20
    assert cleaner.sanitise("x = 1\n" * MAX_LINES + "def f(): return 1", "f").count("\n") < MAX_LINES
