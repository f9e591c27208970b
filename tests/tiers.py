"""Which tests `make test` leaves to `make test-ci`, so that it ends within four minutes on two cores.

Both leave out what is marked slow. A test is in the later tier when `long.txt` next to this file names its function;
one that is new is in the first. The list is made of what `pytest --durations=0` printed, longest functions first, until
what is left fits: `python tests/tiers.py DURATIONS SECONDS > tests/long.txt`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("long.txt")
_LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(\S+)")


@cache
def later() -> frozenset[str]:
    """The functions of the later tier, as FILE::TEST."""
    return frozenset(LIST.read_text().split())


def function(node: str) -> str:
    """What of a test's id is its function."""
    return node.partition("[")[0].removeprefix("tests/")


def longest(durations: Iterable[str], seconds: float) -> list[str]:
    """The functions to leave out, sorted, so that the others take so many seconds by what was printed of them."""
    spent: dict[str, float] = defaultdict(float)
    for line in durations:
        if found := _LINE.match(line):
            spent[function(found[2])] += float(found[1])
    left, chosen = sum(spent.values(), 0.0), list[str]()
    for name, taken in sorted(spent.items(), key=lambda item: -item[1]):
        if left <= seconds:
            break
        chosen.append(name)
        left -= taken
    return sorted(chosen)


if __name__ == "__main__":
    printed = Path(sys.argv[1]).read_text().splitlines()
    sys.stdout.write("".join(f"{name}\n" for name in longest(printed, float(sys.argv[2]))))
