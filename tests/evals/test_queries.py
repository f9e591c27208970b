"""Queries: what a model writes may read the database and do nothing else; results are compared as Spider's are."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_data import spider

from specbench.evals.sandbox import codec, query, table
from specbench.evals.sandbox.sandbox import Limits, Program, Sandbox
from specbench.evals.sql_checks import Checker, normal
from specbench.evals.task import Verdict

pytestmark = pytest.mark.usefixtures("nothing_left")

under_the_strongest = pytest.mark.parametrize("box", ["strongest"], indirect=True)

LIMITS = Limits(cpu_s=4, wall_s=9.0)


@pytest.fixture(scope="module")
def boats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = spider.write_databases(tmp_path_factory.mktemp("spider"))
    return folder / "database" / "boats" / "boats.sqlite"


def run(box: Sandbox, database: Path, sql: str, cpu_s: float = 1, limits: Limits = LIMITS) -> dict[str, Any]:
    program = Program((), "", "", "", kind="query", database=str(database))
    return box.compare(program, {"query": sql, "limit": cpu_s}, limits)


def rows(box: Sandbox, database: Path, sql: str) -> list[tuple[Any, ...]]:
    answer = run(box, database, sql)
    assert answer["reason"] == "pass", (sql, answer)
    found = codec.unpack(answer["rows"])
    assert isinstance(found, list)
    return found


def test_it_reads(box: Sandbox, boats: Path) -> None:
    for sql, expected in [
        ("SELECT Name FROM Boat WHERE Boat_ID = 1;", [("Anna",)]),
        ('select "Length (m)", count(*) from Boat group by 1 order by 1 -- comment', [(7.5, 1), (9.0, 2)]),
        ("WITH x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 3) SELECT sum(n) FROM x", [(6,)]),
        ("VALUES (1, NULL, x'00ff', 'é', 2.5)", [(1, None, b"\x00\xff", "é", 2.5)]),
        ("SELECT 1e999, -1e999, 9223372036854775807", [(float("inf"), float("-inf"), 2**63 - 1)]),
        ("SELECT Name FROM Boat WHERE 0", []),
        ("SELECT Name FROM Boat WHERE Boat_ID = 3", [("Ci",)]),  # not UTF-8, as in some of Spider's
        ("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'", [(2,)]),
        ("SELECT a.Name, b.Sailor FROM Boat a LEFT JOIN Crew b ON a.Boat_ID = b.Crew_ID + 1 ORDER BY a.Boat_ID",
         [("Anna", None), ("Berta", "Kim"), ("Ci", "Lee")]),
        ("SELECT upper(Name) FROM Boat WHERE Name LIKE 'b%' OR Name GLOB 'x*'", [("BERTA",)]),
    ]:  # fmt: skip
        assert rows(box, boats, sql) == expected, sql


_NUMBERS = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) "
HOSTILE = {
    # what is not a SELECT
    "ATTACH 'file:{outside}?mode=rwc' AS o": "denied", "SELECT raise(abort, 'x')": "error",
    "ATTACH '{outside}' AS o": "denied", "ATTACH ':memory:' AS o": "denied", "DETACH main": "denied",
    "PRAGMA table_info(Boat)": "denied", "PRAGMA query_only = off": "denied", "PRAGMA writable_schema = 1": "denied",
    "SELECT * FROM pragma_table_info('Boat')": "denied", "SELECT * FROM pragma_database_list": "denied",
    "INSERT INTO Boat VALUES (9, 'x', 1)": "denied", "UPDATE Boat SET Name = 'x' RETURNING Name": "denied",
    "DELETE FROM Boat": "denied", "REPLACE INTO Boat VALUES (1, 'x', 1)": "denied", "DROP TABLE Boat": "denied",
    "CREATE TABLE t (x)": "denied", "CREATE TEMP TABLE t (x)": "denied", "CREATE TABLE t AS SELECT 1": "denied",
    "CREATE VIRTUAL TABLE t USING fts5(x)": "denied", "CREATE TEMP VIEW v AS SELECT 1": "denied",
    "CREATE TRIGGER t AFTER INSERT ON Boat BEGIN SELECT 1; END": "denied", "ALTER TABLE Boat ADD x": "denied",
    "BEGIN": "denied", "BEGIN EXCLUSIVE": "denied", "COMMIT": "denied", "SAVEPOINT s": "denied",
    "VACUUM": "denied", "VACUUM INTO '{outside}'": "denied", "ANALYZE": "denied",
    "EXPLAIN DELETE FROM Boat": "denied",
    # more than one statement, or none
    "SELECT 1; SELECT 2": "error", "SELECT 1; DROP TABLE Boat": "error", "SELECT 1 /* */; /* x */ SELECT 2": "error",
    "SELECT 1; --\nDELETE FROM Boat": "error", "SELECT 1 -- ;\n; SELECT 2": "error", "": "error", "-- x": "error",
    "/* SELECT 1": "error", ";": "error", "SELECT 'a": "error", "SELEC 1": "error", "SELECT nothing": "error",
    "SELECT 1\0; SELECT 2": "error", "SELECT * FROM Boat b(": "error",
    # functions
    "SELECT load_extension('x')": "denied", "SELECT LOAD_EXTENSION('x', 'y')": "denied",
    "SELECT fts3_tokenizer('simple')": "denied", "SELECT readfile('/etc/passwd')": "error",
    "SELECT writefile('{outside}', 'x')": "error", "SELECT edit('x')": "error", "SELECT eval('SELECT 1')": "error",
    # bombs
    "SELECT zeroblob(1000000000)": "large", "SELECT randomblob(1000000000)": "large",
    "SELECT hex(zeroblob(300000000))": "large", "SELECT printf('%1000000000d', 1)": "small",
    "SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))": "large",
    "SELECT group_concat(hex(zeroblob(100000)), 'x') FROM (" + _NUMBERS + "SELECT n FROM x LIMIT 100000)": "ended",
    "SELECT quote(zeroblob(400000000))": "large", "SELECT char(1) || hex(zeroblob(5000000))": "large",
    _NUMBERS + "SELECT n FROM x": "large", _NUMBERS + "SELECT hex(zeroblob(100000)) FROM x": "large",
    "WITH RECURSIVE x(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM x) SELECT length(s) FROM x": "large",
    "WITH RECURSIVE x(s) AS (SELECT randomblob(9) UNION SELECT randomblob(1000) FROM x) SELECT 1 FROM x": "ended",
    _NUMBERS + "SELECT count(*) FROM x": "timeout",
    _NUMBERS + "SELECT 1 FROM x WHERE n < 0": "timeout",
    "SELECT count(*) FROM Crew a, Crew b, Crew c, Crew d, Crew e, Crew f, Crew g, Crew h, Crew i, Crew j, Crew k, "
    "Crew l, Crew m, Crew n, Crew o": "timeout",
    _NUMBERS + "SELECT n FROM x ORDER BY random()": "ended",
    "SELECT like('%a%a%a%a%a%a%a%a%a%b', n || replace(hex(zeroblob(50000)), '0', 'a')) FROM (" + _NUMBERS
    + "SELECT n FROM x LIMIT 100000)": "ended",
    "SELECT " + "(" * 20_000 + "1": "large", "SELECT " + "-" * 9_000 + " 1": "error",
    "SELECT " + "(SELECT " * 2_000 + "1": "error", "SELECT " + "1+" * 9_000 + "1": "error",
    "SELECT 1" + " UNION ALL SELECT 1" * 900: "ended", "SELECT " + "1," * 2_500 + "1": "ended",
    "SELECT '" + "x" * 30_000 + "'": "large",
}  # fmt: skip

_ENDED = {
    "small": {"pass", "too large", "memory"},  # SQLite gives NULL for it, or nothing
    "large": {"too large", "memory"},
    "ended": {"too large", "memory", "timeout", "error"},
}
if sys.version_info < (3, 11):  # without limits of SQLite's own some of these are small enough
    for kind in ("large", "ended"):
        _ENDED[kind].add("pass")


@pytest.mark.parametrize("box", ["strongest"], indirect=True)
@pytest.mark.parametrize("part", range(4))
def test_everything_else_is_refused(box: Sandbox, boats: Path, tmp_path: Path, part: int) -> None:
    before = boats.read_bytes()
    outside = tmp_path / "outside"
    for sql, reason in itertools.islice(HOSTILE.items(), part, None, 4):
        sql = sql.replace("{outside}", str(outside))
        began = time.monotonic()
        answer = run(box, boats, sql, cpu_s=0.5)
        assert answer["reason"] in _ENDED.get(reason, {reason}), (sql[:80], answer)
        assert "rows" not in answer or answer["reason"] == "pass"
        assert time.monotonic() - began < 8, sql[:80]
        assert len(answer["detail"]) <= 200
        assert answer["detail"].isprintable()
    assert not outside.exists()
    assert boats.read_bytes() == before
    assert sorted(os.listdir(boats.parent)) == ["boats.sqlite"]


def test_a_strict_container_refuses_the_same(box: Sandbox, boats: Path, tmp_path: Path) -> None:
    for sql in ("SELECT zeroblob(1000000000)", f"ATTACH '{tmp_path}/x' AS o", _NUMBERS + "SELECT count(*) FROM x"):
        assert run(box, boats, sql, cpu_s=0.3)["reason"] != "pass", sql
    assert os.listdir(tmp_path) == ["scratch"]


@under_the_strongest
def test_a_query_that_gets_round_sqlite_finds_the_same_walls(
    box: Sandbox, boats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a defect of SQLite would give an attacker: code in the process that has the database. It is one of ours."""
    outside = tmp_path / "outside"
    code = f"""
import os, socket, sqlite3
def attempt(what):
    try:
        if what == "network": socket.socket()
        elif what == "process": os.fork() or os._exit(0)
        elif what == "write": open({str(outside)!r}, "w")
        elif what == "database": open({str(boats)!r}, "r+b")
        elif what == "other": open("/etc/passwd").read()
        elif what == "attach": sqlite3.connect({str(boats)!r}).execute("SELECT 1 FROM Boat").fetchall()
        return "possible"
    except (OSError, sqlite3.Error): return "refused"
class Query:
    def __init__(self, database): pass
    def run(self, sql, cpu_s):
        return {{"rows": [(attempt(what),) for what in sql.split()]}}
"""
    folder = tmp_path / "sandbox"
    shutil.copytree(Path(query.__file__).parent, folder)
    (folder / "query.py").write_text(code)
    monkeypatch.setattr("specbench.evals.sandbox.sandbox._CHILD", folder / "child.py")
    tried = "network process write database other attach"
    assert rows(box, boats, tried) == [("refused",)] * len(tried.split())
    assert not outside.exists()


