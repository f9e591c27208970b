"""Numbers are read in whatever way they are written, and a sign is never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.evals.numbers import ascii_numbers
from specbench.tasks.gsm8k.numbers import boxed_number, final_number, last_number

SPACES = " \u00a0\u2002\u2007\u2009\u202f\u205f\u3000"
SEPARATORS = ["", ",", "'", "’", "_", "{,}", "\\,", "\\ ", *SPACES]
ZEROS = "0٠۰०০๐０𝟎"  # each begins a row of ten digits
MINUSES = "-−‒–‐‑﹣－"


@given(
    st.integers(0, 10**10), st.sampled_from(SEPARATORS), st.sampled_from(ZEROS), st.sampled_from(["", ".0", ".50"]),
    st.sampled_from(["", "$", "\\$", "€", "£ ", "₹\u00a0", "US$", "EUR "]),
    st.sampled_from(["", "%", " %", "\u202f%", "٪", " €", "\u00a0dollars", " apples", ".", " USD", "**", "!"]),
    st.sampled_from(MINUSES), st.booleans(), st.sampled_from(["", *SPACES]),
)  # fmt: skip
def test_a_number_reads_back_however_it_is_written(
    size: int, mark: str, zero: str, point: str, before: str, after: str, minus: str, late: bool, apart: str
) -> None:
    digits = f"{size:,}".replace(",", mark) + point
    digits = "".join(chr(ord(zero) + int(char)) if char.isdigit() else char for char in digits)
    value = size + float(point or 0)
    for sign, wanted in (("", value), (minus, -value)):
        number = f"{before}{sign}{digits}" if late else f"{sign}{apart if sign else ''}{before}{digits}"
        for text in (f"#### {number}{after}", f"There are 7.\nThe answer is {number}{after}", f"x = {number}{after}"):
            assert final_number(text)[0] == wanted, text
        assert boxed_number(number) == wanted, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16-18", 18), ("pages 9–18", 18), ("20 − 18", 18), ("20 minus 18", 18), ("- 18 apples", 18),
        ("– 18 apples", 18),
        ("− 18", -18), ("(-18)", -18), ("it is minus 18", -18), ("negative 18", -18), ("between 3 and -18", -18),
        ("\u200e−\u200e18", -18), ("5, 18", 18), ("9,18", 18), ("2020 150", 150), ("1.450.000", 1450000),
        ("1.234,56", 1234.56),
        ("1,45,00,000", 14500000), ("-.5", -0.5), ("18.", 18), ("3 100-dollar bills", 100), ("none", None),
        ("m²", None),
    ],
)  # fmt: skip
def test_a_dash_is_a_sign_only_where_one_stands(text: str, value: float | None) -> None:
    assert last_number(text) == value


@pytest.mark.parametrize(
    "text", ["9 * 2 = 18", "f'(x) = x_1 - 3, 10", "$-1,000.50", "(1,200)", "well-known \\frac{1}{2}"]
)
def test_ascii_stays_as_it_is(text: str) -> None:
    assert ascii_numbers(text) == text
