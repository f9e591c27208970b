"""EvalPlus's verdicts from our sandbox: the same as its own, also for programs that try to get around them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench import data
from specbench.errors import EnvironmentRefused
from specbench.scoring import codec, differential, evalplus_checks, evalplus_package
from specbench.scoring.differential import right
from specbench.scoring.evalplus_checks import Checker, Reference, pack_inputs
from specbench.scoring.evalplus_package import EvalPlus
from specbench.scoring.evalplus_worker import MAX_LINES, longest_code
from specbench.scoring.fences import first_block
from specbench.scoring.fingerprint import BOUND, fingerprint, large
from specbench.scoring.sandbox import Sandbox
from specbench.task import Verdict
from specbench.tasks.humaneval.task import Options as HumanEvalOptions
from specbench.tasks.humaneval.task import Task as HumanEval
from specbench.tasks.mbpp.task import Options as MbppOptions
from specbench.tasks.mbpp.task import Task as Mbpp

TASKS = Path(__file__).parents[2] / "tasks"
HAVE_DATA = all(
    data.present(file) for name in ("humaneval", "mbpp") for file in data.manifest(TASKS / name / "task.toml")
)
needs_data = pytest.mark.skipif(not HAVE_DATA, reason="EvalPlus's data are not here; set SPECBENCH_DATA")
needs_evalplus = pytest.mark.skipif(evalplus_package.version() is None, reason="evalplus is not installed")


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker(Sandbox())


def reference(
    solution: str, inputs: list[list[Any]], rule: str = "exact", atol: float = 0.0, base: int = 1
) -> Reference:
    """A problem of our own: ``f``, the first ``base`` inputs in the base."""
    packed = pack_inputs(inputs)
    return Reference(f"own {hash((solution, str(inputs)))}", "f", solution, packed[:base], packed[base:], atol, rule)


SQUARE = reference("def f(x): return x * x", [[0], [1], [2], [3], [-3]], base=2)


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_base_is_the_base_inputs_and_plus_is_all(checker: Checker) -> None:
    def also(source: str) -> dict[str, bool]:
        verdict = checker.check(SQUARE, (source,), False)
        assert verdict.passed == verdict.also["plus"]
        return dict(verdict.also)

    assert also("def f(x): return x ** 2") == {"base": True, "plus": True}
    assert also("def f(x): return x") == {"base": True, "plus": False}
    assert also("def f(x): return x if x > 2 else x * x") == {"base": True, "plus": False}
    assert also("def f(x): return 1") == {"base": False, "plus": False}
    assert also("def g(x): return x * x") == {"base": False, "plus": False}


def test_a_wrong_value_is_shown(checker: Checker) -> None:
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
    with pytest.raises(EnvironmentRefused, match=r"reference solution of own .* \(ZeroDivisionError"):
        checker.check(reference("def f(x): return 1 / x", [[0]]), ("def f(x): return 0",), False)


HOSTILE = {
    "loop": "def f(x):\n    while True: pass",
    "loop when loaded": "while True: pass",
    "loop that ignores signals": (
        "import signal\nfor s in (14, 24): signal.signal(s, signal.SIG_IGN)\ndef f(x):\n    while True: pass"
    ),
    "loop in C": "def f(x): return sum(1 for _ in iter(int, 1))",
    "sleep": "import time\ndef f(x): time.sleep(1000)",
    "fork bomb": "import os\ndef f(x):\n    while True: os.fork()",
    "100 GB": "def f(x): return 'a' * (100 << 30)",
    "all memory bit by bit": "def f(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 26))",
    "endless value": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "large wrong value": "def f(x): return ['a'] * (1 << 20)",
    "writes outside": "def f(x):\n    open('../outside', 'w').write('x')\n    return x * x",
    "writes to /tmp": "def f(x):\n    open('/tmp/specbench-outside', 'w').write('x')\n    return x * x",
    "socket": "import socket\ndef f(x):\n    socket.socket()\n    return x * x",
    "kills its parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return x * x",
    "prints 1 GB": "def f(x):\n    for _ in range(1 << 10): print('pass' * (1 << 18))\n    return x",
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


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_fail_in_bounded_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evalplus_checks, "MIN_INPUT_S", 1.0)
    monkeypatch.setattr(evalplus_checks, "LIMITS", replace(evalplus_checks.LIMITS, load_s=1.0))
    checker = Checker(Sandbox())
    started = time.monotonic()
    verdict = checker.check(SQUARE, (HOSTILE[name],), False)
    assert (verdict.passed, verdict.also) == (False, {"base": False, "plus": False} | _base(name))
    assert time.monotonic() - started < 30  # 1 s of CPU time, 3 s of sleep; the rest is a busy machine's
    assert not Path("/tmp/specbench-outside").exists()
    checked = checker.check(SQUARE, ("def f(x): return x * x",), False)  # and the next one is judged as if nothing was
    assert checked.passed


def _base(name: str) -> dict[str, bool]:
    """0 and 1 are their own squares: some of the hostile get that far."""
    return {"base": True} if name in {"prints 1 GB", "prints a verdict"} else {}


def test_time_is_by_input_and_grows_with_the_reference() -> None:
    burn = "import time\ndef burn(s):\n    end = time.process_time() + s\n    while time.process_time() < end: pass\n"
    slow = reference(burn + "def f(s):\n    burn(s)\n    return s", [[0.0], [1.1]])
    checker = Checker(Sandbox())
    assert checker.check(slow, (burn + "def f(s):\n    burn(3.75 * s)\n    return s",), False).passed  # more than 4 s
    verdict = checker.check(slow, (burn + "def f(s):\n    burn(6 * s)\n    return s",), False)
    assert (verdict.reason, verdict.also) == ("timeout", {"base": True, "plus": False})
    assert "CPU time for one call" in verdict.detail


# -- comparison --------------------------------------------------------------------------------------------------------


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
        ("set", [1, 2, 2], (2, 1), (), True),
        ("set", [1, 2, 3], (2, 1), (), False),
        ("set", [[1]], ([1],), (), False),
        ("not_none", "x", codec.Opaque("<re.Match object>"), (), True),
        ("not_none", None, codec.Opaque("<re.Match object>"), (), False),
        ("not_none", False, None, (), True),
        ("not_none", True, "Found", (), True),
        ("pyramid", 33, 0, (3, 4), False),
        ("pyramid", 35, 0, (3, 4), True),
        ("digits", 1, 99, (123, 1124), False),
        ("digits", 1003, 0, (9, 10), False),
        ("digits", 10, 0, (9, 10), True),
        ("polynomial", -0.5, 7.0, ([1, 2],), True),
        ("polynomial", -0.49, -0.5, ([1, 2],), False),
        ("polynomial", None, -0.5, ([1, 2],), False),
    ],
)
def test_special_rules(rule: str, out: Any, expected: Any, args: Any, equal: bool) -> None:
    assert rule in differential.RULES
    assert holds(out, expected, rule, 1e-4 if rule == "polynomial" else 0, args) is equal


def test_a_tolerance_once_raised_stays() -> None:
    value = {"value": 0.5}
    assert right("exact", 0.0, [], value, value) == (True, 1e-6)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["x"] * BOUND, ["".join(["", "x"])] * BOUND),
        ([1, 0, 2] * BOUND, [1.0, False, 2] * BOUND),
        ([(1, "a")] * BOUND, [(True, "a")] * BOUND),
        ({i: {i} for i in range(BOUND)}, {float(i): frozenset([i]) for i in reversed(range(BOUND))}),
        ("é" * BOUND, "é" * BOUND),
        (1 << (65 * BOUND), 1 << (65 * BOUND)),
    ],
    ids=range(6),
)
def test_equal_large_values_have_one_fingerprint(a: Any, b: Any) -> None:
    assert a == b
    assert large(a)
    assert large(b)
    assert fingerprint(a) == fingerprint(b)


def test_other_large_values_have_other_fingerprints() -> None:
    many = [1] * BOUND
    values: list[Any] = [
        many,
        tuple(many),
        [*many[:-1], 2],
        many[:-1],
        ["1"] * BOUND,
        [many],
        [tuple(many)],
        [[1]] * BOUND,
    ]
    values += [[(1,)] * BOUND, [[1, None]] * BOUND, [0.5] * BOUND, dict.fromkeys(range(BOUND), 1), set(range(BOUND))]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_small_values_are_sent_as_they_are(checker: Checker) -> None:
    assert not large([1] * (BOUND - 2))
    close = reference("def f(n): return [0.1 + 0.2] * n", [[3], [BOUND]], atol=1e-6)
    verdict = checker.check(close, ("def f(n): return [0.3] * n",), False)
    assert verdict.also == {"base": True, "plus": False}  # a large value has no tolerance, and only a large one


def test_a_program_cannot_answer_a_small_value_by_a_hash(checker: Checker) -> None:
    forged = {"digest": "0"}
    assert not right("exact", 0, [], forged, {"value": 4})[0]
    assert not right("exact", 0, [], {"value": 4}, forged)[0]
    assert not right("polynomial", 1e-4, [], forged, {"value": 4})[0]


# -- agreement with EvalPlus -------------------------------------------------------------------------------------------

# In a process of its own: its children inherit the address space, and its memory limit counts it.
EVALPLUS = """
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

