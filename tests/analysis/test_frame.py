"""Runs as tables: figures are the records', types are what the documentation says, and nothing is half-used."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import COMMITTED, RESULTS
from support.wording import wording

import specbench
from specbench.analysis.frame import METHOD, REQUEST, load_methods, table
from specbench.analysis.read import read_run
from specbench.common.errors import UsageError

RUN = next(RESULTS.glob("*-ar+jacobi+pld+jetspec-humaneval-*"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "copy"))


def test_a_row_is_a_request() -> None:
    frame = specbench.load(RUN)
    read = read_run(RUN)
    assert frame["method"].tolist() == [record.method for record in read.records]
    for name in ("output_tokens", "target_forwards", "decode_s", "ttft_s", "tpot_s", "finish_reason", "request_id"):
        assert frame[name].tolist() == [getattr(record, name) for record in read.records], name
    assert frame["correct"].tolist() == [read.verdicts[record.request_id] for record in read.records]
    assert "text" not in frame
    assert specbench.load(RUN, text=True)["text"].tolist() == [record.text for record in read.records]


def test_pooled_figures_are_those_of_the_summary() -> None:
    frame = specbench.load(RUN)
    for row in read_run(RUN).summary.rows:
        mine = frame[frame["method"] == row.method]
        assert (mine["output_tokens"] - 1).sum() / mine["target_forwards"].sum() == pytest.approx(
            row.tokens_per_forward
        )
        assert (mine["output_tokens"] - 1).sum() / mine["decode_s"].sum() == pytest.approx(row.decode_tok_s)
        assert (mine["decode_tok_s"] * mine["decode_s"]).sum() == pytest.approx((mine["output_tokens"] - 1).sum())


def test_rates_of_requests_that_shared_the_engine_count_their_share_of_it() -> None:
    frame = specbench.load(next(RESULTS.glob("sweep-*/c4")))
    assert set(frame["concurrency"]) == {4}
    decoded = frame["output_tokens"] - 1
    assert (frame["decode_tok_s"] * frame["decode_share_s"]).tolist() == pytest.approx(decoded.tolist())
    assert (frame["decode_share_s"] < frame["decode_s"]).all(), "otherwise the two could not be distinguished"
    assert (frame["tpot_s"] * decoded).tolist() == pytest.approx(frame["decode_s"].tolist())


def test_columns_are_typed_and_several_runs_are_one_table() -> None:
    frame = specbench.load(RUN)
    assert {name: str(frame[name].dtype) for name in REQUEST} == REQUEST
    shown_text = {
        "prompt_id": "string", "peak_memory_bytes": "Int64", "output_tokens": "int64", "decode_tok_s": "float64",
        "correct": "boolean", "simulated": "bool",
    }  # fmt: skip
    assert shown_text.items() <= REQUEST.items()
    assert list(frame.columns)[: len(REQUEST)] == list(REQUEST)
    assert str(frame["option_block_size"].dtype) == "Int64"
    assert set(frame.loc[frame["method"] == "jacobi", "option_block_size"]) == {16}
    assert frame.loc[frame["method"] == "ar", "option_block_size"].isna().all()
    assert set(frame["run"]) == {RUN.name}
    frame = specbench.load(*COMMITTED)
    assert frame["run"].value_counts().to_dict() == {path.name: len(read_run(path).records) for path in COMMITTED}
    assert frame.index.tolist() == list(range(len(frame)))


def test_a_row_per_method() -> None:
    frame = load_methods(RUN).set_index("method")
    assert {name: str(load_methods(RUN)[name].dtype) for name in METHOD} == METHOD
    for row in read_run(RUN).summary.rows:
        assert row.speedup is not None
        assert row.accuracy is not None
        mine = frame.loc[row.method]
        assert mine["tokens_per_forward"] == row.tokens_per_forward
        assert (mine["speedup"], mine["speedup_low"]) == (row.speedup.value, row.speedup.low)
        assert mine["lossless"] == "exact" if row.lossless else pd.isna(mine["lossless"])
        assert (mine["accuracy"], mine["accuracy_scored"]) == (row.accuracy.value, row.accuracy.scored)
        assert mine["speedup_verdict"] == row.speedup.verdict if not row.baseline else pd.isna(mine["speedup_verdict"])


def test_columns_that_only_some_rows_have() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1}, {"a": 2, "x": 3, "y": None}, {"a": 4, "z": "w", "x": 0.5}, {"a": 5, "m": True},
    ]  # fmt: skip
    frame = table([*rows, {"a": 6, "m": "?"}], {"a": "int64"})
    assert list(frame.columns) == ["a", "m", "x", "z"]  # y has no value anywhere
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "object", "float64", "string"]
    assert frame["x"].tolist()[1:3] == [3.0, 0.5]
    assert frame["x"].isna().tolist() == [True, False, False, True, True]


def test_a_run_under_way_is_read_as_it_stands(copy: Path) -> None:
    lines = (copy / "requests.jsonl").read_text().splitlines(keepends=True)
    (copy / "requests.jsonl").write_text("".join(lines[:-1]))
    (copy / "DONE").unlink()
    (copy / "summary.json").unlink()
    assert 0 < len(specbench.load(copy)) < len(specbench.load(RUN))
    assert not load_methods(copy)["complete"].any()


def test_no_run_twice(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        specbench.load()
    with pytest.raises(UsageError, check=wording):
        specbench.load(RUN, os.path.relpath(RUN))
    namesake = shutil.copytree(copy, tmp_path / "elsewhere" / "copy")
    with pytest.raises(UsageError, check=wording):
        specbench.load(copy, namesake)
    with pytest.raises(UsageError, check=wording):
        specbench.load(tmp_path)


def test_the_runs_of_a_sweep(copy: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(copy, sweep / "c1")
    head = {
        "schema_version": 1, "digest": "", "cells": {}, "too_large": {}, "concurrency": [1, 4], "tuning": [],
        "held_out": [], "search": "grid", "until_interval": None,
    }  # fmt: skip
    (sweep / "sweep.json").write_text(json.dumps(head))
    frame = specbench.load(sweep)
    assert set(frame["run"]) == {"sweep/c1"}
    assert len(frame) == len(specbench.load(copy))
    shutil.rmtree(sweep / "c1")
    with pytest.raises(UsageError, check=wording):
        specbench.load(sweep)
