"""Our verdicts are EvalPlus's: the same programs judged by both, and every canonical solution by us."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specbench.evals import data, plus_checks
from specbench.evals.plus_checks import Reference
from specbench.evals.task import Verdict
from specbench.tasks.humaneval.task import Options as HumanEvalOptions
from specbench.tasks.humaneval.task import Task as HumanEval
from specbench.tasks.mbpp.task import Options as MbppOptions
from specbench.tasks.mbpp.task import Task as Mbpp

TASKS = Path(__file__).parents[2] / "tasks"
HAVE_DATA = all(
    data.present(file) for name in ("humaneval", "mbpp") for file in data.manifest(TASKS / name / "task.toml")
)
needs_data = pytest.mark.skipif(not HAVE_DATA, reason="EvalPlus's data are not here; set SPECBENCH_DATA")
needs_evalplus = pytest.mark.skipif(plus_checks.version() is None, reason="evalplus is not installed")

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
