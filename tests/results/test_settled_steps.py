"""What a resumed run is told of its steps: any file that a run can have written is taken, and no other is."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.results.calibration import StoredTimes
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
        assert (folder.steps(), folder.products()) == ([], [])
        assert stored(folder, {"engines": [[OWN | {"padded_to": {"1": 1}}, {"padded_to": {}}]]}).steps()
        assert stored(folder, {"engines": [], "products": [[OWN, TORCH], []]}).products() == [[OWN, TORCH], []]


def test_what_was_settled_is_there_when_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        folder.keep_steps([[{"padded_to": {"1": 2}}]])
        assert (folder.steps(), folder.products()) == ([[{"padded_to": {"1": 2}}]], [])
        folder.keep_steps([[{"padded_to": {"1": 4}}], []], [[OWN], [TORCH]])
        assert (folder.steps(), folder.products()) == ([[{"padded_to": {"1": 4}}], []], [[OWN], [TORCH]])


@pytest.mark.parametrize(
    "wrong", [3, [3], [[3]], [[{}]], [[{"padded_to": 1}]], [[{"padded_to": {"one": 1}}]], [[{"padded_to": {"1": 0}}]],
              [[{"padded_to": {"1": True}}]], [[{"padded_to": {"1": 1.0}}]], [[{"padded_to": {"1": 2, "2": None}}]]]
)  # fmt: skip
def test_what_does_not_say_what_rows_are_padded_to_is_refused(wrong: Any, tmp_path: Path) -> None:
    with (
        RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder,
        pytest.raises(UsageError, check=wording),
    ):
        stored(folder, {"engines": wrong}).steps()


@pytest.mark.parametrize("name", ["out", "in", *LEAST])
@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "1", None])
def test_every_size_of_a_product_is_a_number_from_one_on(name: str, wrong: Any, tmp_path: Path) -> None:
    bad = {**LEAST, name: wrong}
    shapes = [{**OWN, "config": bad}, {**OWN, "timed": [{"config": bad, "seconds": []}]}]
    shapes = [{**OWN, name: wrong}] if name in OWN else shapes
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        for shape in shapes:
            with pytest.raises(UsageError, check=wording):
                stored(folder, {"engines": [], "products": [[OWN, shape]]}).products()


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
TIMES = {
    "one thing": StoredTimes(times=0.5, measured_utc="now"),
    "steps": StoredTimes(times=[(1, 0.5)], measured_utc=""),
}


def test_the_times_that_settings_were_chosen_by_are_there_when_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar", "0" * 64, {}) as folder:
        assert folder.times() == {}
        folder.keep_times(TIMES)
        assert folder.times() == TIMES
        (folder.path / "times.json").write_text("{")
        with pytest.raises(UsageError, check=wording):
            folder.times()


def test_a_finished_run_holds_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    folder = RunFolder.create(tmp_path, "ar", "0" * 64, {})
    assert len(os.listdir("/proc/self/fd")) > before
    folder.finish(SUMMARY)
    assert len(os.listdir("/proc/self/fd")) == before
    assert folder.finished
    for write in (partial(folder.keep_times, TIMES), partial(folder.keep_steps, []), partial(folder.finish, SUMMARY)):
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


def test_a_folder_that_another_process_made_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outrun(path: Path, *given: Any) -> RunFolder:
        make(path, "0" * 64, {}, Path.rename).close()
        raise EnvironmentRefused("there is one of that name")

    def refused(path: Path, *given: Any) -> RunFolder:
        raise EnvironmentRefused("the disk is full")

    make = RunFolder._make
    monkeypatch.setattr(RunFolder, "_make", outrun)
    with RunFolder.at(tmp_path / "mine", "0" * 64, {}) as folder:
        assert folder.path == tmp_path / "mine"
    monkeypatch.setattr(RunFolder, "_make", refused)
    with pytest.raises(EnvironmentRefused, check=wording):
        RunFolder.at(tmp_path / "other", "0" * 64, {})
