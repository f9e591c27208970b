"""HumanEval and HumanEval+ in miniature: problems of our own that have what the published rows have."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def _row(number: int, entry_point: str, prompt: str, solution: str, test: str) -> Row:
    return {
        "task_id": f"HumanEval/{number}",
        "prompt": prompt,
        "entry_point": entry_point,
        "canonical_solution": solution,
        "test": f"\n\nMETADATA = {{\n    'author': 'us',\n}}\n\n\ndef check(candidate):\n{test}\n",
    }


# Imports before the function; all base inputs forgive ">=" for ">".
ABOVE = _row(
    0,
    "any_above",
    "from typing import List\n\n\ndef any_above(levels: List[float], mark: float) -> bool:\n"
    '    """ Say whether any of the water levels stands above the mark.\n'
    '    >>> any_above([1.5, 2.5], 2.0)\n    True\n    """\n',
    "    for level in levels:\n        if level > mark:\n            return True\n\n    return False\n",
    "    assert candidate([1.5, 2.5], 2.0) == True\n    assert candidate([1.5], 2.0) == False\n",
)
# The smallest one; its test is random.
ADD = _row(
    1,
    "add",
    '\n\ndef add(x: int, y: int):\n    """Add the lengths of two planks.\n    >>> add(20, 22)\n    42\n    """\n',
    "    return x + y\n",
    "    import random\n\n    assert candidate(20, 22) == 42\n\n    for _ in range(9):\n"
    "        x, y = random.randint(0, 99), random.randint(0, 99)\n        assert candidate(x, y) == x + y\n",
)
# A helper function stands before it, which its test calls too.
UNSPIN = _row(
    2,
    "unspin",
    '\n\ndef spin(s: str):\n    """\n    Returns the word with its first three letters spun round.\n    """\n'
    "    # shorter words stay as they are\n    return s[1:3] + s[0] + s[3:] if len(s) > 2 else s\n\n\n"
    'def unspin(s: str):\n    """\n    takes a word that spin has made. Returns the word before.\n    """\n',
    "    return spin(spin(s))\n",
    "    import string\n\n    for n in range(9):\n        word = string.ascii_lowercase[:n]\n"
    "        assert candidate(spin(word)) == word\n",
)
# Judged by what its output is a root of, not by the reference's: two roots are right.
ROOT = _row(
    3,
    "find_zero",
    "import math\n\n\ndef poly(xs: list, x: float):\n"
    '    """\n    Height of the curve with coefficients xs above the point x.\n    """\n'
    "    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])\n\n\n"
    'def find_zero(xs: list):\n    """ Where the parabola xs touches the ground: any such point will do.\n    """\n',
    "    c, b, a = xs\n    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)\n",
    "    for coeffs in ([-4, 0, 1], [2, -3, 1]):\n        assert math.fabs(poly(coeffs, candidate(coeffs))) < 1e-4\n",
)
# Floats, so it has a tolerance; HumanEval+ states it in other words, as it does HumanEval/115.
MEAN = _row(
    4,
    "mean_step",
    "def mean_step(marks: list) -> float:\n    '''\n    The mean distance\tbetween one mark and the next.  \n    '''\n",
    "    steps = [abs(b - a) for a, b in zip(marks, marks[1:])]\n    return sum(steps) / len(steps)\n",
    "    assert abs(candidate([1.0, 2.5, 2.0]) - 1.0) < 1e-6, 'up and down'\n"
    "    assert abs(candidate([0, 0.3]) - 0.3) < 1e-6\n    assert True\n",
)
PROBLEMS = [ABOVE, ADD, UNSPIN, ROOT, MEAN]

_PLUS: dict[str, Row] = {
    # The published solutions of HumanEval+ are others, and begin with empty lines.
    "any_above": {"canonical_solution": "\n\n    return max(levels, default=mark) > mark\n\n",
                  "base_input": [[[1.5, 2.5], 2.0], [[1.5], 2.0]],
                  "plus_input": [[[], 0.0], [[float("inf")], 1e308], [[2.0, 1.0], 2.0]]},
    "add": {"base_input": [[20, 22], [0, 7]], "plus_input": [[-3, 2], [10**30, 1]]},
    "unspin": {"base_input": [["abc"], ["ab"]], "plus_input": [[""], ["bcaéf"]]},
    "find_zero": {"atol": 1e-4, "base_input": [[[-4, 0, 1]]], "plus_input": [[[2, -3, 1]], [[-7, 5, 1]]]},
    "mean_step": {"prompt": MEAN["prompt"].replace("one mark", "a mark"), "atol": 1e-6,
                  "base_input": [[[1.0, 2.5, 2.0]], [[0, 0.3]]], "plus_input": [[[0.1, 0.2, 0.30001]]]},
}  # fmt: skip
PLUS_PROBLEMS = [{**row, "contract": "", "atol": 0, **_PLUS[row["entry_point"]]} for row in PROBLEMS]
