"""Stored step times of a resumed run: every file that a run can have written is accepted, and no other file."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.asserting import known
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.results.calibration import STEPS, TIMES, SettledSteps, StoredTimes
from specbench.results.folder import RunFolder
from specbench.results.summary_schema import RunSummary

LEAST = {"block_n": 1, "block_k": 1, "splits": 1, "warps": 1, "stages": 1}
OWN = {
    "out": 1, "in": 1, "kernel": "own", "config": LEAST, "torch_s": [], "timed": [{"config": LEAST, "seconds": []}],
    "why_not": "",
}  # fmt: skip
TORCH = {**OWN, "kernel": "torch", "config": None, "timed": []}


def stored(folder: RunFolder, content: dict[str, Any]) -> RunFolder:
    (folder.path / "steps.json").write_text(json.dumps(content))
    return folder


def test_the_least_that_a_run_can_have_settled_is_taken(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        assert folder.read(STEPS) is None
        assert stored(folder, {"engines": [[OWN | {"padded_to": {"1": 1}}, {"padded_to": {}}]]}).read(STEPS)
        found = known(stored(folder, {"engines": [], "products": [[OWN, TORCH], []]}).read(STEPS))
        assert found.products == [[OWN, TORCH], []]


def test_what_was_settled_is_there_when_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        folder.write(STEPS, SettledSteps(engines=[[{"padded_to": {"1": 2}}]], products=[[]]))
        assert json.loads((folder.path / "steps.json").read_text()) == {"engines": [[{"padded_to": {"1": 2}}]]}
        settled = SettledSteps(engines=[[{"padded_to": {"1": 4}}], []], products=[[OWN], [TORCH]])
        folder.write(STEPS, settled)
        assert folder.read(STEPS) == settled


@pytest.mark.parametrize(
    "wrong", [3, [3], [[3]], [[{}]], [[{"padded_to": 1}]], [[{"padded_to": {"one": 1}}]], [[{"padded_to": {"1": 0}}]],
              [[{"padded_to": {"1": True}}]], [[{"padded_to": {"1": 1.0}}]], [[{"padded_to": {"1": 2, "2": None}}]]]
)  # fmt: skip
def test_what_does_not_say_what_rows_are_padded_to_is_refused(wrong: Any, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder, pytest.raises(UsageError, match=r"steps\.json"):
        stored(folder, {"engines": wrong}).read(STEPS)


@pytest.mark.parametrize("name", ["out", "in", *LEAST])
@pytest.mark.parametrize("wrong", [0, True, "1"])
def test_every_size_of_a_product_is_a_number_from_one_on(name: str, wrong: Any, tmp_path: Path) -> None:
    bad = {**LEAST, name: wrong}
    shapes = [{**OWN, "config": bad}, {**OWN, "timed": [{"config": bad, "seconds": []}]}]
    shapes = [{**OWN, name: wrong}] if name in OWN else shapes
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        for shape in shapes:
            with pytest.raises(UsageError, match=r"steps\.json.*products"):
                stored(folder, {"engines": [], "products": [[OWN, shape]]}).read(STEPS)


SUMMARY = RunSummary.model_validate(
    {
        "complete": True,
        "rows": [
            {
                "method": "ar", "prompts": 1, "requests": 1, "tokens": 2, "target_forwards": 1, "decode_tok_s": 1.0,
                "tokens_per_forward": 1.0, "tokens_per_forward_with_prefill": 1.0,
            }
        ],
    }
)  # fmt: skip


def test_the_times_that_settings_were_chosen_by_are_there_when_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        assert folder.read(TIMES) is None
        folder.write(TIMES, MEASURED)
        assert folder.read(TIMES) == MEASURED
        (folder.path / "times.json").write_text("{")
        with pytest.raises(UsageError, check=wording):
            folder.read(TIMES)


def test_a_finished_run_holds_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    folder = RunFolder.create(tmp_path, "ar", "0" * 64, {})
    assert len(os.listdir("/proc/self/fd")) > before
    folder.finish(SUMMARY)
    assert len(os.listdir("/proc/self/fd")) == before
    assert folder.finished
    for write in (partial(folder.write, TIMES, MEASURED), partial(folder.finish, SUMMARY)):
        with pytest.raises(ValueError, check=wording):
            write()


def test_a_summary_with_a_number_that_no_column_holds_is_refused(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        folder.write_summary(SUMMARY)
        assert folder.summary() == SUMMARY
        path = folder.path / "summary.json"
        content = json.loads(path.read_text())
        content["rows"][0]["tokens"] = 1 << 70
        path.write_text(json.dumps(content))
        with pytest.raises(UsageError, match=r"summary\.json"):
            folder.summary()


MEASURED = {
    "one thing": StoredTimes(times=0.5, measured_utc="now"),
    "steps": StoredTimes(times=[(1, 0.5)], measured_utc=""),
}
