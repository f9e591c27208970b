from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.evals.extract import (
    IN_LANGUAGE,
    OPENED,
    OTHER,
    PLAIN,
    UNPAIRED,
    bare_box,
    continued_code,
    fenced_code,
    last_box,
)

DOCTEST = '    """\n    ```\n    >>> f()\n    ```\n    """\n    return'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # length and kind of the fences
        ("````\nx\n```\ny\n````", "x\n```\ny"), ("```\nx\n````", "x"), ("~~~\nx\n```\n~~~", "x\n```"),
        ("```\nx\n~~~\n```", "x\n~~~"), ("``\nx\n``", None), ("~~~~ python\nx\n~~~\n~~~~~", "x\n~~~"),
        # info strings
        ("``` python\nx\n```", "x"), ("```Python3 title='a.py'\nx\n```", "x"), ("```{.python}\nx\n```", "x"),
        ("~~~ py `a` ~~~\nx\n~~~", "x"), ("```\nx\n``` py\n```", "x\n``` py"),
        # indentation
        ("   ```\n   x\n    y\n  z\n   ```", "x\n y\nz"), ("```\nx\n   ```", "x"),
        ("```\nx\n    ```\n```", "x\n    ```"),
        ("    ```\n    x\n    ```", None), ("```\n\n  x\n\n```", "\n  x\n"),
        # containers: the code is dedented, and a block ends with its container
        ("1. First\n\n   ```python\n   if x:\n       y\n   ```\n2. Then", "if x:\n    y"),
        ("- ```\n  x\n\n  y\n  ```", "x\n\ny"), ("> ```py\n> x\n> ```\nz", "x"), ("> ```\n> x\nz", "x"),
        ("- a\n  > 1. ~~~\n  >    x\n  >      y\n  >    ~~~", "x\n  y"), ("- ```\n  x\ny", "x"),
        ("\t```\n\tx\n\t```", None), ("-\t```\n\tx\n\t```", "x"),
        # line ends
        ("```\r\nx\r\n\r\ny\r\n```\r\n", "x\n\ny"), ("```\rx\r```", "x"), ("Hi\r```py\r\nx\n```", "x"),
        # what may stand before a fence
        ("Text\n```\nx\n```", "x"), ("# Head\n```\nx\n```", "x"), ("</think>\n```py\nx\n```", "x"),
        ("<div>\n```py\nx\n```\n</div>", "x"),
        # unclosed: up to the end of the text
        ("```python\nx\n\ny", "x\n\ny"), ("Here it is:\n```\nx", "x"), ("I add both\n```\nx", "x"), ("```\nx", "x"),
        # a fence glued to the code, or to prose after it
        ("```python\nx```", "x"), ("```python\nx\n```It adds.", "x"), ("So: ```python\nx\n```\nbye", "x"),
        # without a partner a fence closes the code before it
        ("x = 1\n```\nok", "x = 1"),
        ("def f():\n    return 1\n```\nHere:\n```python\ny\n```", "def f():\n    return 1"),
        ("if x is not None:\n```", "if x is not None:"), ("x = 'two words'\n```", "x = 'two words'"),
        ("", None), ("x", None), ("```\n\n```", None), ("```", None),
    ],
)  # fmt: skip
def test_fences_are_read_as_commonmark_says(text: str, code: str | None) -> None:
    found = fenced_code(text)
    assert (found.code if found else None) == (code or None)


@pytest.mark.parametrize(
    ("text", "last", "code", "rule"),
    [
        ("```bash\nls\n```\n```\nx\n```\n```py\ny\n```\n```python\nz\n```", False, "y", IN_LANGUAGE),
        ("```py\ny\n```\n```python\nz\n```\nIt prints:\n```\n3\n```", True, "z", IN_LANGUAGE),
        ("```bash\nls\n```\n```\nx\n```\n```\ny\n```", True, "y", PLAIN),
        ("```bash\nls\n```\n```\n\n```", False, "ls", OTHER), ("x = 1\n```\nok", False, "x = 1", UNPAIRED),
        ("Solution\n```\nx\n```", False, "x", PLAIN),  # it is one word, but the fence has a partner
    ],
)  # fmt: skip
def test_the_best_block_is_chosen_and_named(text: str, last: bool, code: str, rule: str) -> None:
    found = fenced_code(text, last=last)
    assert found is not None
    assert (found.code, found.rule) == (code, rule)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\nb", "a\nb"), ("a\n```\nb", "a"), ("a\r\nb\r\n```\r\n", "a\nb"), ("a\n````", "a"),
        ("a\n~~~\nb", "a\n~~~\nb"),
        ("```python\na\n```", "a"), (" \n```py \n    a\n```x", "    a"), ("```\na\n```\n```\nb\n```", "a"),
        ("a```", "a"), ("a = 1```\nIt sets a.", "a = 1"), ('s = "```"\nt', 's = "```"\nt'), (DOCTEST, DOCTEST),
        ("Sure, here it is:\n```python\na\n```", "a"), ("a = 1\n```python\na = 2\n```", "a = 1"),
        ("    a\n```\n\nHere is another:\n```python\nb\n```", "    a"), ("```", ""), ("", ""), ("```\n", ""),
    ],
)  # fmt: skip
def test_after_an_open_fence_the_answer_is_code(text: str, code: str) -> None:
    assert continued_code(text).code == code
    assert continued_code("a\n").rule == OPENED


