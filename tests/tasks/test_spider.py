from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_data.spider import ASKED, DEV, TABLES, Row
from support.asserting import asked
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals import Verdict
from specbench.tasks.spider.asking import query
from specbench.tasks.spider.task import Options, Task


def task(folder: Path, **options: Any) -> Task:
    return Task(Options(**options), folder)


@pytest.fixture
def copy(task_data: Path, tmp_path: Path) -> Path:
    """Spider's folder as its archive unpacks, to be damaged."""
    return Path(shutil.copytree(task_data / "spider", tmp_path / "spider"))


def rewritten(folder: Path, name: str, rows: list[Any]) -> Path:
    (folder / name).write_text(json.dumps(rows))
    return folder


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_what_is_right_passes_and_what_is_wrong_does_not(task_data: Path, number: int) -> None:
    asked, id = task(task_data), f"spider/{number}"
    _, _, gold, right, wrong = ASKED[number]
    for answer in (gold, f"```sql\n{right};\n```", f"The query is:\n{right};\nIt is right."):
        found = asked.score(id, answer)
        assert replace(found, extracted="") == Verdict(True, "pass", "", {"executes": True}), answer
    verdict = asked.score(id, f"```sql\n{wrong}\n```")
    assert (verdict.passed, verdict.reason, verdict.also) == (False, "fail", {"executes": True})
    broken = asked.score(id, "SELECT nothing FROM nowhere")
    assert (broken.passed, broken.reason, broken.also) == (False, "error", {"executes": False})


def test_distinct_counts_when_it_is_kept(task_data: Path) -> None:
    *_, right, _ = ASKED[3]
    assert task(task_data).score("spider/3", right).passed
    assert not task(task_data, distinct="keep").score("spider/3", right).passed


def test_the_folder_may_be_the_archives_or_hold_it(task_data: Path) -> None:
    assert task(task_data / "spider").prompts(True) == task(task_data).prompts(True)


def test_the_prompts(task_data: Path) -> None:
    chat, columns, cllm = (
        task(task_data, style=style, tables=tables).prompts(chat=True)
        for style, tables in (("chat", "create"), ("chat", "columns"), ("cllm", "create"))
    )
    assert [prompt.id for prompt in chat] == [f"spider/{number}" for number in range(len(DEV))]
    assert (
        'CREATE TABLE Boat (\n  Boat_ID number,\n  Name text,\n  "Length (m)" number,\n  PRIMARY KEY (Boat_ID)\n);'
        in (chat[0].text)
    )
    assert "  PRIMARY KEY (Crew_ID),\n  FOREIGN KEY (Boat_ID) REFERENCES Boat(Boat_ID)\n);" in chat[0].text
    assert "  PRIMARY KEY (day, bread)\n" in chat[-1].text
    assert 'Boat(Boat_ID, Name, "Length (m)")\nCrew(Crew_ID, Boat_ID, Sailor)\n\nQuestion: How many' in columns[0].text
    assert (chat[0].chat, chat[0].history, chat[0].prefill, chat[0].stops) == (True, (), "", ())
    assert cllm[0].text == (
        "### Instruction:\nCould you translate the following question into SQL. Please only generate SQL, don't "
        "include explanation in the answer. The SQL database has table named Boat with columns ['Boat_ID', 'Name', "
        "'Length (m)'], table named Crew with columns ['Crew_ID', 'Boat_ID', 'Sailor'], Question: How many boats are "
        "there?\n### Response:\n"
    )
    assert not cllm[0].chat
    asked = task(task_data)
    assert asked.prompts(chat=False) == cllm
    assert asked.options.style == "cllm"
    with pytest.raises(UsageError, match="style=cllm"):
        task(task_data, style="chat").prompts(chat=False)


PINNED = [
    ("chat", "create", "d8ecd904ca7e6a33"),
    ("chat", "columns", "7065866ebef956a6"),
    ("cllm", "create", "99a264917a82d1a3"),
]