@under_the_strongest
def test_a_damaged_database_is_an_error_of_the_query(box: Sandbox, boats: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    content = boats.read_bytes()
    bad.write_bytes(content[:100] + bytes(len(content) - 100))
    assert run(box, bad, "SELECT * FROM Boat")["reason"] == "error"


# ------------------------------------------------------------------------------------------------------------ verdicts


def check(database: Path, gold: str, answer: str, distinct: bool = False) -> Verdict:
    return Checker(Sandbox()).check(database, gold, "dev.json row 1", answer, distinct)


def test_the_verdict_is_on_what_is_found(boats: Path) -> None:
    gold = "SELECT Sailor FROM Crew ORDER BY Sailor"
    assert check(boats, gold, gold) == Verdict(True, "pass", "", {"executes": True})
    wrong = check(boats, gold, "SELECT Sailor FROM Crew ORDER BY Sailor DESC")
    assert (wrong.passed, wrong.reason, wrong.also) == (False, "fail", {"executes": True})
    assert "4 rows" in wrong.detail
    broken = check(boats, gold, "SELECT Captain FROM Crew")
    assert broken == Verdict(False, "error", "no such column: Captain", {"executes": False})
    assert check(boats, gold, "DROP TABLE Crew").reason == "denied"


def test_distinct_counts_when_it_is_kept(boats: Path) -> None:
    gold, answer = "SELECT DISTINCT Sailor FROM Crew", "SELECT Sailor FROM Crew"
    assert check(boats, gold, answer).passed
    assert not check(boats, gold, answer, distinct=True).passed
    assert check(boats, gold, gold, distinct=True).passed


def test_a_query_is_run_as_the_authors_run_it() -> None:
    for sql, expected in [
        ("SELECT a FROM t WHERE b > = 3 AND c ! = 4 AND d < = 5", "SELECT a FROM t WHERE b >= 3 AND c != 4 AND d <= 5"),
        ("SELECT count(DISTINCT a) FROM t", "SELECT count( a) FROM t"),
        ("select distinct a, 'distinct' from t -- distinct", "select  a, 'distinct' from t -- distinct"),
        ('SELECT "distinct", `distinct`, [distinct], distinctly /* distinct */', None),
        ("SELECT year(curdate()) , YEAR ( CURDATE ( ) )", "SELECT 2020, 2020"),
        ("SELECT 'it''s distinct' , x", None),
    ]:
        assert normal(sql, distinct=False) == (expected or sql)
    assert normal("SELECT DISTINCT a WHERE b > = 1", distinct=True) == "SELECT DISTINCT a WHERE b >= 1"
    began = time.process_time()
    normal("'" * 20_001 + '"' * 20_001 + "/*" * 10_000 + "[" * 10_000 + "year(" + " " * 20_000, distinct=False)
    assert time.process_time() - began < 2


# ---------------------------------------------------------------------------------------------------------- comparison


def test_the_comparison_is_that_of_trying_all_orders() -> None:
    """Held to the definition, on small tables with many equal values."""
    lot = random.Random(0)

    def by_definition(gold: list[Any], answer: list[Any], ordered: bool) -> bool:
        if len(gold) != len(answer):
            return False
        if not gold:
            return True
        for order in itertools.permutations(range(len(answer[0]))):
            turned = [tuple(row[at] for at in order) for row in answer]
            if turned == gold if ordered else sorted(turned) == sorted(gold):
                return True
        return False

    found = {True: 0, False: 0}
    for _ in range(3000):
        wide, long = lot.randint(1, 4), lot.randint(0, 4)
        gold = [tuple(lot.randint(0, 1) for _ in range(wide)) for _ in range(long)]
        order = lot.sample(range(wide), wide)
        answer = [tuple(row[at] for at in order) for row in lot.sample(gold, long)]
        if lot.random() < 0.5 and answer:
            answer[0] = tuple(lot.randint(0, 1) for _ in range(wide))
        ordered = lot.random() < 0.5
        same = by_definition(gold, answer, ordered)
        assert table.same(gold, answer, ordered) is same, (gold, answer, ordered)
        found[same] += 1
    assert min(found.values()) > 500


def test_many_columns_alike_do_not_take_for_ever() -> None:
    began = time.process_time()
    alike = [tuple([row] * 100) for row in range(50)]
    assert table.same(alike, alike[::-1], ordered=False)
    assert not table.same(alike, [(*row[:-1], (row[0] + 1) % 50) for row in alike], ordered=False)
    assert time.process_time() - began < 2
