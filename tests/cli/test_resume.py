"""SIGKILL at any moment, the same command again: the counts are those of a run that nobody killed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import forked
import pytest
import run_json

from specbench.results.request_log import RequestLog
from specbench.runner import Session

PROMPTS, METHODS = 3, 2
TOTAL = PROMPTS * METHODS
COMMAND = (
    *("run", "--model", "config:tiny", "--limit", PROMPTS, "--max-new-tokens", 16, "--temperature", 0.7, "--seed", 3),
    "--out",
)
# Everything in a row of summary.json that a clock decides. All the rest are counts, and have to be the same.
TIMES = {
    "decode_tok_s", "e2e_tok_s", "step_s", "ttft_median_s", "latency_median_s", "tpot_median_s", "speedup",
    "e2e_speedup", "ttft_speedup", "positions", "step_ratio", "peak_memory_bytes", "gpu",
}  # fmt: skip
# Everything in a line of requests.jsonl that depends on when it ran.
WHEN = {
    "start_s", "segment", "ttft_s", "decode_s", "latency_s", "prefill_share_s", "decode_share_s", "step_s",
    "peak_memory_bytes", "gpu",
}  # fmt: skip


def counts(folder: Path) -> dict[str, Any]:
    summary = run_json.summary(folder)
    del summary["fastest"]
    for row in summary["rows"]:
        assert row.keys() >= TIMES
        for name in TIMES:
            del row[name]
    return summary


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Requests by key, without what depends on when they ran."""
    found = run_json.requests(folder)
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
        forked.killed(
            tmp_path / "said", *COMMAND, out,
            when=lambda: any(len(run_json.requests(folder)) >= requests for folder in out.glob("[!.]*")),  # noqa: B023
            delay=rng.uniform(0, 0.03) if requests < TOTAL else 0,
        )  # fmt: skip
        (folder,) = out.glob("[!.]*")  # each repetition went on in the first one's folder
        kept.append(len(run_json.requests(folder)))
        assert not (folder / "DONE").exists()
    told = f"seed {seed}: killed with {kept} of {TOTAL} requests on disk"
    assert kept == sorted(kept), told
    shown = cli("show", folder)
    assert shown.code == 0, told

    last = cli(*COMMAND, out)
    assert last.code == 0, told
    assert f"({TOTAL} of {TOTAL} requests are done)" in " ".join(last.err.split()), told
    assert list(out.iterdir()) == [folder], told
    assert answers(folder) == answers(reference), told
    assert verdicts(folder) == verdicts(reference), told
    assert counts(folder) == counts(reference), told
    assert (folder / "DONE").exists()


def test_a_record_that_does_not_fit_is_named_when_a_run_goes_on(cli: Any, tmp_path: Path) -> None:
    command = ("run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 4, "--no-score")
    folder = cli.made(tmp_path, *command)
    (folder / "DONE").unlink()
    first, *others = run_json.requests(folder)
    del first["accepted_lengths"]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [first, *others]))
    error = cli.refused(2, *command, "--out", tmp_path)
    assert "requests.jsonl line 1 is damaged (field 'accepted_lengths'" in error
    assert "delete that line to go on without its request" in error
    assert "run it again" in cli("show", folder).error
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in others))
    assert cli.made(tmp_path, *command) == folder
    assert len(run_json.requests(folder)) == 1 + len(others)


@pytest.mark.parametrize("done", [0, 1, 5])
def test_a_run_is_warm_before_its_first_request_however_many_are_done(
    cli: Any, tmp_path: Path, monkeypatch: Any, done: int
) -> None:
    command = ("run", "--model", "config:tiny", "--limit", 4, "--max-new-tokens", 6, "--no-score", "--out", tmp_path)
    events: list[str] = []
    warm_up, append = Session.warm_up, RequestLog.append

    def warming(self: Session, *given: Any, **more: Any) -> None:
        events.append("warm")
        warm_up(self, *given, **more)

    def appending(self: RequestLog, obj: Any) -> None:
        if done and events.count("request") == done:
            raise KeyboardInterrupt
        events.append("request")
        append(self, obj)

    monkeypatch.setattr(Session, "warm_up", warming)
    monkeypatch.setattr(RequestLog, "append", appending)
    if done:
        cli.refused(130, *command)
        assert events == ["warm", *["request"] * done]
        events.clear()
        done = 0
    cli.ok(*command)
    assert events[0] == "warm", "what a resumed run measures first would pay for what is done once"
    assert events.count("warm") == 1
