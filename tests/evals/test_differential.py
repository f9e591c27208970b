"""The tolerance of EvalPlus's comparison: it is measured by what is expected, never by what a program answers."""

from __future__ import annotations

import math

import pytest

from specbench.evals.sandbox import codec
from specbench.evals.sandbox.differential import right


def equal(out: object, expected: object, atol: float = 1e-6) -> bool:
    return right("exact", atol, [], {"value": codec.pack(out)}, {"value": codec.pack(expected)})[0]


@pytest.mark.parametrize("out", [math.inf, -math.inf, 1e300, 2.0, [math.inf]])
def test_no_answer_is_so_large_that_it_is_near_everything(out: object) -> None:
    assert not equal(out, [1.0] if isinstance(out, list) else 1.0)


def test_the_relative_tolerance_is_of_the_expected_value() -> None:
    assert equal(1e10 + 900.0, 1e10)
    assert not equal(1e10 + 1100.0, 1e10)
    assert not equal(1e10, 0.0)
