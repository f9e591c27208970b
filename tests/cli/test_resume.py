"""SIGKILL at any moment, the same command again: the counts are those of a run that no one killed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import asserting, runs
from support.wording import wording

from specbench.results.request_log import RequestLog

PROMPTS, METHODS = 3, 2
TOTAL = PROMPTS * METHODS
COMMAND = (
    *("run", "--model", "config:tiny", "--limit", PROMPTS, "--max-new-tokens", 16, "--temperature", 0.7, "--seed", 3),
    "--out",
)
TIMES = {
    "decode_tok_s", "e2e_tok_s", "step_s", "ttft_median_s", "latency_median_s", "tpot_median_s", "speedup",
    "e2e_speedup", "ttft_speedup", "positions", "step_ratio", "peak_memory_bytes", "gpu",
    "ttft_s", "tpot_s", "itl_s", "latency_s", "contexts",
}  # fmt: skip
WHEN = {
    "start_s", "segment", "ttft_s", "decode_s", "latency_s", "prefill_share_s", "decode_share_s", "step_s", "gap_s",
    "peak_memory_bytes", "gpu",
}  # fmt: skip


def counts(folder: Path) -> dict[str, Any]:
    summary = runs.summary_on_disk(folder)
    del summary["fastest"]
    summary.pop("disturbed", None)  # what other processes did meanwhile
    for row in summary["rows"]:
        assert row.keys() >= TIMES
        for name in TIMES:
            del row[name]
    return summary


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Requests by key, without what depends on when they ran."""
    found = runs.requests_on_disk(folder)
    by_key = {line["request_id"]: {name: value for name, value in line.items() if name not in WHEN} for line in found}
    assert len(by_key) == len(found), "a request is there twice"
    return by_key


def verdicts(folder: Path) -> dict[str, bool]:
    found = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    return {line["request"]: line["passed"] for line in found}


def test_killed_runs_end_with_the_counts_of_an_unbroken_one(cli: Any, tmp_path: Path) -> None:
    unbroken, out = tmp_path / "unbroken", tmp_path / "out"
    assert cli(*COMMAND, unbroken).code == 0
    (reference,) = unbroken.iterdir()

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    # At any moment (perhaps before the first request), and when only losslessness and verdicts are missing.
    moments = [rng.randrange(TOTAL - 4), TOTAL]
    kept = []
    for requests in moments:
        asserting.killed(
            tmp_path / "output", *COMMAND, out,
            when=lambda: any(len(runs.requests_on_disk(folder)) >= requests for folder in out.glob("[!.]*")),  # noqa: B023
            delay=rng.uniform(0, 0.03) if requests < TOTAL else 0,
        )  # fmt: skip
        (folder,) = out.glob("[!.]*")  # each repetition went on in the first one's folder
        kept.append(len(runs.requests_on_disk(folder)))
        assert not (folder / "DONE").exists()
    reported = f"seed {seed}: killed with {kept} of {TOTAL} requests on disk"
    assert kept == sorted(kept), reported
    shown = cli("show", folder)
    assert shown.code == 0, reported

    last = cli(*COMMAND, out)
    assert last.code == 0, reported
    assert all(part in " ".join(last.err.split()) for part in (f"{TOTAL}", f"{TOTAL}"))
    assert list(out.iterdir()) == [folder], reported
    assert answers(folder) == answers(reference), reported
    assert verdicts(folder) == verdicts(reference), reported
    assert counts(folder) == counts(reference), reported
    assert (folder / "DONE").exists()


def test_a_record_that_does_not_fit_is_named_when_a_run_goes_on(cli: Any, tmp_path: Path) -> None:
    command = ("run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 4, "--no-score")
    folder = cli.made(tmp_path, *command)
    (folder / "DONE").unlink()
    first, *others = runs.requests_on_disk(folder)
    del first["accepted_lengths"]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [first, *others]))
    error = cli.refused(2, *command, "--out", tmp_path)
    assert wording(error)
    assert wording(cli("show", folder).error)
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in others))
    assert cli.made(tmp_path, *command) == folder
    assert len(runs.requests_on_disk(folder)) == 1 + len(others)


# Three rows next to AR: two that learn from earlier requests, one of them as half of a pair, and one that does not.
STATEFUL = {"suffix", "pld#2"}
WARM = (
    *("run", "--model", "config:tiny", "--method", "ar,suffix,pld,pld", "--limit", 3, "--repeats", 2),
    *(
        "--set",
        "suffix.requests=9",
        "--set",
        "suffix.min_prob=0",
        "--set",
        "pld#2.fallback=recycling budget=9 warm=true",
    ),
    *("--set", "pld.full_only=false", "--max-new-tokens", 24, "--no-score"),
)


