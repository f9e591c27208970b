"""MBPP, its sanitized part and MBPP+ in miniature: problems of our own under published ids.

By the id EvalPlus knows which types JSON has lost, and by the function's name how outputs are compared.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def _row(number: int, text: str, code: str, tests: list[str], setup: str = "") -> Row:
    row = {"text": text, "code": code, "task_id": number, "test_setup_code": setup, "test_list": tests}
    return {**row, "challenge_test_list": []}


SHOTS = [
    _row(2, "Write a function to double a number.", "def double(n):\r\n  return (2 * n) ",
         ["assert double(4) == 8", "assert double(0) == 0", "assert double(-1) == -2"]),
    _row(3, "Write a python function to greet by name.", "def greet(name): \r\n    return 'hello ' + name",
         ['assert greet("Ann") == "hello Ann"']),
    _row(4, "Write a function to keep what is even.", "def even(xs):\r\n\treturn [x for x in xs if x % 2 == 0]",
         ["assert even([1,2,4])==[2, 4]", "assert even([])==[]"]),
]  # fmt: skip
ROWS = [
    _row(1, "Write a function that is in no split.", "def nothing(): return 0", ["assert nothing() == 0"]),
    *SHOTS,
    _row(11, "Write a python function to trim one star from either end.",
         "def trim(s): \r\n    if s[:1] == '*': \r\n        s = s[1:]\r\n"
         "    return s[:-1] if s[-1:] == '*' else s ",
         ['assert trim("*a*") == "a"', 'assert trim("b*") == "b"', 'assert trim("**") == ""']),
    _row(12, "Write a function to sort boxes by weight.", "def by_weight(boxes):\r\n    return sorted(boxes, key=sum)",
         ["assert by_weight([[1, 2, 3], [2, 4, 5], [1, 1, 1]])==[[1, 1, 1], [1, 2, 3], [2, 4, 5]]"]),
    # A function with a builtin's name, which is none other than the one that is tested.
    _row(126, "Write a python function to add the shared divisors of two numbers.",
         "def sum(a, b): \r\n    found = 0\r\n    for i in range(1, min(a, b) + 1): \r\n"
         "        if a % i == 0 and b % i == 0: \r\n            found += i\r\n    return found",
         ["assert sum(10,15) == 6", "assert sum(100,150) == 93", "assert sum(4,6) == 3"]),
    # A builtin beside the tested function, and an import that the asserts need.
    _row(312, "Write a function to find the volume of a cone.",
         "import math\r\ndef volume_cone(r,h):\r\n  return (1.0/3) * math.pi * r * r * h",
         ["assert math.isclose(volume_cone(5,12), 314.15926535897927, rel_tol=0.001)",
          "assert math.isclose(volume_cone(10,15), 1570.7963267948965, rel_tol=0.001)"], "import math"),
    # Trees of the answer's own class, which cannot leave its process.
    _row(367, "Write a function to measure a leaning tree.",
         "class Leaf: \r\n    def __init__(self, size): \r\n        self.size = size\r\n        self.next = None\r\n"
         "def weight(leaf): \r\n    return 0 if leaf is None else leaf.size + weight(leaf.next)\r\n"
         "def is_heavy(leaf): \r\n    return weight(leaf) > 9",
         ["assert is_heavy(first) == True", "assert is_heavy(second) == False "],
         "first = Leaf(4) \r\nfirst.next = Leaf(7);  \r\nsecond = Leaf(9)"),
    _row(510, "Write a function to count.", "def count(xs): return len(xs)", ["assert count([3]) == 1"]),
    _row(511, "Write a function of the validation split.", "def aside(): return 1", ["assert aside() == 1"]),
    _row(601, "Write a function to learn from.", "def learn(n): return n + 1",
         ["assert learn(1) == 2", "assert learn(2) == 3"]),
    *(_row(number, f"Write a function to add {number}.", f"def add(n): return n + {number}", ["assert add(0) > 0"])
      for number in range(602, 975)),
]  # fmt: skip


def _sanitized(row: Row) -> Row:
    return {
        "source_file": "Our Own Questions.ipynb",
        "task_id": row["task_id"],
        "prompt": row["text"].replace("python function", "function"),
        "code": row["code"].replace("\r\n", "\n"),
        "test_imports": [row["test_setup_code"]] if "import" in row["test_setup_code"] else [],
        "test_list": row["test_list"],
    }


SANITIZED = [_sanitized(row) for row in ROWS if row["task_id"] not in (1, 11, 367, *range(602, 975))]


def _plus(
    number: int, statement: str, solution: str, base: list[Any], plus: list[Any] | dict[str, Any], atol: float = 0
) -> Row:
    name = solution.partition("def ")[2].partition("(")[0]
    return {
        "task_id": f"Mbpp/{number}", "entry_point": name, "canonical_solution": f"\n{solution}\n", "atol": atol,
        "prompt": f'"""\nWrite a function to {statement}.\nassert {name}() == ...\n"""\n',
        "base_input": base, "plus_input": plus, "contract": "\n", "assertion": "\n",
    }  # fmt: skip


PLUS = [
    # Outputs are compared as sets; arguments are tuples.
    _plus(2, "find what two bags share", "def similar_elements(a, b):\n  return tuple(set(a) & set(b))",
          [[[3, 4, 5, 6], [5, 7, 4, 10]], [[1, 2], [2, 9]]], [[[], []], [[1, 2, 3, 4, 5], [9, 8, 5, 7, 5]]]),
    _plus(63, "find the widest pair", "def widest(pairs):\n  return max(abs(a - b) for a, b in pairs)",
          [[[[3, 5], [1, 7]]]], [[[[0, 0]]], [[[-4, 2], [9, 9]]]]),
    _plus(75, "keep the tuples that n divides",
          "def divided(tuples, n):\n  return [t for t in tuples if all(x % n == 0 for x in t)]",
          [[[[6, 24, 12], [7, 9, 6]], 6]], [[[[]], 3], [[[4], [8, 2]], 4]]),
    _plus(106, "add a list to a tuple", "def added(xs, t):\n  return t + tuple(xs)",
          [[[5, 6], [9, 10]]], [[[], []], [["a"], [1.5]]]),
    _plus(124, "add a number to a complex one, in steps", "def stepped(a, b):\n  return a + b * 2",
          [["1", "2j"], ["0.5", "1+1j"]], [["-3", "0.1+0.3j"]], atol=1e-4),
    _plus(250, "count in a tuple", "def counted(t, x):\n  return t.count(x)",
          [[[10, 8, 8], 8]], [[[], 1], [[1, 1.0], 1]]),
    _plus(252, "mirror a complex number", "def mirrored(z):\n  return z.conjugate()", [["(3+4j)"]], [["-1j"], ["2"]]),
    _plus(259, "take the greater of each pair",
          "def greater(a, b):\n  return tuple(tuple(map(max, x, y)) for x, y in zip(a, b))",
          [[[[1, 3], [4, 5]], [[6, 7], [3, 9]]]], [[[], []], [[[1, 2]], [[2, 1]]]]),
    # The distance of numbers of other lengths: EvalPlus has an oracle for it. So for the pyramid.
    _plus(558, "measure how far digits are apart",
          "def digit_distance_nums(n1, n2):\n  return sum(map(int, str(abs(n1 - n2))))",
          [[1, 2], [23, 56]], [[123, 256]]),
    _plus(580, "leave odd ones out at any depth",
          "def evens(t):\n  return tuple(evens(x) if isinstance(x, tuple) else x for x in t if isinstance(x, tuple) "
          "or x % 2 == 0)",
          [[[4, 5, [7, 6, [2, 4]], 6, 8]]], [[[]], [[[[1]], 2]]]),
    _plus(581, "paint a pyramid",
          "import math\ndef surface_Area(b, s):\n  return round(2 * b * math.sqrt((b / 2) ** 2 + s ** 2) + b * b)",
          [[3, 4], [4, 5]], [[1, 2], [100, 7]]),
    _plus(722, "filter by height", "def tall(d, h):\n  return {k: v for k, v in d.items() if v[0] >= h}",
          [[{"Ann": [6.2, 70], "Bo": [5.9, 65]}, 6.0]], [[{}, 1], [{"Cy": [6.0, 1]}, 6.0]]),
    # Anything but None is true.
    _plus(737, "say whether a word begins with a vowel",
          "import re\ndef check_str(s):\n  return re.match('[aeiou]', s)",
          [["annie"], ["dawood"]], [[""], ["Else"], ["else"]]),
    # The published one has no plus inputs, written so.
    _plus(793, "find the last place of x", "def last(xs, x):\n  return len(xs) - 1 - xs[::-1].index(x)",
          [[[1, 2, 3], 1], [[1, 1, 2], 1]], {}),
]  # fmt: skip
