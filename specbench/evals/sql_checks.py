"""Compare a model's SQL query with a gold query by their results, in our sandbox.

Results are compared as in the test-suite evaluation of Spider (Zhong et al. 2020, arXiv 2010.02840; its
``exec_eval.py`` in taoyds/test-suite-sql-eval at commit e97acc5), on the one database that Spider has for a question.
Both queries run under the same limits, each in a process of its own.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

from specbench.common import UsageError
from specbench.evals.sandbox import query, table
from specbench.evals.sandbox.sandbox import Limits, Program, Sandbox
from specbench.evals.task import Verdict

CPU_S = 10
"""Most CPU seconds of a query; the authors allow 60 s of wall time."""

VERSION = f"{table.VERSION} (as test-suite-sql-eval e97acc5)"
"""Version of the comparison, for a task's ``versions``."""

SQLITE = sqlite3.sqlite_version
"""Version of the library that runs the queries: later ones support more SQL."""

LIMITS = Limits(CPU_S + 4, 3.0 * (CPU_S + 4), 1 << 30, load_s=4.0)

_SPACED = re.compile(r"([<>!]) =")
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
# Text inside quotation marks or comments stays unchanged. An unclosed one reaches to the end of the query, as in
# SQLite, and is scanned once.
_DISTINCT = re.compile(
    r"""('[^']*(?:''[^']*)*(?:'|\Z)|"[^"]*(?:""[^"]*)*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"|\bdistinct\b",
    re.IGNORECASE | re.DOTALL,
)
_ORDER_BY = re.compile(r"order by", re.IGNORECASE)


def normal(sql: str, distinct: bool) -> str:
    """A query as the authors run it: operators joined, and the current year 2020.

    Args:
        distinct: keep the keyword DISTINCT, which the authors remove from both queries by default.
    """
    sql = _CURRENT_YEAR.sub("2020", _SPACED.sub(r"\1=", sql))
    return sql if distinct else _DISTINCT.sub(lambda found: found[1] or "", sql)


class Checker:
    """Run queries on databases. Safe to share between threads; a gold query runs once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[tuple[Path, str], Any] = {}
        self._locks: dict[tuple[Path, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def check(self, database: Path, gold: str, where: str, answer: str, distinct: bool) -> Verdict:
        """The verdict on one query: its result equals the gold query's. ``also`` has "executes".

        Args:
            where: the gold query's place in the data, for an error.
        """
        if len(answer) > query.SQL:  # checked first: searching the text may take time quadratic in its length
            why = f"a query of more than {query.SQL:,} characters"
            return Verdict(False, "too large", why, {"executes": False})
        gold = normal(gold, distinct)
        case = {"query": normal(answer, distinct), "limit": CPU_S, "expected": self._expected(database, gold, where)}
        found = self._run(database, {**case, "ordered": bool(_ORDER_BY.search(gold))})
        executes = {"executes": found.get("executes", False)}
        return Verdict(found["reason"] == "pass", found["reason"], found["detail"], executes)

    def isolation(self) -> list[str]:
        """What confines a query, one line each."""
        confined = self._sandbox.confinement.describe(LIMITS)
        return [*confined, "SQL: SELECT alone, on a database opened read-only; bounded rows, values and memory"]

    def _expected(self, database: Path, gold: str, where: str) -> Any:
        key = (database, gold)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # answers to one question wait for its gold query; answers to other questions do not
            if key not in self._known:
                found = self._run(database, {"query": gold, "limit": CPU_S})
                if found["reason"] != "pass":
                    raise UsageError(
                        f"{where}: its own query does not run on {database} ({found['reason']}: {found['detail']}); "
                        "fetch the data again"
                    )
                self._known[key] = found["rows"]
        return self._known[key]

    def _run(self, database: Path, cases: dict[str, Any]) -> dict[str, Any]:
        program = Program((), "", "", "", kind="query", database=str(database.resolve()))
        return self._sandbox.compare(program, cases, LIMITS)