CODE = st.lists(
    st.text(st.sampled_from("ab =:()'#\"`~.>-*1\\é"), min_size=1, max_size=8).filter(lambda line: line.strip())
    | st.just(""),
    min_size=1,
    max_size=5,
).filter(lambda lines: "".join(lines).strip() != "")


@given(
    CODE, st.sampled_from("`~"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4),
    st.lists(st.sampled_from(["> ", "- ", "1. ", "* ", "12) ", "-   "]), max_size=6), st.sampled_from(["\n", "\r\n",
    "\r"]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_code_comes_back_from_any_nesting(
    code: list[str],
    kind: str,
    more: int,
    indent: int,
    gap: int,
    nesting: list[str],
    end: str,
    closed: bool,
    prose: bool,
) -> None:
    """A fence longer than any in the code, in lists and quotes, with every line end, closed or cut off at its end."""
    if nesting[-1:] == ["-   "]:
        indent = min(indent, 1)  # more is an indented block to CommonMark
    longest = max(len(line) - len(line.lstrip(kind)) for line in (part.strip() for part in code))
    fence = kind * (max(3, longest + 1) + more)
    opening = f"{' ' * indent}{fence}{' ' * gap}python"
    block = [
        opening,
        *(" " * indent + line if line else "" for line in code),
        *([" " * indent + fence] if closed else []),
    ]
    for marker in reversed(nesting):
        rest = marker if marker == "> " else " " * len(marker)
        block = [marker + block[0], *(rest + line for line in block[1:])]
    text = end.join([*(["Here it is:", ""] if prose else []), *block])
    found = fenced_code(text)
    assert found is not None
    if closed or not any(kind * 3 in line for line in code):
        assert found.code.rstrip("\n") == "\n".join(code).rstrip("\n")
    assert found.rule == IN_LANGUAGE


def test_hostile_fences_are_read_quickly() -> None:
    start = time.process_time()
    for text in ("(" * 10**6, "f\n" * 10**4, "`" * 10**5, "    " * 10**5, "```\n" * 10**4, "> " * 10**4, "- " * 10**4,
                 "1. ```\n" * 10**4, "a b " * 10**5 + "\n```", "a```\n" * 10**4, '"' * 10**5 + "\n```"):  # fmt: skip
        fenced_code(text)
        continued_code(text)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("$\\boxed 9$.", "9"), ("\\boxed 12.", "12"), ("\\boxed{1} or $\\boxed -3.5$", "-3.5"),
        ("\\boxed \\$7", "\\$7"),
        ("with \\boxed so it is $9$", None), ("I use \\boxed for it.", None), ("\\boxed", None), ("\\boxed{9}", None),
        ("Mark your solution with \\boxed\nAnswer: 9", None), ("\\boxed\n9", None),
    ],
)  # fmt: skip
def test_a_box_without_braces_holds_a_number(text: str, box: str | None) -> None:
    assert bare_box(text) == box


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("so $\\boxed{18}$.", "18"), ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{16}, no: \\boxed{ 18 }", "18"),
        ("\\boxed{\\boxed{5}}", "5"), ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{(-\\infty, 2\\}", None),  # the brace that is printed closes nothing
        ("\\boxed{[0, 1\\}}", "[0, 1\\}"), ("\\fbox{3}", None), ("\\fboxed{3}", "3"), ("\\boxed {3}", "3"),
        ("$\\boxed 3$.", None), ("Put it within \\boxed{}. So \\boxed{3}, within \\boxed{ }.", "3"),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}", "1"), ("\\boxed{\\frac{1}{2}", None),  # cut off
        ("{ \\boxed{1} \\boxed{2", "1"), ("} \\boxed{1}", "1"), ("\\boxed{", None), ("\\boxed", None),
        ("\\boxed{}", None), ("18", None), ("", None),
    ],
)  # fmt: skip
def test_the_last_closed_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


def test_degenerate_text_is_read_quickly() -> None:
    for text in ("\\boxed{" * 10**5, "{" * 10**6, "\\boxed " * 10**5, "\\boxed{" + "{}" * 10**5):
        start = time.process_time()
        last_box(text)
        assert time.process_time() - start < 2
