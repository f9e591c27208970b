"""Throughput against each user's speed, by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.runs import NOTHING, busy

from specbench.report.charts.user_lines import user_lines, user_sentences
from specbench.report.charts.users import users

USERS = [1, 2, 4]


def table(speedups: list[float | tuple[float, float, float]]) -> pd.DataFrame:
    baseline = busy("ar", dict.fromkeys(USERS, NOTHING)).assign(user_tok_s=[50.0, 40.0, 30.0])
    mine = busy("jf", dict(zip(USERS, speedups, strict=True))).assign(user_tok_s=[80.0, 40.0, 20.0])
    return pd.concat(
        [baseline.assign(decode_tok_s=[50.0, 80.0, 120.0]), mine.assign(decode_tok_s=[80.0, 100.0, 110.0])]
    )


@pytest.mark.parametrize(
    ("speedups", "pays"),
    [
        ([(1.4, 1.6, 1.8), (1.1, 1.25, 1.4), (0.8, 0.92, 0.99)], "jf pays up to 2 users, and not at 4;"),
        ([(0.9, 1.1, 1.3), 0.9, 1.2], "jf pays up to 1 user, and not at 2, within noise;"),
        ([(1.1, 1.2, 1.3)] * 3, "jf pays up to 4 users, the most measured;"),
        ([0.9, 0.9, 0.9], "jf does not pay at 1 user, the fewest measured (too few prompts for an interval);"),
    ],
)
def test_how_many_users_a_method_pays_for(speedups: list[float | tuple[float, float, float]], pays: str) -> None:
    baseline, lines = user_lines(table(speedups))
    assert baseline is not None
    (sentence,) = user_sentences(baseline, lines)
    assert sentence.startswith(pays)
    # AR gives 4 users 30 tok/s each; between jf's 40 and 20 that is at 100 and 110 in all, on logarithmic scales.
    served = 110 * (100 / 110) ** (np.log(30 / 20) / np.log(40 / 20))
    assert f"{served / 120:.2f} times AR's" in sentence


def test_the_chart_has_a_line_for_ar_and_each_method() -> None:
    figure = users(table([(1.1, 1.2, 1.3)] * 3))
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["ar", "jf"]
    assert np.asarray(axes.get_lines()[1].get_xydata()).tolist() == [[80, 80], [40, 100], [20, 110]]


def test_tables_without_user_speeds_make_no_chart() -> None:
    assert user_lines(busy("jf", {1: 1.1, 2: 0.9}).drop(columns="user_tok_s", errors="ignore")) == (None, [])
