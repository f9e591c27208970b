"""What memory gave, as a run keeps it, and the share of it that a method's forwards took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.runs import record
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.results.bandwidth import Bandwidth, ForwardBytes, Reading
from specbench.results.bandwidth_line import bandwidth_line
from specbench.results.folder import RunFolder
from specbench.results.frame import load_methods
from specbench.results.read import read_run
from specbench.results.summary import summarise
from specbench.results.summary_schema import BandwidthFigures, RunSummary

GB = 1e9
#: A thousand million bytes of weights, a tenth of a million for each cached token.
FLAT = ForwardBytes(contexts=[0, 100], nbytes=[1.0 * GB, 1.01 * GB])


def read(*speeds: float, threads: int = 2, **more: Any) -> Bandwidth:
    """Readings of so many GB/s, of a run of two methods."""
    readings = [Reading(segment=at, threads=threads, bytes_per_s=speed * GB) for at, speed in enumerate(speeds)]
    return Bandwidth(**{"forwards": {"ar": FLAT, "jf": FLAT}, "readings": readings, **more})


def shares(found: Bandwidth | None, *, concurrency: int = 1, prompts: int = 2) -> RunSummary:
    """AR with 10 forwards in a second for each prompt, and jf with 5 in three quarters, behind prompts of 5 tokens."""
    records = [
        each
        for at in range(prompts)
        for each in (
            record("ar", f"p/{at}", tokens=11, forwards=10, decode_s=1.0),
            record("jf", f"p/{at}", tokens=11, forwards=5, decode_s=0.75),
        )
    ]
    return summarise(runs.run_config(["jf"], prompts, concurrency=concurrency), records, bandwidth=found)


def test_the_share_is_bytes_over_decode_seconds_over_the_median_reading() -> None:
    ar, jf = shares(read(10.0, 40.0, 20.0)).rows
    # Cached behind each forward: AR 5 to 14, in the mean 9.5; jf, two tokens a forward, 5 to 13, in the mean 9.
    assert ar.bandwidth_share == pytest.approx(10 * (1 + 9.5e-4) / 1.0 / 20)
    assert jf.bandwidth_share == pytest.approx(5 * (1 + 9e-4) / 0.75 / 20)
    # Beyond its window a layer reads no more: the mean context is no place on a straight line from 0 to 100.
    windowed = ForwardBytes(contexts=[0, 4, 100], nbytes=[1.0 * GB, 1.4 * GB, 1.4 * GB])
    (ar, _) = shares(read(20.0, forwards={"ar": windowed})).rows
    assert ar.bandwidth_share == pytest.approx(10 * 1.4 / 1.0 / 20)


def test_of_unequal_requests_each_forward_counts_as_much() -> None:
    records = [
        record("ar", "p/0", tokens=2, forwards=1, decode_s=0.5),
        record("ar", "p/1", tokens=4, forwards=3, decode_s=1.5).model_copy(update={"prompt_tokens": 95}),
        record("ar", "p/2", tokens=1, forwards=0, decode_s=0.0).model_copy(update={"prompt_tokens": 10_000}),
    ]
    mean = (5 + 95 + 96 + 97) / 4
    assert read(10.0).share("ar", records) == pytest.approx(4 * (1 + mean * 1e-4) / 2.0 / 10)


@pytest.mark.parametrize(
    ("found", "more"),
    [
        (None, {}),
        (read(), {}),
        (read(refused="no C++ compiler was found"), {}),
        (read(10.0, forwards={}), {}),
        (read(10.0), {"concurrency": 4}),
        (read(10.0), {"prompts": 0}),
    ],
)
def test_without_readings_and_where_a_forward_serves_several_there_is_no_share(
    found: Bandwidth | None, more: Any
) -> None:
    summary = shares(found, **more)
    assert [row.bandwidth_share for row in summary.rows] == [None, None]
    assert ("bandwidth" in summary.written()) == (found is not None)


def test_a_summary_says_what_was_read() -> None:
    figures = shares(read(10.0, 40.0, 20.0)).bandwidth
    assert figures == BandwidthFigures(
        bytes_per_s=20 * GB, low_bytes_per_s=10 * GB, high_bytes_per_s=40 * GB, readings=3, threads=[2]
    )
    assert shares(read(refused="why")).bandwidth == BandwidthFigures(refused="why")
    assert shares(None).bandwidth is None


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (None, ""),
        (read(), ""),
        (read(refused="no compiler"), "memory bandwidth was not read: no compiler"),
        (read(22.14, threads=1), "memory 22.1 GB/s (1 thread); ar reads 0.45 of it, jf 0.30"),
        (read(20.31, 23.0, 22.1), "memory 22.1 GB/s (20.3 to 23.0, 2 threads); ar reads 0.45 of it, jf 0.30"),
        (read(20.0, refused="later"), "memory 20.0 GB/s (2 threads); ar reads 0.50 of it, jf 0.33"),
        (read(20.0, forwards={}), "memory 20.0 GB/s (2 threads)"),
    ],
)
def test_the_line_says_what_there_is(found: Bandwidth | None, line: str) -> None:
    assert bandwidth_line(shares(found)) == line


def test_the_line_names_a_few_methods_and_of_many_the_range() -> None:
    summary = shares(read(20.0))
    ar, jf = summary.rows

    def line(*others: float) -> str:
        rows = [jf.model_copy(update={"method": f"m{at}", "bandwidth_share": x}) for at, x in enumerate(others)]
        return bandwidth_line(summary.model_copy(update={"rows": [ar, *rows]}))

    assert line(0.3, 0.2, 0.4).endswith("ar reads 0.50 of it, m0 0.30, m1 0.20, m2 0.40")
    assert line(0.3, 0.2, 0.4, 0.1).endswith("ar reads 0.50 of it, the others 0.10 to 0.40")


def test_threads_that_changed_are_both_told() -> None:
    found = read(10.0, 20.0)
    more = found.model_copy(update={"readings": [*found.readings, Reading(segment=2, threads=1, bytes_per_s=5 * GB)]})
    assert bandwidth_line(shares(more)).startswith("memory 10.0 GB/s (5.0 to 20.0, 1 or 2 threads); ")


def test_a_run_keeps_it_and_an_unfinished_one_is_shown_with_it(tmp_path: Path) -> None:
    records = [record("ar", "p/0", tokens=11, forwards=10), record("jf", "p/0", tokens=11, forwards=5)]
    path = runs.folder(tmp_path, runs.run_config(["jf"], 2), records, finish=False)
    assert RunFolder.load(path).bandwidth() is None
    digest = RunFolder.load(path).run["digest"]
    with RunFolder.at(path, digest, {}) as folder:
        folder.keep_bandwidth(read(20.0))
        assert folder.bandwidth() == read(20.0)
        folder.keep_bandwidth(read(20.0, 30.0))
    assert RunFolder.load(path).bandwidth() == read(20.0, 30.0)
    assert [row.bandwidth_share for row in read_run(path).summary.rows] == [
        pytest.approx(10 * (1 + 9.5e-4) / 25), pytest.approx(5 * (1 + 9e-4) / 25)
    ]  # fmt: skip
    assert "bandwidth_share" in load_methods(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["readings"][0].update(bytes_per_s=0),
        lambda found: found["readings"][0].update(threads=0),
        lambda found: found["forwards"]["ar"].update(contexts=[100, 0]),
        lambda found: found["forwards"]["ar"].update(contexts=[0]),
        lambda found: found["forwards"]["ar"].update(contexts=[], nbytes=[]),
        lambda found: found.update(more=1),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: Any, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "ar-prompts", "0" * 64, {}) as folder:
        content = json.loads(json.dumps(read(10.0).written()))
        change(content)
        (folder.path / "bandwidth.json").write_text(json.dumps(content))
        with pytest.raises(UsageError, check=wording):
            folder.bandwidth()