CONVERSIONS = (
    "list({})", "tuple({})", "set({})", "float({})", "int({})", "str({})", "not {}", "[{}]", "None", "sorted({})",
    "{} + 1e-8", "{} * 1.00001", "list({})[::-1]", "map(str, {})", "bool({})", "round({}, 3)", "[x + 1e-9 for x in {}]",
)  # fmt: skip


class _Flip(ast.NodeTransformer):
    """Changes the ``which``-th place where a slip is likely."""

    def __init__(self, which: int) -> None:
        self.left = which

    def _now(self) -> bool:
        self.left -= 1
        return self.left == -1

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        flipped = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
        self.generic_visit(node)
        if type(node.ops[0]) in flipped and self._now():
            node.ops[0] = flipped[type(node.ops[0])]()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, (ast.Add, ast.Sub)) and self._now():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node


def variations(problem: dict[str, Any], conversions: Iterable[str]) -> list[str]:
    """The canonical solution, what it returns in other forms, and two slips in it."""
    right_one = problem["prompt"] + problem["canonical_solution"]
    name = problem["entry_point"]
    found = [right_one]
    for form in conversions:
        found.append(f"{right_one}\n_inner = {name}\ndef {name}(*args): return {form.format('_inner(*args)')}\n")
    for which in range(2):
        flip = _Flip(which)
        changed = ast.unparse(flip.visit(ast.parse(right_one)))
        found += [changed] if flip.left < 0 else []
    return found


