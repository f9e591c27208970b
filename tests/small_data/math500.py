"""MATH-500 in miniature: problems of our own, an answer of each kind that the published ones have.

A problem is found by its name, the last part of its ``unique_id``.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def _row(name: str, subject: str, problem: str, work: str, answer: str, level: int = 2) -> Row:
    return {
        "problem": problem, "solution": f"{work} $\\boxed{{{answer}}}$.", "answer": answer, "subject": subject,
        "level": level, "unique_id": f"test/{subject.lower().replace(' ', '_')}/{name}.json",
    }  # fmt: skip


ROWS = [
    _row("pair", "Precalculus", "Give the point $(0,5)$ in polar coordinates $(r,\\theta).$",
         "It lies $5$ up:", "\\left( 5, \\frac{\\pi}{2} \\right)"),
    _row("fraction", "Algebra", "Add $\\frac{1}{3}$ of $7$ to $1.$", "$1+\\frac{7}{3}=$", "\\frac{10}{3}"),
    _row("whole", "Number Theory", "How many odd digits are there, plus four?", "$5+4=$", "9"),
    _row("difference", "Intermediate Algebra", "Write $-(q-p)$ without brackets.", "Each sign turns:", "p - q"),
    _row("name", "Prealgebra", "Ann ran $3$ km and Beth $5$ km. Who ran farther?", "$5>3$, so", "\\text{Beth}"),
    _row("angle", "Geometry", "What is a right angle in degrees?", "By definition", "90^\\circ"),
    _row("complex", "Algebra", "Add $2+4i$ and $3+i.$", "$2+3+(4+1)i=$", "5+5i"),
    _row("set", "Algebra", "Solve $n^2+n=2$ for all $n.$", "$(n-1)(n+2)=0$, so", "1,-2"),
    _row("triple", "Precalculus", "What is $(2,3,-1)$ doubled in its first place?", "$2\\cdot 2=4:$", "(4,3,-1)"),
    _row("polynomial", "Algebra", "Multiply out $x(x^2+2)-5.$", "We get", "x^3+2x-5"),
    _row("base", "Number Theory", "Write $83$ in base $8.$", "$83=64+16+3:$", "123_8"),
    _row("half-open", "Algebra", "Where is $2<c$ and $c\\le 7$?", "Between:", "(2,7]"),
    _row("thousands", "Counting & Probability", "What is $7$ factorial, twice?", "$2\\cdot 5040=$", "10,\\!080"),
    _row("letter", "Geometry", "Which is round: (A) a box, (B) a ball?", "It is", "\\text{(B)}"),
    _row("area", "Geometry", "How large is a plate of $6$ by $4$ in?", "$6\\cdot 4=$", "24 \\mbox{ in}^2"),
    _row("cents", "Algebra", "What do $7$ cups at $\\$2.70$ cost?", "$7\\cdot 2.7=$", "\\$18.90"),
    _row("percent", "Prealgebra", "What is $5.4$ out of a hundred?", "It is", "5.4 \\%"),
    _row("ray", "Algebra", "Where is $-x^2$?", "Never above $0:$", "(-\\infty, 0]"),
    _row("roots", "Intermediate Algebra", "Solve $(x+2)(x^2-2x-1)=0.$", "All three:", "-2,1+\\sqrt{2},1-\\sqrt{2}"),
    _row("vector", "Precalculus", "Divide $(1,-18)$ by $5.$", "Each:",
         "\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}"),
    _row("line", "Algebra", "Which line through $(0,3)$ climbs by $2$?", "It is", "y = 2x + 3"),
    _row("union", "Intermediate Algebra", "Where is $(x-2)(x-12)^2(x-50)<0$?", "Apart:", "(2,12) \\cup (12,50)"),
]  # fmt: skip
NUMBER = {row["unique_id"].rpartition("/")[2].removesuffix(".json"): at for at, row in enumerate(ROWS)}
