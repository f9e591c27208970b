"""A chat template that writes the time into prompts: a run has one, in its record, every turn and when it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.models import byte_tokenizer, save

from specbench.common.prompt import Prompt
from specbench.models.loader import load

#: With microseconds: no two readings of a clock write the same.
TEMPLATE = (
    "{{ strftime_now('%d %B %Y %H:%M:%S.%f') }}\n{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
ROWS = [
    {"turns": ["Name a colour.", "And another.", "One more."], "id": "colours"},
    {"turns": ["Hi", "Ho"], "id": "hi"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("dated") / "dated", byte_tokenizer(template=TEMPLATE))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def command(model: Path, rows: Path, out: Path, methods: str = "ar,pld,recycling", *more: object) -> tuple[object, ...]:
    asked = ("run", "--model", model, "--task", "prompts", "--data-file", rows, "--max-new-tokens", 8)
    return (*asked, "--method", methods, "--out", out, *more)


def only(out: Path) -> Path:
    (folder,) = out.glob("[!.]*")
    return folder


def dated(folder: Path) -> dict[str, str]:
    found: dict[str, str] = runs.config_on_disk(folder)["task"]["dated"]
    return found


def test_every_turn_of_a_run_has_one_time(cli: Any, model: Path, rows: Path, tmp_path: Path) -> None:
    cli.ok(*command(model, rows, tmp_path))
    folder = only(tmp_path)
    graded = {row["method"]: row["lossless"] for row in runs.summary_on_disk(folder)["rows"]}
    assert {label: (found["verdict"], found["exact"]) for label, found in graded.items()} == dict.fromkeys(
        ("ar", "pld", "recycling"), ("exact", 5)
    )
    assert dated(folder)["at"] > runs.config_on_disk(folder)["created_utc"][:4]


def test_a_run_goes_on_at_its_own_time(cli: Any, model: Path, rows: Path, tmp_path: Path) -> None:
    cli.ok(*command(model, rows, tmp_path))
    folder = only(tmp_path)
    whole = {line["request_id"]: line["output_ids"] for line in runs.requests_on_disk(folder)}
    began, lines = dated(folder), (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    for kept in (0, 1, 7):
        for name in ("DONE", "summary.json"):
            (folder / name).unlink()
        (folder / "requests.jsonl").write_text("".join(lines[:kept]))
        cli.ok(*command(model, rows, tmp_path))
        assert only(tmp_path) == folder
        assert dated(folder) == began
        assert {line["request_id"]: line["output_ids"] for line in runs.requests_on_disk(folder)} == whole
        assert {row["lossless"]["verdict"] for row in runs.summary_on_disk(folder)["rows"]} == {"exact"}
    cli.ok(*command(model, rows, tmp_path))  # and what is finished is not decoded again tomorrow
    assert only(tmp_path) == folder


def test_nothing_else_of_the_moment_reaches_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ strftime_now('%s %Z %H') }} {{ range(99999) | random }} {{ messages[0].content }}"
    folder = save(tmp_path / "drawn", byte_tokenizer(template=template))
    found = []
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        loaded = load(str(folder))
        at = loaded.at(loaded.now.replace(year=2020, month=1, day=2, hour=3, minute=4, second=5))
        found += [at.encode(Prompt("p", "x", True)) for _ in range(2)]
    assert len({tuple(ids) for ids in found}) == 1
    assert loaded.decode(found[0]).startswith("1577934245  03 ")
