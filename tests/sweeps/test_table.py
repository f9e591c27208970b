"""The table of a sweep, a row per cell, against figures worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import ToyWorker, grid, record, worker_config
from support.wording import wording

from specbench.analysis.read import ReadRun
from specbench.analysis.summary import RunContents, summarise
from specbench.common.errors import UsageError
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import RunConfig
from specbench.results.summary_schema import RunSummary, SweepFindings
from specbench.results.sweep_folder import is_sweep
from specbench.sweeps.driver import Asked, Silent, drive
from specbench.sweeps.executors import Here
from specbench.sweeps.table import cells, read_sweep

A, B = "toy n=2", "toy n=4"


def head(tuning: Sequence[str], too_large: Sequence[str] = ()) -> dict[str, Any]:
    found = {label: {"method": "toy", "values": {"n": int(label[6:])}} for label in (A, B)}
    lost = {label: {"method": "toy", "values": {"n": int(label[6:])}} for label in too_large}
    return {"cells": found, "too_large": lost, "tuning": list(tuning)}


def summary_of(made: RunConfig, records: Sequence[RequestRecord], **found: Any) -> RunSummary:
    summary = summarise(RunContents(made, records))
    return summary.model_copy(update={"sweep": SweepFindings(**found)}) if found else summary


def read(records: Sequence[RequestRecord], concurrency: int = 1, verdicts: Any = None, **found: Any) -> ReadRun:
    made = worker_config([A, B], 3).model_copy(update={"concurrency": concurrency})
    run = {**made.model_dump(mode="json"), "digest": "abc"}
    return ReadRun(run, made, list(records), verdicts or {}, summary_of(made, records, **found), [])


def row(table: pd.DataFrame, label: str, of: str = "tuning") -> dict[Any, Any]:
    (found,) = table[(table["label"] == label) & (table["set"] == of)].to_dict("records")
    return found


RECORDS = [
    record("ar", "p0", tokens=11, forwards=10, rows=10, decode_s=10.0),
    record("ar", "p1", tokens=21, forwards=20, rows=20, decode_s=20.0),
    record(A, "p0", tokens=11, forwards=5, rows=10, decode_s=6.0),
    record(A, "p1", tokens=21, forwards=10, rows=20, decode_s=9.0),
    # B ran in the second pass, in which the machine was twice as slow.
    record("ar", "p0", repeat=1, tokens=11, forwards=10, rows=10, decode_s=20.0),
    record("ar", "p1", repeat=1, tokens=21, forwards=20, rows=20, decode_s=40.0),
    record(B, "p0", repeat=1, tokens=11, forwards=4, rows=16, decode_s=10.0),
    record(B, "p1", repeat=1, tokens=21, forwards=6, rows=24, decode_s=14.0),
    record("ar", "h0", repeat=1, tokens=11, forwards=10, rows=10, decode_s=20.0),
    record(B, "h0", repeat=1, tokens=11, forwards=5, rows=20, decode_s=16.0),
]


def test_the_figures_are_those_of_the_records() -> None:
    verdicts = {f"{A}|p0|0": True, f"{A}|p1|0": False, "ar|p0|0": True}
    table = cells(head(["p0", "p1"]), {1: read(RECORDS, verdicts=verdicts, best=B)})
    assert list(table.columns) == [
        "cell", "label", "method", "n", "concurrency", "set", "prompts", "requests", "tokens", "target_forwards",
        "tokens_per_forward", "decode_tok_s", "decode_tok_s_low", "decode_tok_s_high", "speedup", "speedup_low",
        "speedup_high", "blocks", "verdict", "chosen_low", "chosen_high",
        "rows_per_step", "step_ms", "predicted_decode_tok_s", "user_tok_s", "accuracy", "best", "within_noise",
        "own_text", "stopped", "fault", "disturbed", "memory",
    ]  # fmt: skip
    assert list(zip(table["label"], table["set"], strict=True)) == [
        ("ar", "tuning"), (A, "tuning"), (B, "tuning"), ("ar", "held-out"), (B, "held-out"),
    ]  # fmt: skip
    a = row(table, A)
    assert (a["method"], a["n"], a["concurrency"]) == ("toy", 2, 1)
    assert (a["prompts"], a["requests"], a["tokens"], a["target_forwards"]) == (2, 2, 32, 15)
    assert a["tokens_per_forward"] == pytest.approx(30 / 15)
    assert a["decode_tok_s"] == pytest.approx(30 / 15)
    assert a["speedup"] == pytest.approx((30 / 30) / (15 / 30))
    assert a["rows_per_step"] == pytest.approx(30 / 15)
    assert a["step_ms"] == pytest.approx(1000.0)
    assert a["accuracy"] == 0.5
    assert (a["best"], a["within_noise"], a["stopped"]) == (False, False, ""), "two prompts tell no cells apart"
    assert (a["verdict"], a["blocks"]) == ("too few prompts", 2)
    assert all(math.isnan(a[name]) for name in ("speedup_low", "decode_tok_s_high", "predicted_decode_tok_s")), (
        "too few for one"
    )
    b = row(table, B)
    assert b["speedup"] == pytest.approx(60 / 24), "over the plain decoding of its own pass"
    assert b["best"] is True
    assert math.isnan(b["accuracy"])
    held = row(table, B, "held-out")
    assert (held["prompts"], held["speedup"]) == (1, pytest.approx(20 / 16))
    ar = row(table, "ar")
    assert (ar["method"], ar["prompts"], ar["requests"]) == ("ar", 2, 4)
    assert ar["decode_tok_s"] == pytest.approx(60 / 90)
    assert math.isnan(ar["speedup"])
    assert math.isnan(ar["n"])
    assert ar["best"] is False


def test_an_interval_holds_its_value_and_shared_engines_share_their_time() -> None:
    prompts = [f"p{at}" for at in range(8)]
    records = [
        record(label, prompt, decode_s=100.0, decode_share_s=(1 + 0.1 * at) * (2 if label == "ar" else 1), segment=at)
        for label in ("ar", A)
        for at, prompt in enumerate(prompts)
    ]
    table = cells(head(prompts), {1: read(records), 4: read(records, concurrency=4)})
    alone, shared = (table[(table["label"] == A) & (table["concurrency"] == count)].iloc[0] for count in (1, 4))
    assert alone["speedup"] == pytest.approx(1.0)
    assert shared["speedup"] == pytest.approx(2.0)
    assert shared["speedup_low"] == pytest.approx(2.0)
    assert shared["decode_tok_s"] == pytest.approx(8 * 10 / sum(1 + 0.1 * at for at in range(8)))
    assert shared["decode_tok_s_low"] < shared["decode_tok_s"] < shared["decode_tok_s_high"]
    assert alone["cell"] != shared["cell"]


def test_a_cell_is_named_after_all_that_decides_it() -> None:
    first = cells(head(["p0", "p1"]), {1: read(RECORDS)})
    assert first["cell"].nunique() == 3
    other = worker_config([A, B], 3, window="sliding").model_dump(mode="json")
    again = read(RECORDS)
    changed = ReadRun({**again.run, "methods": other["methods"]}, again.config, again.records, {}, again.summary, [])
    second = cells(head(["p0", "p1"]), {1: changed})
    assert row(first, A)["cell"] != row(second, A)["cell"]
    assert row(first, "ar")["cell"] == row(second, "ar")["cell"]
    lacking = head(["p0", "p1"])
    del lacking["cells"][B]
    assert row(cells(lacking, {1: read(RECORDS)}), B)["method"] == "toy"


def test_what_there_is_not_is_nan() -> None:
    ended = [record(label, "p0", tokens=1, forwards=0, decode_s=0.0) for label in ("ar", A)]
    table = cells(head(["p0"], ["toy n=999"]), {1: read(ended)})
    a, large = row(table, A), row(table, "toy n=999")
    assert all(
        pd.isna(a[name])
        for name in ("tokens_per_forward", "decode_tok_s", "speedup", "rows_per_step", "step_ms", "accuracy")
    )
    assert (a["tokens"], a["target_forwards"]) == (1, 0)
    assert (large["stopped"], large["concurrency"], large["method"]) == ("too large", 1, "toy")
    assert all(pd.isna(large[name]) for name in ("cell", "prompts", "speedup", "best"))


def swept(out: Path, labels: Sequence[str]) -> Path:
    return drive(Asked(grid(labels), out), Here(lambda: ToyWorker(labels)), Silent())


def test_a_sweep_is_read_from_its_files_and_may_lack_some(tmp_path: Path) -> None:
    path = swept(tmp_path, [A, B])
    assert is_sweep(path)
    assert not is_sweep(path / "c1")
    found = read_sweep(path)
    assert found.finished
    assert list(found.runs) == [1]
    assert list(found.cells["label"]) == ["ar", A, B]
    assert found.cells["best"].sum() == 1
    path = swept(tmp_path, [A])
    content = json.loads((path / "sweep.json").read_text())
    (path / "sweep.json").write_text(json.dumps({**content, "concurrency": [1, 2]}))
    assert not read_sweep(path).finished


def test_an_unfinished_sweep_has_figures_and_no_best_cell(tmp_path: Path) -> None:
    class Gone(Silent):
        def phase(self, text: str) -> None:
            raise KeyboardInterrupt

    path = swept(tmp_path, [A])
    # All is decoded, but what it comes to is not: the best cell is still that of the narrower grid.
    with pytest.raises(KeyboardInterrupt):
        drive(Asked(grid([A, B]), tmp_path), Here(lambda: ToyWorker([A, B])), Gone())
    found = read_sweep(path)
    assert not found.finished
    assert list(found.cells["label"]) == ["ar", A, B]
    assert found.cells["speedup"].notna().sum() == 2
    assert found.cells["best"].sum() == 0


def test_a_sweep_that_lacks_requests_is_damaged_and_what_is_none_is_named(tmp_path: Path) -> None:
    path = swept(tmp_path, [A, B])
    requests = path / "c1" / "requests.jsonl"
    requests.write_text("".join(requests.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, check=wording):
        read_sweep(path)
    with pytest.raises(UsageError, check=wording):
        read_sweep(tmp_path)
    path = swept(tmp_path, [A])
    (path / "c1").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, check=wording):
        read_sweep(path)
