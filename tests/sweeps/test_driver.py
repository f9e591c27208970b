"""Sweeps from grid to files with toy workers: what is decoded, when it goes on, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.asserting import refusal
from support.runs import (
    CELLS,
    HELD,
    Breaking,
    Broken,
    ToyWorker,
    broken,
    counts,
    grid,
    head,
    read_json,
    records,
    sweep,
    sweep_summary,
)
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.results.bandwidth import Bandwidth, Reading
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord, request_key
from specbench.sweeps.driver import Asked, Silent, drive
from specbench.sweeps.messages import Conditions, Task, WorkerMessage
from specbench.sweeps.search import Kind
from specbench.sweeps.table import read_sweep


class Heard(Silent):
    """Keep the calls that a progress gets."""

    def __init__(self) -> None:
        self.started, self.requests = list[tuple[int, int, int]](), 0

    def start(self, path: Path, concurrency: int, done: int, most: int) -> None:
        self.started.append((concurrency, done, most))
        self.requests = 0

    def request(self, record: RequestRecord) -> None:
        self.requests += 1


def test_a_sweep_and_its_files(tmp_path: Path) -> None:
    path, worker = sweep(tmp_path, held_out=HELD, too_large=["toy n=999"])
    assert list(tmp_path.iterdir()) == [path]
    assert path.name.startswith("sweep-toy-t-")
    assert {file.name for file in path.iterdir()} == {"sweep.json", "c1"}
    assert {file.name for file in (path / "c1").iterdir()} == {"run.json", "requests.jsonl", "summary.json", "DONE"}
    found = head(path)
    assert found["cells"] == {label: {"method": "toy", "values": {"n": int(label[6:])}} for label in CELLS}
    assert found["too_large"] == {"toy n=999": {"method": "toy", "values": {"n": 999}}}
    assert (found["concurrency"], found["search"], found["until_interval"]) == ([1], "grid", None)
    assert (found["tuning"], found["held_out"]) == ([f"p{at}" for at in range(8)], list(HELD))

    made = records(path)
    assert worker.decoded == [record.request_id for record in made]
    best = sweep_summary(path)["sweep"]["best"]
    assert counts(made).keys() == {
        *(request_key(label, prompt, 0) for label in ("ar", *CELLS) for prompt in found["tuning"]),
        *(request_key(label, prompt, 0) for label in ("ar", best) for prompt in HELD),
    }
    assert len({record.segment for record in made}) == len(made), "at concurrency 1 each request is its own stretch"

    result = sweep_summary(path)
    assert result["complete"] is True
    assert [row["method"] for row in result["rows"]] == ["ar", *CELLS]
    assert all(row["prompts"] == 8 for row in result["rows"]), "held-out prompts are in no row that is chosen by"
    assert result["sweep"]["stopped"] == {}
    speedups = {row["method"]: row["speedup"]["value"] for row in result["rows"][1:]}
    assert best == max(speedups, key=lambda label: speedups[label])
    assert best in result["sweep"]["within_noise"]
    run = read_json(path, "c1", "run.json")
    assert run["passes"] == dict.fromkeys(CELLS, 0)
    assert [spec["label"] for spec in run["methods"]] == ["ar", *CELLS]


@pytest.mark.parametrize(
    ("kind", "until", "turns"), [("grid", None, 1), ("halving", None, 3), ("grid", 0.02, 3), ("halving", 0.02, 1)]
)
def test_a_broken_sweep_goes_on_to_the_same_end(tmp_path: Path, kind: Kind, until: float | None, turns: int) -> None:
    of_turns = {f"p{at}": 1 + at % turns for at in range(12)}
    given: dict[str, Any] = {
        "kind": kind, "until": until, "of_turns": of_turns, "tuning": tuple(of_turns), "held_out": HELD,
    }  # fmt: skip
    straight, reference = sweep(tmp_path / "straight", **given)
    expected = counts(records(straight))
    rng = random.Random(f"{kind}/{until}/{turns}")
    for trial in range(2):
        out, decoded, path, commands = tmp_path / f"broken-{trial}", Counter[str](), None, 0
        while path is None:
            worker = ToyWorker(CELLS, **{name: given[name] for name in ("of_turns", "tuning", "held_out")})
            asked = Asked(grid(CELLS), out, kind, until)
            with contextlib.suppress(Broken):
                path = drive(asked, Breaking(worker, rng.randint(1, len(expected) // 3)), Silent())
            decoded.update(worker.decoded)
            commands += 1
        assert commands > 1, "nothing was broken off"
        assert set(decoded.values()) == {1}, "a finished request was decoded again"
        made = records(path)
        assert counts(made) == expected
        assert len({record.segment for record in made}) == len(made)
        for name in ("rows", "sweep"):
            assert sweep_summary(path)[name] == sweep_summary(straight)[name]
    assert Counter(reference.decoded) == decoded


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_worker_that_has_the_machine_to_itself_is_asked_what_goes_on_there(
    tmp_path: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Bandwidth(readings=[Reading(segment=0, threads=2, bytes_per_s=8e9)])
    asked: list[Conditions | None] = []

    class Reads(ToyWorker):
        def decode(self, task: Task) -> Iterator[WorkerMessage]:
            asked.append(task.conditions)
            yield from super().decode(task)
            if task.conditions is not None:
                yield Conditions(bandwidth=read)

    worker = Reads(CELLS, held_out=HELD)
    executor = Breaking(worker)
    monkeypatch.setattr(executor, "alone", alone)
    path = drive(Asked(grid(CELLS), tmp_path), executor, Silent())
    assert len(asked) > 1
    if alone:
        assert asked[0] == Conditions(), "nothing was known"
        assert asked[-1] == Conditions(bandwidth=read), "a later round knows what was found before"
        assert sweep_summary(path)["bandwidth"]["readings"] == 1
    else:
        assert asked == [None] * len(asked)
        assert not (path / "c1" / "bandwidth.json").exists()


def test_a_wider_grid_decodes_its_new_cells_next_to_plain_decoding_of_their_own(tmp_path: Path) -> None:
    narrow, _ = sweep(tmp_path, CELLS[:2])
    before = {record.request_id: record for record in records(narrow)}
    reported = Heard()
    path, worker = sweep(tmp_path, CELLS, progress=reported)
    assert path == narrow
    prompts = [f"p{at}" for at in range(8)]
    assert Counter(worker.decoded) == Counter(request_key(c, p, 1) for c in ("ar", *CELLS[2:]) for p in prompts)
    after = {record.request_id: record for record in records(path)}
    assert {key: after[key] for key in before} == before
    run = read_json(path, "c1", "run.json")
    assert run["passes"] == {CELLS[0]: 0, CELLS[1]: 0, CELLS[2]: 1, CELLS[3]: 1}
    assert list(head(path)["cells"]) == CELLS
    assert (path / "c1" / "DONE").exists()
    assert reported.started == [(1, 24, 24 + 24)], "done and, at most, all"
    assert reported.requests == 24
    path, worker = sweep(tmp_path, [*CELLS, "toy n=32"])
    assert {key.split("|")[0] for key in worker.decoded} == {"ar", "toy n=32"}
    assert {key.split("|")[2] for key in worker.decoded} == {"2"}
    path, worker = sweep(tmp_path, CELLS[:2])
    assert worker.decoded == []


def test_the_best_cell_is_that_of_all_commands_and_graded_cells_stay_graded(tmp_path: Path) -> None:
    together, _ = sweep(tmp_path / "together", CELLS)
    best = sweep_summary(together)["sweep"]["best"]
    others = [label for label in CELLS if label != best]
    sweep(tmp_path / "apart", [best])
    path, worker = sweep(tmp_path / "apart", others)
    assert best not in {key.split("|")[0] for key in worker.decoded}
    result = sweep_summary(path)
    assert result["sweep"]["best"] == best
    assert best in result["sweep"]["within_noise"]
    assert {row["method"] for row in result["rows"] if row["lossless"]} == {"ar", *CELLS}
    # One that was broken off is on few prompts, and not comparable.
    broken(tmp_path / "third", [best], after=3)
    path, _ = sweep(tmp_path / "third", others)
    assert sweep_summary(path)["sweep"]["best"] in others


def test_a_halved_cell_stays_halved_until_a_grid_decodes_it(tmp_path: Path) -> None:
    prompts = tuple(f"p{at:02d}" for at in range(12))
    path, _ = sweep(tmp_path, CELLS, kind="halving", tuning=prompts)
    halved = sweep_summary(path)["sweep"]["stopped"]
    assert list(halved.values()) == ["halved"] * 2
    path, worker = sweep(tmp_path, ["toy n=32"], tuning=prompts)
    assert sweep_summary(path)["sweep"]["stopped"] == halved
    path, worker = sweep(tmp_path, CELLS, tuning=prompts)
    assert worker.decoded
    assert sweep_summary(path)["sweep"]["stopped"] == {}
    assert Counter(r.method for r in records(path) if r.repeat == 0) == dict.fromkeys(["ar", *CELLS], 12)


def test_a_command_with_nothing_to_do_does_nothing(tmp_path: Path) -> None:
    given: dict[str, Any] = {"held_out": HELD, "kind": "halving"}
    path, _ = sweep(tmp_path, **given)
    folder = path / "c1"
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    reported = Heard()
    again, worker = sweep(tmp_path, progress=reported, **given)
    assert again == path
    assert (worker.decoded, worker.graded, reported.requests) == ([], 0, 0)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()} == before


def test_other_prompts_another_model_and_other_software_are_another_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [sweep(tmp_path, **more)[0] for more in ({}, {"tuning": ("p0", "p1", "p2")}, {"held_out": HELD})]  # type: ignore[arg-type]
    monkeypatch.setenv("PLACE", "elsewhere")
    assert len({*paths, sweep(tmp_path)[0]}) == 4


def test_one_label_with_other_options_next_to_it_is_refused(tmp_path: Path) -> None:
    path, _ = sweep(tmp_path, options={"window": "block"})
    before = (path / "c1" / "run.json").read_bytes()
    with pytest.raises(UsageError, check=wording):
        sweep(tmp_path, options={"window": "sliding"})
    assert (path / "c1" / "run.json").read_bytes() == before
    _, worker = sweep(tmp_path, options={"window": "block"})  # no lock was left over
    assert worker.decoded == []


def test_each_concurrency_has_a_folder(tmp_path: Path) -> None:
    reported = Heard()
    path, worker = sweep(tmp_path, CELLS[:2], concurrency=(1, 4), progress=reported)
    assert head(path)["concurrency"] == [1, 4]
    assert reported.started == [(1, 0, 24), (4, 0, 24)]
    assert counts(records(path, 1)) == counts(records(path, 4))
    for count in (1, 4):
        assert json.loads((path / f"c{count}" / "run.json").read_text())["concurrency"] == count
    assert len(worker.decoded) == 48
    again, worker = sweep(tmp_path, CELLS[:2], concurrency=(2,))
    assert again == path
    assert head(path)["concurrency"] == [1, 2, 4]
    assert len(worker.decoded) == 24
    assert [len(read.records) for read in read_sweep(path).runs.values()] == [24, 24, 24]


class Elsewhere(Silent):
    """Starts the same sweep while one runs."""

    def __init__(self, out: Path) -> None:
        self.out, self.refused = out, 0

    def request(self, record: RequestRecord) -> None:
        with pytest.raises(EnvironmentRefused, match="in use by another specbench process"):
            sweep(self.out)
        self.refused += 1


def test_a_sweep_in_use_is_refused_and_a_refused_one_leaves_no_lock(tmp_path: Path) -> None:
    alongside = Elsewhere(tmp_path)
    path, worker = sweep(tmp_path, progress=alongside)
    assert alongside.refused == len(worker.decoded) == 40
    counts(records(path))
    sweep(tmp_path, concurrency=(1, 2))
    with RunFolder.reopen(path / "c2"), pytest.raises(EnvironmentRefused, check=wording):
        sweep(tmp_path, concurrency=(1, 2))
    RunFolder.reopen(path / "c1").close()
    sweep(tmp_path, concurrency=(1, 2))


def test_a_corrupt_head_is_named_and_a_newer_one_not_overwritten(tmp_path: Path) -> None:
    path, _ = sweep(tmp_path)
    file, good = path / "sweep.json", head(path)
    for content in (b"", b"{", b"[1]", b"{}", b'{"schema_version": 1, "cells": 3}', b"\xff\xfe", b"null"):
        file.write_bytes(content)
        for act in (lambda: sweep(tmp_path), lambda: read_sweep(path)):
            text = refusal(UsageError, act)
            assert str(file) in text
    for version in (True, "1", 1.0, 0, -1):
        file.write_text(json.dumps({**good, "schema_version": version}))
        with pytest.raises(UsageError, check=wording):
            read_sweep(path)
    newer = json.dumps({**good, "schema_version": 2})
    file.write_text(newer)
    with pytest.raises(UsageError, check=wording):
        sweep(tmp_path)
    assert file.read_text() == newer
    file.unlink()  # as the error of a damaged one says
    _, worker = sweep(tmp_path)
    assert worker.decoded == []
    assert len(read_sweep(path).cells) == 5


def test_an_error_of_a_worker_keeps_what_is_finished(tmp_path: Path) -> None:
    labels = [CELLS[0], "bad n=2"]
    with pytest.raises(UsageError, check=wording):
        sweep(tmp_path, labels)
    (path,) = tmp_path.iterdir()
    kept = counts(records(path))
    assert all("bad" not in key for key in kept)
    RunFolder.reopen(path / "c1").close()