def disagreements(dataset: str, task: Any, ids: Iterable[str], conversions: Iterable[str]) -> tuple[list[Any], int]:
    """([id, solution, theirs, ours] where EvalPlus and we differ, programs compared)."""
    rows = {
        row["task_id"]: row for row in data.read_jsonl(plus_file("humaneval" if dataset == "humaneval" else "mbpp"))
    }
    jobs = [(dataset, rows[id], variations(rows[id], conversions)) for id in ids]
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run([sys.executable, "-c", EVALPLUS], input=lines, capture_output=True, text=True, check=True)
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    differ, count = [], 0
    for (_, row, solutions), verdicts in zip(jobs, theirs, strict=True):
        known = task._plus[row["task_id"]].reference if dataset == "humaneval" else task._reference(row["task_id"])

        def ours(solution: str, known: Reference = known) -> list[bool]:
            verdict = task._checker.check(known, (solution,), False)
            return [verdict.also["base"], verdict.also["plus"]]

        with ThreadPoolExecutor(2) as pool:
            for solution, verdict, own in zip(solutions, verdicts, pool.map(ours, solutions), strict=True):
                count += 1
                differ += [] if own == verdict else [(row["task_id"], solution[-300:], verdict, own)]
    return differ, count


def plus_file(name: str) -> Path:
    (file,) = [file for file in data.manifest(TASKS / name / "task.toml") if "Plus" in file.name]
    return data.resolve(file)


SPECIAL = [2, 7, 124, 252, 558, 581, 737, 794]  # one at least for each rule and each odd type


@needs_data
@needs_evalplus
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
def test_verdicts_agree_with_evalplus(dataset: str) -> None:
    if dataset == "humaneval":
        task: Any = HumanEval(HumanEvalOptions(style="completion", tests="plus"))
        ids = [f"HumanEval/{number}" for number in (4, 21, 26, 47, 99, 148)]
    else:
        task = Mbpp(MbppOptions(variant="plus"))
        ids = [f"Mbpp/{number}" for number in SPECIAL]
    differ, count = disagreements(dataset, task, ids, CONVERSIONS[:3] + CONVERSIONS[7:12:2])
    assert differ == []
    assert count > 6 * len(ids)


@needs_data
@needs_evalplus
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
def test_verdicts_agree_with_evalplus_on_many(dataset: str) -> None:
    task: Any = HumanEval(HumanEvalOptions(style="completion", tests="plus"))
    if dataset == "mbpp":
        task = Mbpp(MbppOptions(variant="plus"))
    ids = [id for id in list(task._plus)[:: 7 if dataset == "humaneval" else 17] if id != "HumanEval/32"]
    differ, count = disagreements(dataset, task, ids, CONVERSIONS)
    assert differ == []
    assert count > 300