@pytest.mark.parametrize(("style", "tables", "pinned"), PINNED)
def test_prompts_change_only_with_the_version(task_data: Path, style: str, tables: str, pinned: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digests."""
    prompts = task(task_data, style=style, tables=tables).prompts(chat=True)
    assert hashlib.sha256(json.dumps([asked(one) for one in prompts]).encode()).hexdigest()[:16] == pinned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", "SELECT 1"), ("select a\nfrom t;", "select a\nfrom t"), ("SELECT 1; SELECT 2", "SELECT 1"),
        ("SELECT ';' || \"a;b\" || `c;`; x", "SELECT ';' || \"a;b\" || `c;`"),
        ("SELECT 'it''s;' ; b", "SELECT 'it''s;'"),
        ("SELECT a\n\nThis counts.", "SELECT a"), ("SELECT a\n### Instruction: b", "SELECT a"),
        ("SELECT a\n```", "SELECT a"),
        ("The answer: SELECT a FROM t; done", "SELECT a FROM t"), ("I select it.\nSELECT a", "SELECT a"),
        ("With this query:\nWITH x AS (SELECT 1) SELECT * FROM x;", "WITH x AS (SELECT 1) SELECT * FROM x"),
        ("WITH RECURSIVE x(n) AS (SELECT 1) SELECT n FROM x", "WITH RECURSIVE x(n) AS (SELECT 1) SELECT n FROM x"),
        ("```sql\nSELECT 1;\n```", "SELECT 1;"), ("```\nSELECT 1\n\nFROM t\n```\nbye", "SELECT 1\n\nFROM t"),
        ("```sql\nSELECT 1\n```\nor\n```sqlite\nSELECT 2\n```", "SELECT 2"), ("```sql\nSELECT 1", "SELECT 1"),
        ("Text ```sql\nSELECT 1\n```\nbye", "SELECT 1"), ("```SELECT 1```", "SELECT 1"),
        ("```sql SELECT 1```", "SELECT 1"), ("```SQL\r\nSELECT 1\r\n```", "SELECT 1"),
        ("```sql\nDROP TABLE t\n```", "DROP TABLE t"),
        ("SELECT a FROM t\n```\nok", "SELECT a FROM t"), ("```sql\nSELECT 1\n```\nIt finds:\n```\n1\n```", "SELECT 1"),
        ("1. So:\n   ~~~~ sql\n   SELECT 1\n   ~~~~", "SELECT 1"),
        ("no query", None), ("", None), ("```sql\n\n```", None), ("selection of with", None), ("DELETE FROM t", None),
    ],
)  # fmt: skip
def test_the_query_of_an_answer(text: str, expected: str | None) -> None:
    found = query(text)
    assert (found.code if found else None) == expected


def test_long_answers_take_no_long_time() -> None:
    began = time.process_time()
    for text in (
        "select '" * 9000,
        "with " * 20_000,
        "WITH a(" * 40_000,
        "```\n" * 20_000,
        "SELECT \n" * 20_000,
        "```sql" * 9000,
    ):
        query(text)
        query("SELECT " + text)
    assert time.process_time() - began < 2


def test_an_answer_without_a_query_is_empty(task_data: Path) -> None:
    verdict = task(task_data).score("spider/0", "I do not know.")
    assert verdict == Verdict(False, "empty", "the answer has no query", {"executes": False})
    with pytest.raises(UsageError, check=wording):
        task(task_data).score("spider/99", "SELECT 1")


# ---------------------------------------------------------------------------------------------------- what is damaged


@pytest.mark.parametrize("name", ["../boats", "boats/..", "/etc", "a.b", "boats\n", ".", ""])
def test_a_database_is_never_outside_its_folder(copy: Path, name: str) -> None:
    rewritten(copy, "dev.json", [{**DEV[0], "db_id": name}])
    with pytest.raises(UsageError, check=wording):
        task(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"table_names_original": "boat"}, {"table_names_original": [1]}, {"column_names_original": [[0]]},
        {"column_names_original": [["a", 0]]}, {"column_types": []}, {"primary_keys": [99]}, {"primary_keys": ["1"]},
        {"foreign_keys": [[1]]}, {"foreign_keys": [[1, 99]]}, {"foreign_keys": [[-1, 1]]},
        {"column_names_original": [[7, "x"]] * 7}, {"db_id": 3},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_is_named(copy: Path, change: Row) -> None:
    rewritten(copy, "tables.json", [TABLES[1], {**TABLES[0], **change}])
    with pytest.raises(UsageError, check=wording):
        task(copy)


def test_missing_and_foreign_files_are_named(copy: Path) -> None:
    def refused() -> None:
        with pytest.raises(UsageError, check=wording):
            task(copy)

    database = copy / "database" / "boats" / "boats.sqlite"
    content = database.read_bytes()
    database.write_bytes(b"no database")
    refused()
    database.unlink()
    refused()
    database.write_bytes(content[:100] + bytes(len(content) - 100))
    with pytest.raises(UsageError, check=wording):
        task(copy).score("spider/0", "SELECT 1")
    for rows in (TABLES[1:], [*TABLES, TABLES[0]]):
        rewritten(copy, "tables.json", rows)
        refused()
    rewritten(copy, "tables.json", TABLES)
    for name, content in (("tables.json", b"[{"), ("dev.json", b"{}"), ("dev.json", b"[]"), ("dev.json", b"[3]")):
        (copy / name).write_bytes(content)
        with pytest.raises(UsageError, match=re.escape(f"spider/{name}")):
            task(copy)
        rewritten(copy, "tables.json", TABLES)
    (copy / "dev.json").unlink()
    refused()


def test_what_decides_and_what_confines_is_said(copy: Path) -> None:
    versions = task(copy).versions
    assert versions["comparison"] == "1 (as test-suite-sql-eval e97acc5)"
    assert versions == task(copy).versions
    database = copy / "database" / "boats" / "boats.sqlite"
    database.write_bytes(database.read_bytes() + bytes(1))
    assert versions["databases"] != task(copy).versions["databases"]
    assert any("read-only" in line for line in task(copy).isolation)
