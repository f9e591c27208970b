"""What memory gave, as a run keeps it, and the share of it that a method's forwards took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.runs import record

from specbench.analysis.frame import load_methods
from specbench.analysis.read import read_run
from specbench.analysis.summary import RunContents, summarise
from specbench.results.bandwidth import BANDWIDTH, Bandwidth, ForwardBytes, Reading
from specbench.results.folder import RunFolder
from specbench.results.summary_schema import BandwidthFigures, RunSummary

GB = 1e9
#: A thousand million bytes of weights, a tenth of a million for each cached token.
FLAT = ForwardBytes(contexts=[0, 100], nbytes=[1.0 * GB, 1.01 * GB])


def read(*speeds: float, threads: int = 2, **more: Any) -> Bandwidth:
    """Readings of so many GB/s, of a run of two methods."""
    readings = [Reading(segment=at, threads=threads, bytes_per_s=speed * GB) for at, speed in enumerate(speeds)]
    return Bandwidth(**{"forwards": {"ar": FLAT, "jf": FLAT}, "readings": readings, **more})


def shares(found: Bandwidth | None, *, concurrency: int = 1, prompts: int = 2) -> RunSummary:
    """AR with 10 forwards in 1 s per prompt, and jf with 5 in 0.75 s, after prompts of 5 tokens."""
    records = [
        each
        for at in range(prompts)
        for each in (
            record("ar", f"p/{at}", tokens=11, forwards=10, decode_s=1.0),
            record("jf", f"p/{at}", tokens=11, forwards=5, decode_s=0.75),
        )
    ]
    return summarise(RunContents(runs.run_config(["jf"], prompts, concurrency=concurrency), records, bandwidth=found))


def test_the_share_is_bytes_over_decode_seconds_over_the_median_reading() -> None:
    ar, jf = shares(read(10.0, 40.0, 20.0)).rows
    # Cached tokens per forward: AR 5 to 14, mean 9.5; jf, with two tokens per forward, 5 to 13, mean 9.
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


def test_experts_of_further_rows_count() -> None:
    mixture = FLAT.model_copy(update={"expert_bytes": {1: 0.0, 3: 0.5 * GB}})
    records = [record("jf", "p/0", tokens=11, forwards=5, decode_s=1.0).model_copy(update={"tree_rows": 10})]
    plain, routed = (read(10.0, forwards={"jf": each}).share("jf", records) for each in (FLAT, mixture))
    assert plain is not None
    assert routed is not None
    assert routed - plain == pytest.approx(5 * 0.25 / 1.0 / 10)


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


def test_a_run_keeps_it_and_an_unfinished_one_is_shown_with_it(tmp_path: Path) -> None:
    records = [record("ar", "p/0", tokens=11, forwards=10), record("jf", "p/0", tokens=11, forwards=5)]
    path = runs.folder(tmp_path, runs.run_config(["jf"], 2), records, finish=False)
    assert RunFolder.load(path).read(BANDWIDTH) is None
    digest = RunFolder.load(path).run["digest"]
    with RunFolder.at(path, digest, {}) as folder:
        folder.write(BANDWIDTH, read(20.0))
        assert folder.read(BANDWIDTH) == read(20.0)
        folder.write(BANDWIDTH, read(20.0, 30.0))
    assert RunFolder.load(path).read(BANDWIDTH) == read(20.0, 30.0)
    assert [row.bandwidth_share for row in read_run(path).summary.rows] == [
        pytest.approx(10 * (1 + 9.5e-4) / 25), pytest.approx(5 * (1 + 9e-4) / 25)
    ]  # fmt: skip
    assert "bandwidth_share" in load_methods(path)
