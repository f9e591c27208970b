"""Rows that a client timed, against sums and blocks by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import runs
from support.asserting import known

from specbench.analysis.imports.served import MEDIANS, ServedRow, check_import, compare_served, served_rows
from specbench.common import UsageError
from specbench.results import ImportedRequest, ImportedRow, ImportedRun, Tool, write_import
from specbench.results.imports.foreign import read_results

FILES = Path(__file__).parents[1] / "results" / "imports"


def served(
    label: str,
    seconds: Sequence[float],
    *,
    every: float = 10.0,
    prompts: Sequence[int] = range(100, 200),
    tool: Tool = "vllm bench serve",
    prompts_sha256: str = "",
    times: dict[str, dict[str, float]] | None = None,
) -> tuple[ImportedRow, list[ImportedRequest]]:
    """A row of requests of eleven tokens, each sent ``every`` seconds after the one before."""
    requests = [
        ImportedRequest(
            row=label, prompt=str(at), prompt_tokens=prompts[at], output_tokens=11, start_s=at * every, ttft_s=0.5,
            decode_s=decode, latency_s=0.5 + decode,
        )
        for at, decode in enumerate(seconds)
    ]  # fmt: skip
    row = ImportedRow(
        label=label, tool=tool, files={}, completed=len(seconds) or 9, prompts_sha256=prompts_sha256,
        times=times or {},  # type: ignore[arg-type]
    )  # fmt: skip
    return row, requests


def rows(*found: tuple[ImportedRow, list[ImportedRequest]]) -> list[ServedRow]:
    return served_rows(
        ImportedRun(Path("x"), [row for row, _ in found], {row.label: requests for row, requests in found})
    )


SLOW, FAST = [2.0, 2.2, 1.8, 2.1, 1.9, 2.0, 2.0], [1.0, 1.1, 0.9, 1.0, 1.0, 1.2, 0.8]


def test_speedup_is_the_ratio_of_seconds_per_token() -> None:
    _, fast = rows(served("a", SLOW), served("b", FAST))
    assert known(fast.speedup).value == pytest.approx(sum(SLOW) / sum(FAST))
    assert known(fast.tpot_s).p50.value == pytest.approx(statistics.median(FAST) / 10)  # type: ignore[union-attr]
    assert known(fast.speedup).verdict == "faster"


def test_equal_prompts_in_order_are_paired() -> None:
    assert rows(served("a", SLOW), served("b", FAST))[1].paired
    for other in (
        served("b", FAST, prompts=range(101, 120)),
        served("b", FAST[:-1]),
        served("b", FAST, tool="guidellm"),
        served("b", FAST, tool="aiperf"),
    ):
        assert not rows(served("a", SLOW), other)[1].paired
    same = [50] * 9  # all equally long, so they might be any prompts
    assert not rows(served("a", SLOW, prompts=same), served("b", FAST, prompts=same))[1].paired
    seeded = [served(name, FAST, prompts=same, tool="aiperf", prompts_sha256="f" * 64) for name in "ab"]
    assert rows(*seeded)[1].paired


def test_pairing_narrows_the_interval() -> None:
    slow = [1.0, 4.0, 2.0, 8.0, 3.0, 6.0, 5.0]
    fast = [0.5 * each for each in slow]
    paired = rows(served("a", slow), served("b", fast))[1].speedup
    apart = rows(served("a", slow), served("b", fast, prompts=range(7)))[1].speedup
    assert known(paired).interval == pytest.approx((2.0, 2.0))
    low, high = known(known(apart).interval)
    assert low < 1.5
    assert high > 2.5


def test_requests_that_overlap_are_one_block() -> None:
    together = rows(served("a", SLOW * 4, every=1.0))[0]  # 28 requests of 2.5 s: 2.4 in flight, so 12 a block
    blocks = [together.units.count(unit) for unit in dict.fromkeys(together.units)]
    assert blocks == [14, 14]
    assert known(together.latency_s).p50.interval is None  # type: ignore[union-attr]
    alone = rows(served("a", SLOW))[0]
    assert len({*alone.units}) == 7
    assert known(alone.latency_s).p50.interval is not None  # type: ignore[union-attr]


def test_only_aggregates_compare_medians() -> None:
    a, b = (served(name, [], times={"tpot_s": {"p50": p50}}) for name, p50 in (("a", 0.02), ("b", 0.01)))
    found = known(rows(a, b)[1].speedup)
    assert (found.value, found.interval, found.verdict) == (2.0, None, MEDIANS)


def test_without_an_answer_there_is_no_time() -> None:
    row, _ = served("a", [], times={"ttft_s": {"p50": 0.0}})
    none = ImportedRun(Path("x"), [row.model_copy(update={"completed": 0, "failed": 9})], {"a": []})
    assert served_rows(none)[0].ttft_s is None


def test_a_run_is_compared_as_a_client_sees_it(tmp_path: Path) -> None:
    run = runs.derived(tmp_path / "run")
    folder = write_import(tmp_path, "0.1", read_results(FILES / "vllm_ar.json", "base"))
    imported, ar, jetspec = compare_served([str(folder), str(run)])
    assert [(row.run, row.method) for row in (imported, ar, jetspec)] == [("A", "base"), ("B", "ar"), ("B", "jetspec")]
    assert (imported.measured_by, ar.measured_by) == ("vllm bench serve (version not in its file)", "specbench")
    records = [record for record in runs.read_run(run).records if record.method == "ar"]
    pace = sum(record.decode_s for record in records) / sum(record.decoded_tokens for record in records)
    done = [request for request in imported.requests if request.tpot_s is not None]
    own = sum(known(request.decode_s) for request in done) / sum(known(request.output_tokens) - 1 for request in done)
    assert known(ar.speedup).value == pytest.approx(own / pace)
    assert not ar.paired
    (alone, named) = compare_served([f"{run}:jetspec", f"{folder}:base"])
    assert (alone.method, named.method) == ("jetspec", "base")
    with pytest.raises(UsageError, match="method"):
        compare_served([str(run), f"{folder}:nothing"])


def test_checks_call_nothing_fine_that_is_unknown() -> None:
    row, requests = served("a", SLOW)
    row = row.model_copy(update={"failed": 1})
    found = {check.name: check.state for check in check_import(ImportedRun(Path("x"), [row], {"a": requests}))}
    assert (found["failed requests"], found["few requests"]) == ("misleads", "misleads")
    assert {found[name] for name in ("clock", "other texts", "disturbed machine", "weights")} == {"unknown"}
