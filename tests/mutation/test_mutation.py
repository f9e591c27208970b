"""The tool of `make mutation`: what it changes and leaves, who it asks, and that it tells the dead from the living."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import run, server
from mutation.lines import Lines, parsed
from mutation.operators import Mutant, another, mutants

ROOT = Path(__file__).parents[2]


def changes(source: str) -> set[tuple[str, str]]:
    """What becomes of a source of one line, by the operator."""
    return {(one.operator, one.after) for one in mutants(source, "some.py") if another(one, source)}


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("x = a < b", {("compared", "x = a <= b")}),
        ("x = a < b >= c", {("compared", "x = a <= b >= c"), ("compared", "x = a < b > c")}),
        ("x = (a) is not (b)", {("compared", "x = (a) is (b)")}),
        ("x = a // b", {("computed", "x = a * b")}),
        ("x = 'é' + b", {("computed", "x = 'é' - b")}),  # the tree counts bytes
        ("x = a and b and c", {("joined", "x = (a or b or c)")}),
        ("x = not a", {("not", "x = (a)")}),
        ("x = True", {("constant", "x = False")}),
        ("x = 0", {("constant", "x = 1")}),
        ("x = 7", {("constant", "x = 6"), ("constant", "x = 8")}),
        ("x = 0.5", {("constant", "x = -0.5"), ("constant", "x = 1.5")}),
        ("x = a[-1]", {("index", "x = a[0]")}),
        ("x = a[0]", {("index", "x = a[-1]")}),
        ("x = a[b:]", {("slice", "x = a[(b) + 1:]"), ("slice", "x = a[(b) - 1:]")}),
        ("x = min(a)", {("opposite", "x = max(a)")}),
        ("x = sorted(a)", {("reversed", "x = sorted(a, reverse=True)")}),
        ("x = f(a, b)", {("swapped", "x = f(b, a)")}),
        ("x = max(a, b)", {("opposite", "x = min(a, b)")}),  # which does not care for their order
        ("f(a)", {("dropped", "pass")}),
        ("a.b = c", {("dropped", "pass")}),
        ("def f(): return a", {("returned", "def f(): return None")}),
        ("def f(a: int = 0): pass", {("constant", "def f(a: int = 1): pass")}),
        ("x = a * b", {("alone", "x = (a)"), ("alone", "x = (b)"), ("other name", "x = b * b")}),
        ("x = a if b else c", {("alone", "x = (a)"), ("alone", "x = (c)")}),
        ("x = a and b", {("left out", "x = ((a))"), ("left out", "x = ((b))")}),
        ("x = [a for a in b if a.c]", {("left out", "x = [a for a in b if True]")}),
        ("if a > b: c()", {("negated", "if not (a > b): c()")}),
        ("x = ceil(a)", {("unwrapped", "x = (a)")}),
        ("x = a.long()", {("unwrapped", "x = a")}),
        ("x = f(a, b=c)", {("unset", "x = f(a)")}),
        ("x = a.keys + a.values", {("other name", "x = a.values + a.values"), ("other name", "x = a.keys + a.keys")}),
    ],
)
def test_each_operator_changes_one_place(source: str, made: set[tuple[str, str]]) -> None:
    assert made <= changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2"""',
        "a: Literal[1] ",
        "a: dict[B, C]",
        "A = Callable[[B, C], D]",
        "x = f(linewidth=0.9)",
        "def f(a: T[1]) -> T[2]: pass",
        "raise ValueError(1 + 2)",
        "assert a, 1 + 2",
        "import a",
        "class A:\n    def __repr__(self): return 1 + 2",
        "if TYPE_CHECKING:\n    x = 1",
        "logger.info(1, 2)",
        "class A(Protocol):\n    def f(self, a: int = 0) -> None: ...",
        "x = f'{1 + 2}'",
        "@d(1)\ndef f(): pass",
    ],
)
def test_what_decides_nothing_is_left_alone(source: str) -> None:
    assert not changes(source)