@pytest.fixture(scope="module")
def unbroken(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = cli.made(tmp_path_factory.mktemp("unbroken"), *WARM)
    return folder


def breaking(monkeypatch: pytest.MonkeyPatch, stop: Any) -> None:
    """Has the next runs end by Ctrl-C where ``stop`` says so of the lines so far and the next one."""
    append = RequestLog.append

    def appending(self: RequestLog, obj: Any) -> None:
        if stop([*self.read()], obj):
            raise KeyboardInterrupt
        append(self, obj)

    monkeypatch.setattr(RequestLog, "append", appending)


def of_rows(lines: list[bytes]) -> dict[str, list[bytes]]:
    """Lines as they are on disk, by their row."""
    found: dict[str, list[bytes]] = {}
    for line in lines:
        found.setdefault(json.loads(line)["method"], []).append(line)
    return found


def whole_lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def begun(lines: list[dict[str, Any]], repeat: int) -> dict[str, int]:
    """How many requests of a repeat each stateful row has."""
    return {row: sum((line["method"], line["repeat"]) == (row, repeat) for line in lines) for row in sorted(STATEFUL)}


def test_a_row_that_learns_and_is_broken_off_starts_again_and_nothing_is_lost(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    places = [(line["method"], line["repeat"], line.get("place")) for line in runs.requests_on_disk(unbroken)]
    for row in ("ar", "suffix", "pld", "pld#2"):
        for repeat in (0, 1):
            found = [place for method, at, place in places if (method, at) == (row, repeat)]
            assert found == ([1, 2, 3] if row in STATEFUL else [None] * 3)

    # Twice in the middle of both rows: in the first repeat, then in the second one, with a line that is torn.
    before: list[bytes] = []
    aside: list[bytes] = []
    for repeat in (0, 1):
        with monkeypatch.context() as patched:
            breaking(patched, lambda lines, _: set(begun(lines, repeat).values()) == {2})  # noqa: B023
            assert cli(*WARM, "--out", tmp_path).code == 130
        (folder,) = tmp_path.iterdir()
        log = folder / "requests.jsonl"
        rows, older = of_rows(whole_lines(log)), of_rows(before)
        if repeat:  # what stood when it went on: what was there, but for the two rows, which began again
            with log.open("ab") as torn:
                torn.write(b'{"request_id":"ar|torn')
            for row in ("ar", "pld"):
                assert rows[row][: len(older[row])] == older[row], "decoded once, and not timed anew"
            aside = whole_lines(folder / "requests.restarted.jsonl")
            assert sorted(aside) == sorted(line for row in STATEFUL for line in older[row]), "nothing is lost"
        before = whole_lines(log)
    complete = {line for line in before if json.loads(line)["repeat"] == 0}
    left = [line for line in before if json.loads(line)["method"] in STATEFUL and line not in complete]

    result = cli.ok(*WARM, "--out", tmp_path, columns=200)
    assert list(tmp_path.iterdir()) == [folder]
    for row in STATEFUL:
        assert (
            result.err.count(f"{row} learns from earlier requests and was interrupted; it starts again, 2 requests")
            == 1
        )
    assert result.err.count("starts again") == 2, "rows that learn nothing go on"
    after = whole_lines(log)
    assert complete <= set(after), "a repeat that was complete stays"
    assert [line for line in before if line not in left] == after[: len(before) - len(left)]
    assert whole_lines(folder / "requests.restarted.jsonl") == aside + left
    assert answers(folder) == answers(unbroken)
    assert counts(folder) == counts(unbroken)
    assert (folder / "DONE").exists()


def test_rows_that_are_complete_or_not_begun_do_not_start_again(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    """All that is missing is another row's, and of the second repeat nothing is there."""
    with monkeypatch.context() as patched:
        breaking(patched, lambda lines, next_one: next_one["repeat"] == 1)
        assert cli(*WARM, "--out", tmp_path).code == 130
    (folder,) = tmp_path.iterdir()
    lines = [line for line in whole_lines(folder / "requests.jsonl") if b'"method":"pld",' not in line]
    (folder / "requests.jsonl").write_bytes(b"".join(lines))
    result = cli.ok(*WARM, "--out", tmp_path)
    assert "starts again" not in result.err
    assert whole_lines(folder / "requests.jsonl")[: len(lines)] == lines
    assert not (folder / "requests.restarted.jsonl").exists()
    assert answers(folder) == answers(unbroken)


def test_such_a_run_is_killed_at_any_moment(cli: Any, tmp_path: Path, unbroken: Path) -> None:
    seed = random.randrange(1 << 32)
    rng, out = random.Random(seed), tmp_path / "out"
    for least in (rng.randrange(2, 8), rng.randrange(13, 17)):  # in the first repeat, and then in the second one
        asserting.killed(
            tmp_path / "output", *WARM, "--out", out,
            when=lambda: any(len(runs.requests_on_disk(folder)) >= least for folder in out.glob("[!.]*")),  # noqa: B023
            delay=rng.uniform(0, 0.01),
        )  # fmt: skip
    (folder,) = out.glob("[!.]*")
    cli.ok(*WARM, "--out", out)
    assert answers(folder) == answers(unbroken), f"seed {seed}"
    assert counts(folder) == counts(unbroken), f"seed {seed}"
