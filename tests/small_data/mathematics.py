"""MATH and AIME in miniature: problems of our own, in the forms that the published rows have.

MATH's are those of MATH-500 in miniature with other columns, one without braces around its box, one of unknown level.
"""

from __future__ import annotations

from typing import Any

from small_data import math500

Row = dict[str, Any]

_LEVELS = ("Level 1", "Level 3", "Level 5")
MATH: list[Row] = [
    {"problem": row["problem"], "level": _LEVELS[at % 3], "type": row["subject"], "solution": row["solution"]}
    for at, row in enumerate(math500.ROWS)
]
MATH[2] = {**MATH[2], "solution": "$5+4=\\boxed 9$"}
MATH[1] = {**MATH[1], "solution": "First $\\boxed{2}$, then $1+\\frac{7}{3}=\\boxed \\frac{10}{3}$."}
MATH[1]["level"] = "Level ?"

SUBJECTS: dict[str, list[Row]] = {
    name: [row for row in MATH if row["type"].lower().replace(" & ", "_and_").replace(" ", "_") == name]
    for name in (
        "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
        "precalculus",
    )
}  # fmt: skip

AIME: list[Row] = [
    {"problem": "How many legs have $9$ geese and $13$ cows?", "answer": "70", "id": "0"},
    {"problem": "What is $4^2-2\\cdot 3$ less a dozen, squared and doubled?", "answer": "8", "id": "1"},
    {"problem": "Let $n$ be the number of whole numbers below a thousand. Find $n-1.$", "answer": "999", "id": "2"},
    {"problem": "Nothing is taken from nothing. What remains?", "answer": "0", "id": "3"},
]
