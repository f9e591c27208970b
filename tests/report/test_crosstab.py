"""A table with any two axes: places, bold figures, marks, and LaTeX that compiles in structure."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

from specbench.common import UsageError
from specbench.report import Layout, crosstab
from specbench.report.render.frames import TABLE_FORMATS, column_meant


def frame(**further: Any) -> pd.DataFrame:
    rows = []
    for model in ("a", "b_1"):
        for task in ("gsm8k", "mbpp"):
            for at, method in enumerate(("ar", "jf n=4", "jf n=8")):
                speedup = 1.0 if not at else {"a": 1.2, "b_1": 0.8}[model] + at / 10
                row = {
                    "run": f"{model}/{task}", "model": model, "dtype": "float32", "device": "cpu", "task": task,
                    "temperature": 0.0, "concurrency": 1, "method": method, "method_name": method.split()[0],
                    "max_new_tokens": 64, "prompts": 8, "complete": True,
                    "lossless": "lossy" if (model, method) == ("b_1", "jf n=8") else "exact", "speedup": speedup,
                    "speedup_low": speedup - 0.05 if at else None, "speedup_high": speedup + 0.05 if at else None,
                    "speedup_verdict": ("faster" if speedup > 1.05 else "slower" if speedup < 0.95 else "no difference")
                    if at else None,
                    "within_noise": at == 2, "tokens_per_forward": 1.0 + at, "decode_tok_s": 100.0, "accuracy": 0.5,
                    "rating": float("nan"), "option_n": [None, 4, 8][at], "tpot_median_s": 2.0 - at, **further,
                }  # fmt: skip
                rows.append(row)
    return pd.DataFrame(rows)


def texts(layout: Layout, of: pd.DataFrame | None = None) -> list[list[str]]:
    table = crosstab(frame() if of is None else of, layout)
    return [[column.title for column in table.columns], *([cell.text for cell in row.cells] for row in table.rows)]


def test_any_two_axes_are_across_and_down() -> None:
    assert texts(Layout(["model"], ["task"], ["tpf"]), frame().query("method == 'ar'")) == [
        ["model", "gsm8k", "mbpp"], ["a", "1.00", "1.00"], ["b_1", "1.00", "1.00"],
    ]  # fmt: skip
    found = texts(Layout(["n"], ["model", "task"], ["speedup"]))
    assert found[0] == ["n", "a, gsm8k", "a, mbpp", "b_1, gsm8k", "b_1, mbpp"]
    assert [row[0] for row in found[1:]] == ["4", "8"]
    assert texts(Layout(["model", "task"], ["n"], ["tpf"]))[0] == ["model", "task", "n = 4", "n = 8"]


def test_an_axis_that_varies_is_never_left_out() -> None:
    found = texts(Layout(["task"], [], ["tpf"]))
    assert found[0][:3] == ["task", "model", "method"]
    assert len(found) == 1 + 12


def test_the_best_of_each_model_is_bold() -> None:
    table = crosstab(frame(), Layout(["model", "method"], ["task"], ["speedup"]))
    bold = [[cell.strong for cell in row.cells[2:]] for row in table.rows]
    assert bold == [[best] * 2 for best in (False, False, True, True, False, False)], "the lossy row never is"


def test_the_lowest_time_is_bold() -> None:
    table = crosstab(frame(), Layout(["model", "method"], ["task"], ["tpot_median_s"]))
    assert {row.cells[1].text for row in table.rows if row.cells[2].strong} == {"jf n=8", "jf n=4"}, (
        "of the second model, jf n=8 is lossy"
    )


def test_marks_of_significance_noise_and_lossy_text() -> None:
    found = {tuple(row[:2]): row[2] for row in texts(Layout(["model", "method"], ["task"], ["speedup"]))[1:]}
    assert found["a", "jf n=4"] == "1.30*"
    assert found["a", "jf n=8"] == "1.40*†"
    assert found["b_1", "jf n=4"] == "0.90*"
    assert found["b_1", "jf n=8"] == "1.00†‡"
    unsure = texts(Layout(["model", "method"], ["task"], ["speedup"]), frame(speedup_verdict="unsure: faster"))
    assert unsure[2][2] == "1.30?"


@pytest.mark.parametrize(
    "layout",
    [Layout(["nothing"]), Layout(["task"], ["task"]), Layout([], [], ["words"]), Layout([], [], ["lossless"])],
)
def test_an_unknown_axis_or_figure_is_refused(layout: Layout) -> None:
    with pytest.raises(UsageError):
        crosstab(frame(), layout)


def test_two_rows_in_one_cell_are_refused_by_option() -> None:
    both = pd.concat([frame(), frame(option_n=16).assign(option_pool=2)])
    with pytest.raises(UsageError, match="one cell"):
        crosstab(both, Layout(["method"], ["task"], ["tpf"]))


def test_a_table_has_at_most_a_dozen_columns_by_default() -> None:
    many = pd.concat([frame(task=f"t{at}") for at in range(3)])
    assert len(crosstab(many[~many.duplicated(["model", "task", "method"])], Layout()).columns) <= 12


def test_usual_names_of_figures() -> None:
    known = frame().columns
    assert [column_meant(name, known) for name in ("TPF", "tau", "tok/s", "accuracy")] == [
        "tokens_per_forward", "tokens_per_forward", "decode_tok_s", "accuracy",
    ]  # fmt: skip


@pytest.mark.parametrize("values", [["speedup"], ["speedup", "tpf"]])
def test_latex_is_balanced_with_booktabs_rules(values: list[str]) -> None:
    text = TABLE_FORMATS["latex"](crosstab(frame(), Layout(["model", "method"], ["task"], values)))
    assert re.findall(r"\\begin{(\w+)}", text) == re.findall(r"\\end{(\w+)}", text)[::-1]
    assert [text.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    (aligned,) = re.findall(r"\\begin{tabular}{(\w+)}", text)
    bare = re.sub(r"\\[{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    for line in text.splitlines():
        if line.endswith("\\\\"):
            spans = [int(count) - 1 for count in re.findall(r"\\multicolumn{(\d+)}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) == len(aligned) - 1
    assert r"b\_1" in text
    assert r"\textbf{1.40*$^\dagger$}" in text
    assert (r"\cmidrule(lr){3-4}" in text) == (len(values) == 2)


def test_every_format_has_every_figure() -> None:
    table = crosstab(frame(), Layout(["model", "method"], ["task"], ["speedup"]))
    for to, render in TABLE_FORMATS.items():
        text = render(table)
        assert text.count("0.9") >= 2, to
        assert len(re.findall(r"[\[,]\D{0,3}1\.35", text)) >= 2, to


def test_a_figure_that_is_neither_good_nor_bad_is_not_bold() -> None:
    for value, best in (("tpot_median_s", True), ("latency_s_p50", True), ("truncated", False)):
        found = frame(**{value: 3.0}) if value != "tpot_median_s" else frame()
        table = crosstab(found, Layout(["method"], ["model", "task"], [value]))
        assert any(cell.strong for row in table.rows for cell in row.cells) == best, value


def test_unlike_runs_do_not_share_a_cell() -> None:
    longer = pd.concat([frame(), frame().assign(run="other", max_new_tokens=128)])
    found = texts(Layout(["method"], ["task"], ["tpf"]), longer)
    assert {"model", "max_new_tokens", "method"} <= {*found[0]}
    assert len(found) == 1 + 2 * 6
    more = frame().query("method == 'ar'")
    with pytest.raises(UsageError, match="other prompts"):
        crosstab(pd.concat([more, more.assign(run="other", prompts=9)]), Layout(["model"], ["task"], ["tpf"]))


def test_rows_without_the_option_of_an_axis_are_named() -> None:
    table = crosstab(frame(), Layout(["n"], ["model", "task"], ["speedup"]))
    assert table.source.formula.endswith("without these options: ar.")


def test_a_column_is_meant_by_its_own_name_first() -> None:
    assert column_meant("acceptance_length", ["acceptance_length", "tokens_per_forward"]) == "acceptance_length"
    assert column_meant("acceptance length", ["tokens_per_forward"]) == "tokens_per_forward"
