"""Files of other tools: real ones of vllm bench serve 0.32.0, guidellm 0.8.1 and aiperf 0.13.0, shortened.

All were measured against a server that streams made-up tokens and fails its fifth request. The tools' own figures are
the oracle for what is computed from the requests.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common import UsageError
from specbench.results.imports.foreign import Measured, read_results
from specbench.results.imports.schema import read_import, write_import

FILES = Path(__file__).with_name("imports")


def one(path: Path) -> Measured:
    (found,) = read_results(path, "row")
    return found


def changed(tmp_path: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy of a file whose content was changed."""
    content = json.loads((FILES / name).read_text(encoding="utf-8"))
    change(content)
    file = tmp_path / name
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "name", ["vllm_ar.json", "vllm_spec.json", "aiperf_ar_aiperf.json", "aiperf_spec.jsonl", "guidellm.json"]
)
def test_requests_have_the_figures_that_the_tool_computed(name: str) -> None:
    row, requests = one(FILES / name)
    done = [request for request in requests if request.state == "completed"]
    failed = [request for request in requests if request.state == "failed"]
    assert (len(done), len(failed)) == (row.completed, row.failed)
    assert sum(request.output_tokens or 0 for request in done) == row.output_tokens
    for time in ("ttft_s", "latency_s"):
        if time in row.times:
            values = [getattr(request, time) for request in done]
            assert statistics.mean(values) == pytest.approx(row.times[time]["mean"])
    tpot = [request.tpot_s for request in done if request.tpot_s is not None]
    assert statistics.mean(tpot) == pytest.approx(row.times["tpot_s"]["mean"])
    if row.tool != "guidellm":  # its percentiles are values of the sample
        assert statistics.median(tpot) == pytest.approx(row.times["tpot_s"]["p50"])
        gaps = [gap for request in done for gap in request.gaps_s]
        assert statistics.median(gaps) == pytest.approx(row.times["itl_s"]["p50"])


def test_facts_of_each_tool_are_kept() -> None:
    vllm, guidellm, aiperf = (one(FILES / name)[0] for name in ("vllm_spec.json", "guidellm.json", "aiperf_ar.jsonl"))
    assert (vllm.version, guidellm.version, aiperf.version) == ("", "0.8.1", "0.13.0")
    assert (vllm.load["request_rate"], vllm.load["max_concurrency"], vllm.load["burstiness"]) == ("20", "4", "1")
    assert (guidellm.load["streams"], aiperf.load["concurrency"], aiperf.load["slo inter_token_latency"]) == (
        "2", "2", "20",
    )  # fmt: skip
    assert vllm.figures["spec_decode_num_drafts"] == 31
    assert vllm.figures["spec_decode_acceptance_length"] == pytest.approx(1 + 28 / 31)
    assert vllm.figures["spec_decode_per_position_acceptance_rates"] == pytest.approx([17 / 31, 11 / 31])
    assert set(aiperf.files) == {"aiperf_ar.jsonl", "aiperf_ar_aiperf.json"}


def test_only_aggregates_have_no_requests(tmp_path: Path) -> None:
    def plain(content: dict[str, Any]) -> None:
        for name in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"):
            del content[name]

    row, requests = one(changed(tmp_path, "vllm_ar.json", plain))
    assert (requests, row.completed, row.failed) == ([], 7, 1)
    alone = shutil.copy(FILES / "aiperf_ar_aiperf.json", tmp_path)
    assert one(Path(alone))[1] == []


def test_a_sample_of_requests_is_not_used(tmp_path: Path) -> None:
    file = changed(tmp_path, "guidellm.json", lambda content: content["benchmarks"][0]["requests"]["successful"].pop())
    row, requests = one(file)
    assert (requests, row.completed) == ([], 6)
    assert row.times["ttft_s"]["p50"] == pytest.approx(0.01592, abs=1e-5)


def test_requests_of_the_warm_up_do_not_count(tmp_path: Path) -> None:
    def later(content: Any) -> None:
        benchmark = content["benchmarks"][0]
        early = json.loads(json.dumps(benchmark["requests"]["successful"][0]))
        for name in early["info"]["timings"]:
            if isinstance(early["info"]["timings"][name], float):
                early["info"]["timings"][name] -= 5
        benchmark["requests"]["errored"] = [early]

    assert len(one(changed(tmp_path, "guidellm.json", later))[1]) == 6


def test_several_benchmarks_in_a_file_are_rows(tmp_path: Path) -> None:
    both = tmp_path / "appended.json"
    both.write_text("\n".join((FILES / name).read_text() for name in ("vllm_ar.json", "vllm_spec.json")))
    assert [row.label for row, _ in read_results(both, "x")] == ["x@1", "x@2"]
    file = changed(tmp_path, "guidellm.json", lambda content: content["benchmarks"].append(content["benchmarks"][0]))
    assert [row.label for row, _ in read_results(file, "y")] == ["y@1", "y@2"]


def setting(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vllm_ar.json", setting("ttfts", 0, to=float("nan"))),
        ("vllm_ar.json", setting("ttfts", 0, to=-1.0)),
        ("vllm_ar.json", setting("latencies", 0, to=1e300)),
        ("vllm_ar.json", setting("output_lens", 0, to=1 << 70)),
        ("vllm_ar.json", setting("output_lens", 0, to=7)),
        ("vllm_ar.json", setting("errors", to=[])),
        ("vllm_ar.json", setting("errors", 0, to="refused")),
        ("vllm_ar.json", setting("median_ttft_ms", to="fast")),
        ("vllm_ar.json", setting("spec_decode_acceptance_rate", to={})),
        ("vllm_ar.json", lambda content: content.pop("output_throughput")),
        ("guidellm.json", setting("benchmarks", to=[])),
        ("guidellm.json", setting("benchmarks", 0, "metrics", "request_totals", to=None)),
        ("guidellm.json", setting("benchmarks", 0, "requests", "successful", 0, "info", "timings", to=0)),
        ("aiperf_ar_aiperf.json", setting("time_to_first_token", "unit", to="fortnights")),
        ("aiperf_ar_aiperf.json", setting("input_config", to=3)),
        ("aiperf_ar_aiperf.json", setting("request_count", "avg", to=1e300)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_damage_is_one_sentence(tmp_path: Path, name: str, change: Callable[[Any], None]) -> None:
    with pytest.raises(UsageError, match=name, check=wording):
        read_results(changed(tmp_path, name, change), "x")


@pytest.mark.parametrize(
    ("name", "content"),
    [("cut.json", '{"endpoint_type": "openai", "num_prompts": 3, "ttfts": [0.1,'), ("empty.json", ""),
     ("list.json", "[1]"), ("other.json", '{"a": 1}'), ("table.csv", "a,b"),
     ("alone.jsonl", '{"metadata": {"benchmark_phase": "profiling"}, "metrics": {}}')],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=name, check=wording):
        read_results(tmp_path / name, "x")


def test_a_folder_is_read_as_written(tmp_path: Path) -> None:
    found = [*read_results(FILES / "vllm_ar.json", "ar"), *read_results(FILES / "guidellm.json", "g")]
    run = read_import(write_import(tmp_path, "0.1", found))
    assert [row.label for row in run.rows] == ["ar", "g"]
    assert {label: list(requests) for label, requests in run.requests.items()} == {
        row.label: requests for row, requests in found
    }


def test_a_folder_without_some_requests_is_refused(tmp_path: Path) -> None:
    folder = write_import(tmp_path, "0.1", read_results(FILES / "vllm_ar.json", "ar"))
    lines = folder / "requests.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match=r"requests\.jsonl"):
        read_import(folder)
