"""Spider in miniature: questions of our own about two small databases, with an answer to each and a wrong one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

Row = dict[str, Any]

TABLES: list[Row] = [
    {
        "db_id": "boats", "table_names": ["boat", "crew"], "table_names_original": ["Boat", "Crew"],
        "column_names": [[-1, "*"], [0, "boat id"], [0, "name"], [0, "length in m"], [1, "crew id"], [1, "boat id"],
                         [1, "sailor"]],
        "column_names_original": [[-1, "*"], [0, "Boat_ID"], [0, "Name"], [0, "Length (m)"], [1, "Crew_ID"],
                                  [1, "Boat_ID"], [1, "Sailor"]],
        "column_types": ["text", "number", "text", "number", "number", "number", "text"],
        "primary_keys": [1, 4], "foreign_keys": [[5, 1]],
    },
    {
        "db_id": "bakery_1", "table_names": ["sale"], "table_names_original": ["sale"],
        "column_names": [[-1, "*"], [0, "day"], [0, "bread"], [0, "sold"]],
        "column_names_original": [[-1, "*"], [0, "day"], [0, "bread"], [0, "sold"]],
        "column_types": ["text", "time", "text", "number"], "primary_keys": [[1, 2]], "foreign_keys": [],
    },
]  # fmt: skip

_DATABASES = {
    "boats": """
        CREATE TABLE Boat (Boat_ID INTEGER PRIMARY KEY AUTOINCREMENT, Name TEXT, "Length (m)" REAL);
        CREATE TABLE Crew (Crew_ID INTEGER PRIMARY KEY, Boat_ID INTEGER REFERENCES Boat, Sailor TEXT);
        INSERT INTO Boat VALUES (1, 'Anna', 7.5), (2, 'Berta', 9), (3, CAST(x'4369FF' AS TEXT), 9);
        INSERT INTO Crew VALUES (1, 1, 'Kim'), (2, 1, 'Lee'), (3, 2, 'Kim'), (4, 3, NULL);
    """,
    "bakery_1": """
        CREATE TABLE sale (day TEXT, bread TEXT, sold INTEGER, PRIMARY KEY (day, bread));
        INSERT INTO sale VALUES ('mon', 'rye', 4), ('mon', 'bun', 9), ('tue', 'rye', 4), ('wed', 'bun', 2);
    """,
}

# Database, question, gold query, another query that is right, one that is wrong.
ASKED = [
    ("boats", "How many boats are there?", "SELECT count(*) FROM Boat", "SELECT count(Boat_ID) FROM Boat",
     "SELECT count(*) FROM Crew"),
    ("boats", "Which boats have how long a hull?", 'SELECT Name , "Length (m)" FROM Boat',
     'SELECT "Length (m)", Name FROM Boat ORDER BY Name DESC', "SELECT Name, Boat_ID FROM Boat"),
    ("boats", "List the sailors of Anna by name.",
     "SELECT T2.Sailor FROM Boat AS T1 JOIN Crew AS T2 ON T1.Boat_ID  =  T2.Boat_ID WHERE T1.Name  =  'Anna' "
     "ORDER BY T2.Sailor",
     "SELECT Sailor FROM Crew WHERE Boat_ID = 1 ORDER BY Crew_ID",
     "SELECT Sailor FROM Crew WHERE Boat_ID = 1 ORDER BY Sailor DESC"),
    ("boats", "Who sails?", "SELECT DISTINCT Sailor FROM Crew", "SELECT Sailor FROM Crew",
     "SELECT Sailor FROM Crew WHERE Sailor IS NOT NULL"),
    ("bakery_1", "What sold more than 3 times?", "SELECT bread FROM sale WHERE sold > = 4",
     "SELECT bread FROM sale WHERE sold > 3", "SELECT bread FROM sale"),
    ("bakery_1", "What was sold on Sunday?", "SELECT bread FROM sale WHERE day  =  'sun'",
     "SELECT bread, sold FROM sale WHERE day = 'sun'", "SELECT bread FROM sale WHERE day = 'mon'"),
]  # fmt: skip

DEV: list[Row] = [
    {
        "db_id": name, "query": gold, "query_toks": gold.split(), "query_toks_no_value": gold.split(),
        "question": question, "question_toks": question.split(), "sql": {"except": None, "limit": None},
    }
    for name, question, gold, _, _ in ASKED
]  # fmt: skip

#: Questions of the training split, about the same databases here.
TRAIN: list[Row] = [{**row, "question": f"Please: {row['question']}"} for row in DEV[:2]]
FILES = {"spider/dev.json": DEV, "spider/tables.json": TABLES, "spider/train_spider.json": TRAIN}


def write_databases(folder: Path) -> Path:
    """Makes ``database/NAME/NAME.sqlite`` in ``folder``, one of them with a text that is no UTF-8."""
    for name, script in _DATABASES.items():
        path = folder / "database" / name / f"{name}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
    return folder
