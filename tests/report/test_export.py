"""Tables in other formats: what is read back is what was written."""

from __future__ import annotations

import csv
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import runs
from support.asserting import refusal
from support.wording import wording

from specbench.common import UsageError
from specbench.report.render.frames import EXPORT_FORMATS, export_tables

NASTY = 'a "b", | & 50% $x_1 #{}~^\\ <b>*[c](d)\nnext\r\x1b[2J'
FRAME = pd.DataFrame(
    {
        "name": pd.array(["plain", NASTY, None], dtype="string"),
        "count": pd.array([1, None, 3], dtype="Int64"),
        "seconds_s": np.array([0.1 + 0.2, float("nan"), 1e-9]),
        "right": pd.array([True, False, None], dtype="boolean"),
        "option_x": pd.array([1, "two", None], dtype="object"),
    }
)


def written(to: str, frame: pd.DataFrame = FRAME) -> str:
    file = io.StringIO()
    EXPORT_FORMATS[to](frame, file)
    return file.getvalue()


def test_csv_round_trip() -> None:
    again = pd.read_csv(
        io.StringIO(written("csv")), dtype={"name": "string", "count": "Int64", "right": "boolean"}, lineterminator="\n"
    )
    pd.testing.assert_frame_equal(again[["count", "right"]], FRAME[["count", "right"]])
    rows = list(csv.reader(io.StringIO(written("csv"), newline="")))
    assert rows[2][0] == NASTY.replace("\n", "\\n").replace("\r", "\\r").replace("\x1b", "\\x1b")
    assert float(rows[1][2]) == 0.1 + 0.2  # every digit
    assert rows[3] == ["", "3", "1e-09", "", ""]


def test_json_round_trip() -> None:
    rows = json.loads(written("json"))
    assert rows == [
        {"name": "plain", "count": 1, "seconds_s": 0.1 + 0.2, "right": True, "option_x": 1},
        {"name": NASTY, "count": None, "seconds_s": None, "right": False, "option_x": "two"},
        {"name": None, "count": 3, "seconds_s": 1e-9, "right": None, "option_x": None},
    ]
    assert [type(value) for value in rows[0].values()] == [str, int, float, bool, int]
    assert len(written("json").splitlines()) == len(FRAME) + 2


@pytest.mark.parametrize("to", ["csv", "json", "md", "latex"])
def test_a_table_without_rows_is_one(to: str) -> None:
    text = written(to, FRAME.iloc[:0])
    if to == "json":
        assert json.loads(text) == []
    else:
        assert "seconds" in text


def test_markdown_latex_and_unknown_formats() -> None:
    lines = written("md").splitlines()
    assert lines[0] == "| name | count | seconds_s | right | option_x |"
    assert lines[1] == "| --- | ---: | ---: | --- | --- |"
    assert lines[2] == "| plain | 1 | 0.3 | yes | 1 |"
    assert len(lines) == 5
    for line in lines:  # pipes that do not end a cell are escaped
        assert line.replace("\\|", "").count("|") == 6
    assert "\\<b>\\*\\[c\\](d) next [2J".replace(" [", " \\[") in lines[3]
    text = written("latex")
    assert text.startswith("\\begin{tabular}{lrrll}\n\\toprule\nname & count & seconds\\_s & right & option\\_x \\\\\n")
    assert wording(text)
    assert sum(line.endswith(r"\\") for line in text.splitlines()) == 4
    assert "\x1b" not in text
    with pytest.raises(KeyError):
        EXPORT_FORMATS["xlsx"](FRAME, io.StringIO())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("acceptance", "tokens_per_forward"), ("accepted_length", "tokens_per_forward"), ("tps", "decode_tok_s"),
        ("memory", "peak_memory_bytes"), ("p95", "latency_s.quantile(0.95)"), ("ttft_p50", "ttft_s.quantile(0.5)"),
    ],
)  # fmt: skip
def test_a_figure_by_its_usual_name_leads_to_its_column(tmp_path: Path, name: str, meant: str) -> None:
    run = runs.derived(tmp_path / "run")
    assert meant in refusal(UsageError, export_tables, [run], "csv", columns=[name])


def test_a_pipe_stays_a_pipe_and_a_link_a_link(tmp_path: Path) -> None:
    run = runs.derived(tmp_path / "run")
    pipe, link, file = tmp_path / "pipe", tmp_path / "link.csv", tmp_path / "file.csv"
    os.mkfifo(pipe)
    link.symlink_to(file)
    with ThreadPoolExecutor(1) as reader:
        received = reader.submit(pipe.read_text)
        export_tables([run], "csv", pipe)
        export_tables([run], "csv", link)
        assert received.result(10) == file.read_text() != ""
    assert pipe.is_fifo()
    assert link.is_symlink()
