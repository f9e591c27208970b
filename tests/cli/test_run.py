"""``run`` and the commands that read what it leaves, on dummy weights and real prompts, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.profiling import doctor, quiet
from specbench.results.request_schema import PHASES, RequestRecord

TINY = ("run", "--model", "config:tiny", "--max-new-tokens", 12)
PROMPTS = 7  # from six on there is an interval
FILES = {"run.json", "requests.jsonl", "watch.json", "likelihoods.jsonl", "verdicts.jsonl", "summary.json", "DONE"}
COLUMNS = ["method", "TPF", "tok/s", "speedup", "e2e", "pass@1", "lossless", "cut"]


@dataclass(frozen=True)
class Finished:
    """A run, what it printed, and its folder."""

    result: Any
    folder: Path

    @property
    def requests(self) -> list[dict[str, Any]]:
        return runs.requests_on_disk(self.folder)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(runs.summary_on_disk(self.folder)["rows"])


def finish(cli: Any, out: Path, *argv: object) -> Finished:
    result = cli.ok(*TINY, *argv, "--out", out)
    (folder,) = out.iterdir()
    return Finished(result, folder)


@pytest.fixture(scope="module")
def finished(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    out = tmp_path_factory.mktemp("runs")
    return finish(cli, out, "--method", "jacobi,jacobi", "--set", "jacobi#2.n=4", "--limit", PROMPTS)


def table(text: str) -> list[list[str]]:
    """Cells of the headline table: its header and one row per method."""
    lines = text.splitlines()
    rule = next(at for at, line in enumerate(lines) if line.startswith("───"))
    below = lines[rule + 1 :]
    rows = below[: next(at for at, line in enumerate(below) if ":" in line or not line.strip())]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in (lines[rule - 1], *rows)]


def test_the_table_has_its_columns_and_a_row_for_each_method_with_ar_first(finished: Finished) -> None:
    header, *rows = table(finished.result.out)
    assert header == COLUMNS
    assert [row[0] for row in rows] == ["ar", "jacobi", "jacobi#2"]
    for row, figures in zip(rows, finished.rows, strict=True):
        assert row[1:3] == [f"{figures['tokens_per_forward']:.2f}", f"{figures['decode_tok_s']:.1f}"]
        cut = f"{figures['truncated'] / figures['requests']:.0%}"
        assert row[5:] == [f"{figures['accuracy']['passed']}/{PROMPTS}", "exact", cut]
    speedup = finished.rows[1]["speedup"]
    assert rows[0][3:5] == ["1", "1"]
    assert rows[1][4] == f"{finished.rows[1]['e2e_speedup']['value']:.2f}"
    assert rows[1][3] == f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"


def test_the_folder_holds_the_records_and_names_no_folder_of_the_machine(finished: Finished) -> None:
    assert {path.name for path in finished.folder.iterdir()} == FILES
    text = (finished.folder / "run.json").read_text()
    assert finished.folder.name.endswith(f"-humaneval-{json.loads(text)['digest'][:8]}")
    assert str(finished.folder.parent) not in text
    assert str(Path(__file__).parents[2]) not in text
    records = [RequestRecord.model_validate(line) for line in finished.requests]
    assert len({record.request_id for record in records}) == len(records) == 3 * PROMPTS
    for row in finished.rows:
        mine = [record for record in records if record.method == row["method"]]
        assert row["tokens"] == sum(len(record.output_ids) for record in mine)
        assert row["target_forwards"] == sum(len(record.accepted_lengths) for record in mine)
    assert runs.summary_on_disk(finished.folder)["complete"]


def test_prompts_are_drawn_and_the_record_and_the_head_say_how(cli: Any, finished: Finished) -> None:
    assert runs.config_on_disk(finished.folder)["task"]["taken"] == {"of": 164, "seed": 0, "held_out": 0}
    for columns in (80, 140):
        head = cli("show", finished.folder, "--verbose", columns=columns).out.splitlines()
        assert head[1:3] == [
            "greedy · at most 12 new tokens · concurrency 1", f"prompts: {PROMPTS} of 164, sampled with seed 0"
        ]  # fmt: skip
        assert head[3].startswith("layers: ")
    numbers = [int(line["prompt_id"].partition("/")[2]) for line in finished.requests if line["method"] == "ar"]
    assert len(numbers) == PROMPTS
    assert max(numbers) > 2 * PROMPTS, "not the first ones"


def test_show_json_gives_the_files_again(cli: Any, finished: Finished) -> None:
    folder = finished.folder
    shown = json.loads(cli("show", folder, "--json").out)
    assert shown == {"run": runs.config_on_disk(folder), "summary": runs.summary_on_disk(folder)}
    assert json.loads(cli("show", folder, "--requests", "--json").out)["requests"] == finished.requests


def test_list_json(cli: Any) -> None:
    expected = {
        "method": {"ar", "jacobi"}, "task": {"humaneval"}, "model": {"smollm2-135m", "config:tiny"},
        "gpu": {"h100-sxm", "h200", "b200"},
    }  # fmt: skip
    for name, some in expected.items():
        assert some <= {row[name] for row in json.loads(cli("list", f"{name}s", "--json").out)}
    rows = {row["method"]: row for row in json.loads(cli("list", "methods", "--json").out)}
    assert rows["ar"]["options"] == {}
    free = {name for name, row in rows.items() if not row["trained"] and row["lossless"]}
    assert {"logitspec", "recycling", "sam", "suffix"} <= free, "they need no training"
    assert rows["suffix"]["options"]["fallback"]["default"] is None
    assert rows["jacobi"]["options"]["block_size"] == {
        "default": 16, "description": "tokens guessed together, the verified first one included",
        "maximum": 512, "minimum": 1, "title": "Block Size", "type": "integer",
    }  # fmt: skip


def test_doctor_exits_3_exactly_when_a_check_fails(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = doctor.Check("python", "ok", "3.11"), doctor.Check("disk", "fail", "0 GiB free", "free some")
    for checks, code in (([good], 0), ([good, bad], 3)):
        monkeypatch.setattr(doctor, "doctor_checks", lambda out, found=checks: found)
        result = cli("doctor", "--out", tmp_path, "--json")
        assert result.code == code
        assert [check["status"] for check in json.loads(result.out)] == [check.status for check in checks]
    assert wording(result.error)
    assert wording(cli("doctor", "--out", tmp_path).out)


def test_doctor_exits_1_when_the_machine_was_watched_and_is_not_quiet(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, loud = (
        doctor.Check("other processes", "ok", "0%"),
        doctor.Check("other processes", "warn", "31%", "stop other work"),
    )
    blind = doctor.Check("other processes", "unknown", "not measured")
    bad, asked = doctor.Check("disk", "fail", "0 GiB free", "free some"), list[float]()
    for ready, seen, code in (
        ([], [good], 0),
        ([], [good, loud], 1),
        ([bad], [loud], 3),
        ([loud], [good], 0),
        ([], [blind], 3),
    ):

        def watched(seconds: float, *say: Any, seen: list[doctor.Check] = seen, **more: Any) -> list[doctor.Check]:
            asked.append(seconds)
            return seen

        monkeypatch.setattr(doctor, "doctor_checks", lambda out, ready=ready: list(ready))
        monkeypatch.setattr(quiet, "quiet_checks", watched)
        result = cli("doctor", "--out", tmp_path, "--watch", 10, "--json")
        assert result.code == code
        assert [check["detail"] for check in json.loads(result.out)] == [check.detail for check in [*ready, *seen]]
        if code == 1:
            assert wording(result.error)
    assert asked == [10.0] * 5
    for few in (4, 4000):
        assert "--watch" in cli.refused(2, "doctor", "--watch", few)


TRACED = ("--method", "jacobi,cllm", "--set", "jacobi.n=4", "--set", "cllm.n=4", "--limit", 2, "--no-score")


@pytest.fixture(scope="module")
def traced(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(cli, tmp_path_factory.mktemp("traced"), *TRACED, "--trace")


def test_a_trace_splits_every_step_and_adds_up(traced: Finished) -> None:
    assert runs.config_on_disk(traced.folder)["trace"] is True
    for line in traced.requests:
        split = line["phases_s"]
        assert list(split) == list(PHASES)
        assert {len(steps) for steps in split.values()} == {line["target_forwards"]}
        assert all(spent >= 0 for steps in split.values() for spent in steps)
        # The toy clock's tests ask for equality; here the machine may have turned away between two readings.
        assert 0.5 * line["decode_share_s"] <= sum(map(sum, split.values())) <= line["decode_share_s"] + 1e-5


def test_a_run_shows_the_lie_and_is_not_refused(cli: Any, liar: str, tmp_path: Path) -> None:
    _, ar, lying = table(cli.ok(*TINY, "--method", liar, "--limit", 2, "--no-score", "--out", tmp_path).out)
    assert (ar[0], lying[0], lying[-2]) == ("ar", "liar", "lossy 2/2")