@needs_data
@needs_evalplus
def test_find_zero_is_where_we_differ() -> None:
    """When this fails, EvalPlus has mended its oracle: say so in the README."""
    differ, count = disagreements("humaneval", HumanEval(HumanEvalOptions(tests="plus")), ["HumanEval/32"], ("None",))
    id, _, theirs, ours = differ[0]
    assert (id, theirs, ours) == ("HumanEval/32", [False, False], [True, True])
    assert len(differ) < count


def _canonical(verdicts: Iterable[tuple[str, Verdict]]) -> dict[str, str]:
    return {id: f"{verdict.reason}: {verdict.detail}" for id, verdict in verdicts if not verdict.passed}


def check_all(task: Any, references: dict[str, Reference]) -> dict[str, str]:
    with ThreadPoolExecutor(2) as pool:
        checked = pool.map(lambda r: (r.id, task._checker.check(r, (r.solution,), False)), references.values())
        return _canonical(checked)


@needs_data
def test_canonical_solutions_of_some_humaneval_plus_problems_pass() -> None:
    task = HumanEval(HumanEvalOptions(tests="plus"))
    some = [*list(task._plus)[::12], "HumanEval/32", "HumanEval/100"]
    assert check_all(task, {id: task._plus[id].reference for id in some}) == {}


@needs_data
@pytest.mark.slow
def test_every_canonical_solution_of_humaneval_plus_passes() -> None:
    task = HumanEval(HumanEvalOptions(tests="plus"))
    references = {id: problem.reference for id, problem in task._plus.items()}
    assert len(references) == 164
    assert check_all(task, references) == {}


@needs_data
@needs_evalplus
@pytest.mark.slow
def test_every_canonical_solution_of_mbpp_plus_passes() -> None:
    """Mbpp/255, of which one output has ten million tuples, and Mbpp/392 too, which EvalPlus itself times out on."""
    task = Mbpp(MbppOptions(variant="plus"))
    references = {id: task._reference(id) for id in task._plus}
    assert len(references) == 378
    assert check_all(task, references) == {}


# -- sanitising --------------------------------------------------------------------------------------------------------


def parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


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


@needs_evalplus
@pytest.mark.parametrize("text", TEXTS)
def test_the_longest_code_is_the_one_evalplus_finds(text: str) -> None:
    from evalplus import sanitize

    assert longest_code(text, parses) == sanitize.code_extract(text)


@needs_evalplus
def test_sanitised_code_is_evalpluss() -> None:
    from evalplus import sanitize

    cleaner = EvalPlus("this test")
    for text in TEXTS:
        assert cleaner.sanitise(text, "f") == sanitize.sanitize(text, "f")
    assert cleaner.sanitise("def f(x):\n    return x\nprint(f(1))\nassert f(1) == 2", "f") == "def f(x):\n    return x"


@needs_evalplus
def test_hostile_text_is_sanitised_in_bounded_time() -> None:
    cleaner = EvalPlus("this test")
    prose = "\n".join(f"Line {number} of a text that is no code, (unclosed" for number in range(5000))
    texts = [
        "(" * 10**6,
        "-" * 10**5 + "1",
        "a" + ".b" * 10**5,
        "\0",
        "def f():\n" * 10**5,
        prose,
        "[" * 90 + "\n" * 10**5,
    ]
    for text in texts:
        started = time.monotonic()
        cleaner.sanitise(text, "f")
        assert time.monotonic() - started < 30
    assert cleaner.sanitise("x = 1\n" * MAX_LINES + "def f(): return 1", "f").count("\n") < MAX_LINES


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evalplus_package, "version", lambda: None)
    with pytest.raises(EnvironmentRefused, match=r"extract=evalplus needs the evalplus package: pip install"):
        EvalPlus("extract=evalplus")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Sure:\n```python\na\n```\nand\n```python\nb\n```", "a"),
        ("Run it:\n```bash\nls\n```\n```py\na\n```", "a"),
        ("```\na\n```", "a"),
        ("```Python\na", "a"),
        (" ```python\n    a\n```", "    a"),
    ],
)
def test_the_first_python_block(text: str, code: str) -> None:
    assert first_block(text) == code


def test_limits_are_recorded() -> None:
    lines = Checker(Sandbox()).isolation()
    assert any("62 s CPU, 190 s wall, 2048 MiB" in line for line in lines)
    assert evalplus_checks.VERSION.startswith(differential.VERSION)
