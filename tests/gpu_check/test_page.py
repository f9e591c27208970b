"""The page shows predicted next to measured figures, failures at the top, and published figures with sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_check import page, published
from benchmarks.gpu_check.catalog import PARTS
from benchmarks.gpu_check.records import NOT_MEASURED, Figure, Journal, passed
from specbench.report.claims.catalog import published_claims


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.append(
        "device", rehearse=False, name="NVIDIA <X>", free_bytes=3 << 30, versions={"torch": "9", "triton": None}
    )
    return journal


def written(journal: Journal, *figures: Figure, state: str = "done") -> tuple[str, str]:
    journal.append("began", part="steps")
    return written_on(journal, *figures, state=state)


def written_on(journal: Journal, *figures: Figure, state: str) -> tuple[str, str]:
    """The pages, once the part that has begun has ended."""
    for figure in figures:
        journal.figure("steps", figure)
    journal.append("ended", part="steps", state=state, why="" if state == "done" else "ended by SIGKILL", seconds=2.0)
    page.write(journal, PARTS)
    one, other = (journal.path.with_name(f"gpu-check.{kind}").read_text() for kind in ("md", "html"))
    return one, other


def test_a_figure_stands_next_to_its_prediction(journal: Journal) -> None:
    figure = Figure(
        "AR step", 6.0, "ms", "<= 5", "context 8", "qwen3-8b", "ar_ms", predicted=4.0, basis="9 kernels (assumed)"
    )
    text, html = written(journal, figure)
    row = "| qwen3-8b: AR step | 6 ms | 4 | 1.50 | <= 5: MISSED | context 8; predicted: 9 kernels (assumed) |"
    assert row in text
    glance = text[text.index("At a glance") : text.index("## The") if "## The" in text else None]
    assert "| qwen3-8b: AR step | 6 ms | 4 | 1.50 | <= 5: MISSED |" in glance
    assert "NVIDIA &lt;X&gt;, 3.0 GiB free, torch 9." in html
    assert '<td class="missed">&lt;= 5: MISSED</td>' in html
    assert "<script" not in html


def test_a_missed_speed_is_no_failure_and_a_wrong_answer_is_one(journal: Journal) -> None:
    text, _ = written(journal, Figure("slow", 0.1, "share", ">= 0.8"))
    assert passed(journal.outcomes())
    assert "What is wrong" not in text
    text, _ = written(journal, Figure("answers that differ", 2, "failures", "== 0", "first at token 3"))
    assert not passed(journal.outcomes())
    assert text.index("## What is wrong") < text.index("| answers that differ | 2 | first at token 3 |")


def test_a_part_without_an_end_is_named_first(journal: Journal) -> None:
    text, html = written(journal, Figure("one", 1.0), state="failed")
    assert text.index("| steps | ended by SIGKILL |") < text.index("| one | 1 |")
    assert "<section class=bad>" in html


def test_a_part_without_time_is_no_failure(journal: Journal) -> None:
    text, html = written(journal, Figure("one", 1.0), state=NOT_MEASURED)
    assert not passed(journal.outcomes()), "nothing was measured to its end"
    assert "Parts that failed" not in text
    assert text.index("## Parts that were not measured") < text.index("| steps | ended by SIGKILL |")
    assert "class=bad" not in html
    journal.append("began", part="jetspec")
    journal.append("ended", part="jetspec", state="done", why="", seconds=1.0)
    assert passed(journal.outcomes())


def test_what_is_no_finite_number_is_left_out(journal: Journal) -> None:
    text, _ = written(journal, Figure("ratio", float("nan"), aim=">= 1", predicted=float("inf")))
    assert "| ratio | – |  |  |  |" in text


def test_published_figures_are_those_of_the_catalog_with_their_sources(journal: Journal) -> None:
    text, _ = written(journal, Figure("AR step", 6.0, "ms", shape="qwen3-8b"))
    claim = next(one for one in published_claims().claims if one.id == "jetspec-t0/jetspec-64-nodes-gsm8k")
    assert claim.tpf
    assert claim.speedup
    ratio = f"{claim.tpf / claim.speedup:.3g}"
    row = f"| qwen3-8b: jetspec 64 nodes on gsm8k |  |  | {claim.speedup} | {claim.tpf} | {ratio} |"
    before = text[: text.index(row)]
    heading = f"## {claim.paper}, {claim.source}, {claim.gpu}"
    assert before.rindex("## ") == before.rindex(heading), "its source stands over it"
    assert claim.caveat in before[before.rindex(heading) :]
    rows = published.rows(["qwen3-8b", "qwen2.5-7b", "qwen3-8b with 9 of 36 layers"])
    assert rows
    assert all(row.source and row.gpu for row in rows)
    assert {row.shape for row in rows} == {"qwen3-8b", "qwen2.5-7b"}
    assert "eagle" not in " ".join(row.what for row in rows)
