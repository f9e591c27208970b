"""Runs that are damaged, cut off, newer or put together from several: each is refused, by name and in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.asserting import refusal
from support.wording import wording

from specbench.analysis.read import read_whole
from specbench.common.errors import UsageError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.derived(tmp_path_factory.mktemp("whole") / "sound")


@pytest.mark.parametrize("folder", runs.COMMITTED, ids=lambda p: p.name)
def test_committed_runs_are_whole(folder: Path) -> None:
    assert read_whole(folder).summary.complete


def lines(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Rewrites the lines of ``requests.jsonl``."""
    path = folder / "requests.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def content(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Changes a JSON file in place."""
    path = folder / name
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def request(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Changes the first request."""

    def made(first: str) -> str:
        found = json.loads(first)
        change(found)
        return json.dumps(found) + "\n"

    return lambda folder: lines(folder, lambda old: [made(old[0]), *old[1:]])


def verdicts(change: Callable[[Any], object], lines: slice = slice(None)) -> Callable[[Path], None]:
    """Changes lines of ``verdicts.jsonl``."""

    def made(folder: Path) -> None:
        path = folder / "verdicts.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        for line in found[lines]:
            change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in found))

    return made


def likelihood(**more: Any) -> Callable[[Path], None]:
    """Gives the first request a likelihood."""

    def made(folder: Path) -> None:
        first = json.loads((folder / "requests.jsonl").read_text().splitlines()[0])
        line = {
            "text": "0",
            "requests": [first["request_id"]],
            "tokens": first["output_tokens"],
            "log_likelihood": -1.0,
        }
        (folder / "likelihoods.jsonl").write_text(json.dumps(line | more) + "\n")

    return made


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "unfinished": (lambda f: (f / "DONE").unlink(), "is not finished; repeat its command"),
    "no run": (lambda f: (f / "run.json").unlink(), "is not a run folder"),
    "newer": (lambda f: content(f, "run.json", lambda c: c.update(schema_version=9)), "newer specbench"),
    "run.json cut off": (lambda f: (f / "run.json").write_text((f / "run.json").read_text()[:99]), "is damaged"),
    "summary of something else": (
        lambda f: (f / "summary.json").write_text('{"rows": 3}'),
        "summary.json is damaged (field 'complete'",
    ),
    "no summary": (lambda f: (f / "summary.json").unlink(), "has no summary.json; restore it"),
    "torn line": (lambda f: lines(f, lambda old: [*old[:-1], old[-1][:50]]), "39 requests of"),
    "no requests": (lambda f: (f / "requests.jsonl").unlink(), "0 requests of ar"),
    "line twice": (lambda f: lines(f, lambda old: [*old, old[0]]), "twice"),
    "garbage line": (lambda f: lines(f, lambda old: ["{x\n", *old]), "line 1 is damaged"),
    "field missing": (request(lambda line: line.pop("accepted_lengths")), "field 'accepted_lengths'"),
    "stranger": (
        request(lambda line: line.update(method="pld", request_id=f"pld|{line['prompt_id']}|0")),
        "|0 has a method that is not in the run",
    ),
    "other key": (
        request(lambda line: line.update(request_id="ar|p|0")),
        "ar|p|0 has an id that differs from its fields",
    ),
    "tokens lost": (request(lambda line: line["output_ids"].pop()), "has another number of tokens"),
    "no time": (request(lambda line: line.update(decode_s=float("nan"))), "line 1 is damaged ("),
    "time of no clock": (request(lambda line: line.update(decode_s=1e-300)), "has an invalid time"),
    "more were asked": (
        lambda f: content(f, "run.json", lambda c: c["task"].update(prompts=41, requests=41)),
        "run.json has 41",
    ),
    "other prompt": (
        request(lambda line: line.update(prompt_id="x", request_id=f"{line['method']}|x|0")),
        "39 scored of ar but its summary has 40",
    ),
    "verdicts flipped": (verdicts(lambda line: line.update(passed=not line["passed"])), "passed of"),
    "verdict on another text": (
        verdicts(lambda line: line.update(answer="0123456789abcdef"), slice(1)),
        "the one that verdicts.jsonl scored",
    ),
    "verdict twice": (
        lambda f: (f / "verdicts.jsonl").write_text((f / "verdicts.jsonl").read_text() * 2),
        "there is already a verdict for this request",
    ),
    "likelihood of a longer text": (likelihood(tokens=10**6), "the one that likelihoods.jsonl rated"),
    "negative token": (request(lambda line: line["output_ids"].__setitem__(0, -1)), "has a negative token id"),
    "latency below decoding": (
        request(lambda line: line.update(latency_s=line["decode_s"] / 2)),
        "ended before its own decoding did",
    ),
    "key twice": (
        lambda f: (f / "run.json").write_text((f / "run.json").read_text().replace("{", '{"digest": "0",', 1)),
        "the key 'digest' is there twice",
    ),
    "other methods": (
        lambda f: content(f, "summary.json", lambda c: c["rows"].pop()),
        "its summary has other methods than run.json",
    ),
    "other sums": (
        lambda f: content(f, "summary.json", lambda c: c["rows"][0].update(tokens=1)),
        "4627 tokens of ar but its summary has 1",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_it_is_refused_by_name_in_one_line(sound: Path, tmp_path: Path, kind: str) -> None:
    damage, shown_text = DAMAGE[kind]
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    damage(folder)
    text = refusal(UsageError, read_whole, folder)
    assert str(folder) in text
    assert shown_text in text


def test_files_of_two_runs_in_one_folder_are_refused(sound: Path, tmp_path: Path) -> None:
    def shorter(line: dict[str, Any]) -> None:
        line["accepted_lengths"][-1] -= 1
        line["output_ids"].pop()
        line["output_tokens"] -= 1

    other = runs.derived(tmp_path / "other", shorter)
    for name in ("run.json", "summary.json"):
        shutil.copy(sound / name, other / name)
    with pytest.raises(UsageError, check=wording):
        read_whole(other)
