"""LiveCodeBench in miniature: problems of our own in the published format, with an answer to each and a wrong one."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Cases = list[tuple[str, str]]


@dataclass(frozen=True)
class Made:
    """A problem: its row, code that is right, and code that is right on the public tests alone."""

    row: Row
    right: str
    wrong: str

    @property
    def id(self) -> str:
        return f"{self.row['platform']}/{self.row['question_id']}"


def packed(tests: Any, protocol: int = 4) -> str:
    """As the private tests are published."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol))).decode()


def _made(
    id: str, day: str, difficulty: str, content: str, public: Cases, private: Cases, right: str, wrong: str,
    function: str = "", starter: str = "", plain: bool = False,
) -> Made:  # fmt: skip
    kind = "functional" if function else "stdin"
    tests = [[{"input": given, "output": out, "testtype": kind} for given, out in part] for part in (public, private)]
    platform, _, question = id.partition("/")
    row = {
        "question_title": content.split(".")[0], "question_content": content, "platform": platform,
        "question_id": question, "contest_id": question.rpartition("_")[0] or "weekly-1",
        "contest_date": f"{day}T00:00:00", "starter_code": starter, "difficulty": difficulty,
        "public_test_cases": json.dumps(tests[0]),
        "private_test_cases": json.dumps(tests[1]) if plain else packed(tests[1]),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }  # fmt: skip
    return Made(row, right, wrong)


_CLASS = "class Solution:\n    def {}:\n        "

MADE = [
    # Read at once, with a guard that has to count.
    _made("atcoder/own001_a", "2023-05-06", "easy", "Add two numbers that stand on a line of their own each.",
          [("1\n2\n", "3\n"), ("-1\n1", "0")], [("10\n20", "30"), ("7\n8\n", "15\n")],
          "import sys\ndef main():\n    a, b = sys.stdin.read().split()\n    print(int(a) + int(b))\n\n"
          "if __name__ == '__main__':\n    main()",
          "a, b = int(input()), int(input())\nprint(a + b if a < 7 else 0)"),
    # Decimals, and an end by sys.exit.
    _made("codeforces/1_B", "2023-07-01", "medium", "Halve each of n numbers. Print a line for each.",
          [("2\n1 3\n", "0.50\n1.50\n")], [("3\n2 4 5\n", "1\n2\n2.5\n"), ("1\n0\n", "0.0\n")],
          "import sys\nn = int(input())\nfor x in map(int, input().split()):\n    print(x / 2)\nsys.exit(0)",
          "input()\nfor x in input().split():\n    print(f'{int(x) // 2}.50')"),
    # A method; what it needs of typing is not imported.
    _made("leetcode/2800", "2023-08-12", "hard", "Return the even numbers of a list, smallest first.",
          [("[3, 2, 1]", "[2]"), ("[]", "[]")], [("[8, -2, 4]", "[-2, 4, 8]"), ("[5]", "[]")],
          _CLASS.format("evens(self, nums: List[int]) -> List[int]")
          + "return tuple(sorted(n for n in nums if n % 2 == 0))",
          _CLASS.format("evens(self, nums)") + "return [n for n in nums if n % 2 == 0]",
          "evens", "class Solution:\n    def evens(self, nums: List[int]) -> List[int]:\n        "),
    # Two arguments; private tests as JSON.
    _made("leetcode/2900", "2024-01-13", "easy", "Say whether a word holds a letter.",
          [('"abc"\n"b"', "true")], [('"abc"\n"d"', "false")],
          _CLASS.format("holds(self, word: str, letter: str) -> bool") + "return letter in word",
          _CLASS.format("holds(self, word, letter)") + "return True",
          "holds", "class Solution:\n    def holds(self, word: str, letter: str) -> bool:\n        ", plain=True),
    # State of the module must not outlive a test.
    _made("atcoder/own002_c", "2024-05-04", "hard", "Count the words of the input, one line a test.",
          [("a b\n", "2\n")], [("a\n", "1"), ("\n", "0")],
          "seen = []\nfor word in open(0).read().split():\n    seen.append(word)\nprint(len(seen))",
          "print(2)"),
    _made("atcoder/own003_b", "2024-09-07", "medium", "Sum the whole numbers below n.",
          [("4\n", "6\n")], [("100000\n", "4999950000\n")],
          "n = int(input())\ndef below(n):\n    return n and n - 1 + below(n - 1)\n"
          "print(below(n) if n < 9000 else n * (n - 1) // 2)",
          "print(6)"),
    _made("leetcode/3200", "2024-12-28", "medium", "Repeat a number three times.",
          [("7", "[7, 7, 7]")], [("1.5", "[1.5, 1.5, 1.5]")],
          _CLASS.format("thrice(self, n: int) -> list[int]") + "return [n] * 3",
          _CLASS.format("thrice(self, n)") + "return [int(n)] * 3",
          "thrice", "class Solution:\n    def thrice(self, n: int) -> list[int]:\n        "),
    _made("atcoder/own004_d", "2025-03-01", "hard", "Print the input as it is.",
          [("x y\nz\n", "x y\nz\n")], [("é\n", "é\n")],
          "import os\nos.write(1, os.read(0, 100))", "print('x y')\nprint('z')"),
]  # fmt: skip

#: The six files; releases before the last one have some of them.
FILES = {
    f"livecodebench/test{number or ''}.jsonl": [made.row for made in MADE[start:stop]]
    for number, start, stop in ((0, 0, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6), (5, 6, 7), (6, 7, 8))
}
