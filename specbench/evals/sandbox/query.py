"""The program's side of a query in SQL, run by SQLite on a database that can only be read.

The file is opened read-only and immutable before the process is confined, so SQLite needs no lock and no other file
afterwards. An authoriser permits SELECT alone, and limits bound the cost of a query. Standard library only.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

SQL, ROWS, COLUMNS, RESULT = 20_000, 100_000, 200, 4 << 20
"""Characters of a query; rows and columns of a result; bytes of all its values, and of any value on the way there."""

HEAP = 256 << 20
"""Bytes that SQLite may use."""

# https://sqlite.org/c3ref/c_alter_table.html; from Python 3.11 on the module names them.
_READ, _SELECT, _FUNCTION, _RECURSIVE = 20, 21, 31, 33
_REFUSED = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}

# https://sqlite.org/c3ref/c_limit_attached.html
_LIMITS = {
    0: RESULT, 1: 1_000_000, 2: COLUMNS, 3: 200, 4: 100, 5: 250_000, 6: 32, 7: 0, 8: 1_000, 9: 100, 10: 0, 11: 0
}  # fmt: skip
_OPERATIONS = 10_000  # of SQLite's machine, between looks at the clock


class Query:
    """A database that answers queries."""

    def __init__(self, database: str) -> None:
        """Opens the file: not possible any more once the process is confined."""
        self._end = 0.0
        for char in "%?#":  # the first of them is what stands for the others
            database = database.replace(char, f"%{ord(char):02x}")
        self._database = sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True, isolation_level=None)
        for pragma in ("temp_store = memory", "query_only = on", "trusted_schema = off", f"hard_heap_limit = {HEAP}"):
            self._database.execute(f"PRAGMA {pragma}").close()
        # Spider has texts that are no UTF-8; its authors leave out the bytes that are none.
        self._database.text_factory = lambda text: text.decode(errors="ignore")
        if hasattr(self._database, "setlimit"):  # Python 3.11; before it, heap and address space bound the same things
            for limit, most in _LIMITS.items():
                self._database.setlimit(limit, most)
        self._database.set_authorizer(_permit)
        self._database.set_progress_handler(self._late, _OPERATIONS)

    def run(self, sql: str, cpu_s: float) -> Mapping[str, Any]:
        """The rows of one statement.

        Args:
            cpu_s: CPU seconds that it may use.

        Returns:
            {"rows": list of tuples}, or {"failed": one of ``table.FAILURES``, "why": one line}.
        """
        if len(sql) > SQL:
            return _failed("too large", f"a query of more than {SQL:,} characters")
        self._end = time.process_time() + cpu_s
        rows: list[tuple[Any, ...]] = []
        size = 0
        try:
            cursor = self._database.execute(sql)
            if cursor.description is None:
                return _failed("error", "it is no query")
            if len(cursor.description) > COLUMNS:
                return _failed("too large", f"more than {COLUMNS} columns")
            for row in cursor:
                rows.append(row)
                size += sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
                if len(rows) > ROWS or size > RESULT:
                    return _failed("too large", f"a result of more than {ROWS:,} rows or {RESULT >> 20} MiB")
        except MemoryError:
            return _failed("memory", f"more than {HEAP >> 20} MiB")
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            text = str(error)
            if "interrupted" in text and time.process_time() > self._end:
                return _failed("timeout", f"more than {cpu_s:g} s of CPU time")
            if "authoriz" in text or "prohibited" in text:
                return _failed("denied", text)
            return _failed("too large" if isinstance(error, sqlite3.DataError) else "error", text)
        finally:
            self._end = float("inf")
        return {"rows": rows}

    def _late(self) -> int:
        return int(time.process_time() > self._end)


def _permit(action: int, first: str | None, second: str | None, *where: str | None) -> int:
    if action == _FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in _REFUSED else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in (_READ, _SELECT, _RECURSIVE) else sqlite3.SQLITE_DENY


def _failed(reason: str, why: str) -> dict[str, str]:
    return {"failed": reason, "why": why[:300]}
