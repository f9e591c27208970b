"""SQL: a query of a model held against a gold query by what the two find, in our sandbox.

What is right is decided as by the test suites' evaluation of Spider (Zhong et al. 2020, arXiv 2010.02840; its
``exec_eval.py`` in taoyds/test-suite-sql-eval at commit e97acc5), on the one database that Spider has of a question.
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
"""CPU seconds that a query may take; the authors give it 60 s of wall time."""

VERSION = f"{table.VERSION} (as test-suite-sql-eval e97acc5)"
"""Of the comparison, for a task's ``versions``."""

SQLITE = sqlite3.sqlite_version
"""Of the library that runs the queries: later ones know more of SQL."""

LIMITS = Limits(CPU_S + 4, 3.0 * (CPU_S + 4), 1 << 30, load_s=4.0)

_SPACED = re.compile(r"([<>!]) =")
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
# What a quotation mark or a comment encloses is left alone. One without an end goes on to the end of the query, as in
# SQLite, and is looked through once.
_DISTINCT = re.compile(
    r"""('[^']*(?:''[^']*)*(?:'|\Z)|"[^"]*(?:""[^"]*)*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"|\bdistinct\b",
    re.IGNORECASE | re.DOTALL,
)
_ORDER_BY = re.compile(r"order by", re.IGNORECASE)


def normal(sql: str, distinct: bool) -> str:
    """A query as the authors run it: operators written together, the current year 2020.

    Args:
        distinct: keep the keyword DISTINCT; the authors take it out of both queries unless told otherwise.
    """
    sql = _CURRENT_YEAR.sub("2020", _SPACED.sub(r"\1=", sql))
    return sql if distinct else _DISTINCT.sub(lambda found: found[1] or "", sql)


class Checker:
    """Runs queries on databases. Safe to share between threads; a gold query runs once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[tuple[Path, str], Any] = {}
        self._locks: dict[tuple[Path, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def check(self, database: Path, gold: str, where: str, answer: str, distinct: bool) -> Verdict:
        """The verdict on one query: it finds what the gold query finds; ``also`` says "executes".

        Args:
            where: the gold query's place in the data, for an error.
        """
        if len(answer) > query.SQL:  # before anything is looked for in it, which may take its length squared
            why = f"a query of more than {query.SQL:,} characters"
            return Verdict(False, "too large", why, {"executes": False})
        gold = normal(gold, distinct)
        case = {"query": normal(answer, distinct), "limit": CPU_S, "expected": self._expected(database, gold, where)}
        found = self._run(database, {**case, "ordered": bool(_ORDER_BY.search(gold))})
        executes = {"executes": found.get("executes", False)}
        return Verdict(found["reason"] == "pass", found["reason"], found["detail"], executes)

    def isolation(self) -> list[str]:
        """What confines a query, a line each."""
        confined = self._sandbox.confinement.describe(LIMITS)
        return [*confined, "SQL: SELECT alone, on a database opened read-only; bounded rows, values and memory"]

    def _expected(self, database: Path, gold: str, where: str) -> Any:
        key = (database, gold)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # answers to one question wait for its gold query, those to others do not
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