def test_a_mutant_is_its_source_but_for_its_lines_and_each_has_a_key_of_its_own() -> None:
    source = (ROOT / "specbench/runner/stop.py").read_text()
    found = list(mutants(source, "specbench/runner/stop.py"))
    assert len({one.key for one in found}) == len(found) > 50
    for one in found:
        first, last = one.lines
        ours, theirs = source.splitlines(), one.source.splitlines()
        assert ours[: first - 1] == theirs[: first - 1]
        assert ours[last:] == theirs[len(theirs) - len(ours) + last :]


def test_a_draw_repeats_and_an_edit_elsewhere_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1 + 2\ny = 3 * 4\n" * 8)
    first = [one.key for one in run.drawn(tmp_path, ["a.py"], 0, 12)]
    assert [one.key for one in run.drawn(tmp_path, ["a.py"], 0, 12)] == first
    assert [one.key for one in run.drawn(tmp_path, ["a.py"], 1, 12)] != first
    (tmp_path / "a.py").write_text("# a line\n" + (tmp_path / "a.py").read_text())
    assert [one.key for one in run.drawn(tmp_path, ["a.py"], 0, 12)] == first


def test_a_test_has_run_what_its_shared_fixture_and_a_child_of_it_ran(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("def total(a, b):\n    return a + b\n\n\ndef twice(a):\n    return 2 * a\n")
    (tmp_path / "test_sums.py").write_text(
        "import os\nimport pytest\nimport sums\n\n\n"
        "@pytest.fixture(scope='module')\ndef four():\n    return sums.total(2, 2)\n\n\n"
        "def test_first(four):\n    assert four == 4\n\n\n"
        "def test_second(four):\n"
        "    if os.fork() == 0:\n        sums.twice(four)\n        os._exit(0)\n    os.wait()\n\n\n"
        "def test_neither():\n    pass\n\n\ndef test_fails():\n    assert sums.twice(1) == 3\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env |= {"MUTATION_TARGETS": "sums.py", "MUTATION_TRACE": str(tmp_path / "trace")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutation.tracing", "test_sums.py"]
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    found = parsed(tmp_path / "trace", tmp_path)["test_sums.py"]["tests"]
    ran = {test.split("::")[1]: lines["sums.py"] for test, (_, lines) in found.items()}
    assert ran == {"test_first": [1, 2], "test_second": [1, 2, 5, 6]}


def known(**tests: float) -> Lines:
    made = Lines()
    for test, seconds in tests.items():
        name = f"tests/test_{test}.py::test_it"
        made.seconds[name] = seconds
        made.tests["some.py", 2].add(name)
        made.files["some.py"].add(name)
    return made


def changed(source: str) -> Mutant:
    return next(iter(mutants(source, "some.py")))


def test_its_own_and_quick_tests_come_first_and_long_ones_where_there_are_no_others() -> None:
    inside, outside = changed("def f():\n    return a < b\n"), changed("x = 1\n")
    own, other, rest, slower = (f"tests/test_{name}.py::test_it" for name in ("some", "other", "rest", "slower"))
    assert run.lots_of_tests(inside, known(other=0.1, some=2.0, slower=4.0, rest=2.95)) == [[own, other], [rest]]
    assert run.lots_of_tests(inside, known(slower=4.0)) == [[slower]]
    assert run.lots_of_tests(outside, known(other=0.1)) == [[other]]
    assert run.lots_of_tests(inside, Lines()) == []


STOP_TESTS = """
import pytest
import stop


def test_a_string_ends_an_answer_with_the_id_that_completes_it():
    output = stop.Output(stop.StopRule(frozenset(), ("ab",), 9, lambda ids: "".join(map(chr, ids))))
    assert output.extend([120, 97, 98, 99]) == 3
    assert (output.text(), output.reason, output.overshoot) == ("x", "stop-string", 1)
"""


def test_a_mutant_that_a_test_notices_dies_and_one_that_changes_nothing_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    source = (ROOT / "specbench/runner/stop.py").read_text()
    Path("stop.py").write_text(source)
    Path("test_stop.py").write_text(STOP_TESTS)
    test = "test_stop.py::test_a_string_ends_an_answer_with_the_id_that_completes_it"

    def outcome(before: str, after: str, tests: str = test) -> tuple[str, str]:
        assert before in source
        order = {"file": "stop.py", "source": source.replace(before, after), "tests": [tests], "seconds": 1.0}
        found = server.answer(order)
        return found["outcome"], found["test"]

    assert outcome("del self.ids[end:]", "del self.ids[(end) - 1:]") == ("killed", test)
    assert outcome("_SLACK = 4", "_SLACK = 5") == ("survived", "")  # more to look at finds no more
    assert outcome("_SLACK = 4", "import os; os._exit(3)") == ("killed", "the process ended")
    assert outcome("_SLACK = 4", "_SLACK = 4", "test_stop.py::test_that_is_not_there") == ("not run", "")


def test_one_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(server, "WALL", (0.5, 0.0))
    Path("test_sleep.py").write_text("import time\ndef test_it():\n    time.sleep(60)\n")
    order = {"file": "", "source": "", "tests": ["test_sleep.py::test_it"], "seconds": 1.0}
    assert server.answer(order)["outcome"] == "timed out"


def test_a_run_is_good_when_nine_of_ten_die_and_every_other_is_listed() -> None:
    found = [run.Result(one, "killed") for one in [*mutants("x = a + b\n" * 18, "some.py")][:18]]
    found += [run.Result(changed("y = 1"), "survived"), run.Result(changed("y = a < b"), "not covered")]
    survivors = {found[-2].mutant.key: "equivalent", found[-1].mutant.key: "accepted"}
    lines, good = run.verdict(found, survivors, 20)
    assert good
    assert "90.0%; without the 1 that change nothing 94.7%" in lines[1]
    assert not run.verdict(found, survivors, 21)[1]
    assert not run.verdict(found, dict(list(survivors.items())[:1]), 20)[1]
    assert not run.verdict(found[1:], survivors, 19)[1]


def test_every_listed_survivor_is_still_a_mutant() -> None:
    """A reason that outlives its line explains nothing; the entry goes with the line."""
    survivors = run.listed()
    sources = {file: (ROOT / file).read_text() for file, *_ in survivors}
    assert sources.keys() <= {file for area in run.AREAS for file in run.targets(area)}
    every = {one.key for file, source in sources.items() for one in mutants(source, file)}
    assert survivors.keys() <= every, [key for key in survivors if key not in every]


def test_every_planted_fault_has_its_place_and_tests() -> None:
    faults = run.planted()
    assert 0 < len(faults) <= 12
    for fault in faults:
        assert (ROOT / fault["file"]).read_text().count(fault["was"]) == 1, fault["name"]
        assert all((ROOT / test).is_file() for test in fault["tests"]), fault["name"]


def test_every_area_has_sources_and_tests() -> None:
    for area, (names, _) in run.AREAS.items():
        assert len(run.targets(area)) >= len(names), area
        assert area == "kernels" or run.test_folders([area]), area


def test_a_planted_fault_is_noticed_or_a_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text("import sums\ndef test_total():\n    assert sums.total(2, 2) == 4\n")

    class Here:
        def ask(self, mutant: None, tests: list[str], seconds: float) -> dict[str, object]:
            monkeypatch.chdir(tmp_path)
            return server.answer({"file": "", "source": "", "tests": tests, "seconds": seconds})

    def outcome(was: str, now: str) -> str:
        fault = {"file": "sums.py", "was": was, "is": now, "tests": ["test_sums.py"]}
        return run.complaint(fault, tmp_path, Here())  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert not outcome("a + b", "a - b")
    assert "passes" in outcome("a + b", "a * b")
    assert outcome("a + b + 0", "a")


def test_an_entry_as_it_is_printed_is_found_once_it_has_a_reason(tmp_path: Path) -> None:
    mutant = list(mutants('x = "a" < b\nx = "a" < b\n', "some.py"))[1]
    (tmp_path / "list.toml").write_text(run.entry(mutant) + '\nkind = "accepted"\nreason = "a test"\n')
    assert run.listed(tmp_path / "list.toml") == {mutant.key: "accepted"}
