"""Recorded conversations from the command line: which ids are kept, and what a resumed run does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import models, runs
from support.wording import wording

from specbench.models.loader import load
from specbench.tasks.traces.task import Options, Task

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "the sky"}}}
ROWS = [
    {
        "id": "weather",
        "messages": [
            {"role": "user", "content": "Is it raining?"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "blue"},
            {"role": "assistant", "content": "No, the sky is blue."},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": "It is blue."},
        ],
    },
    {"id": "cut", "session_id": "s", "messages": [{"role": "user", "content": "Say a word."}]},
    {"id": "cut", "session_id": "s", "messages": [{"role": "user", "content": "Say a longer word."}]},
    {"id": "single", "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
]
TURNS = 3 + 2 + 1
TIMES = {
    "start_s",
    "segment",
    "ttft_s",
    "decode_s",
    "latency_s",
    "prefill_share_s",
    "decode_share_s",
    "step_s",
    "gap_s",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("model"), models.byte_tokenizer(template=TEMPLATE))


@pytest.fixture
def command(model: Path, tmp_path: Path) -> tuple[Any, ...]:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    asked = ("run", "--model", model, "--task", "traces", "--data-file", file, "--method", "ar,pld,jacobi")
    return (*asked, "--max-new-tokens", 8)


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Requests by key, without times."""
    found = runs.requests_on_disk(folder)
    return {line["request_id"]: {name: line[name] for name in line.keys() - TIMES} for line in found}


def common(before: list[int], after: list[int]) -> int:
    most = min(len(before), len(after) - 1)
    return next((at for at in range(most) if before[at] != after[at]), most)


@pytest.mark.parametrize("together", [1, 3])
def test_kept_prefixes_are_those_of_the_ids(
    cli: Any, command: tuple[Any, ...], model: Path, tmp_path: Path, together: int
) -> None:
    command = (*command, "--concurrency", together)
    whole = answers(cli.made(tmp_path / "whole", *command))
    kept = cli.made(tmp_path / "kept", *command, "--keep-prefix")
    found = answers(kept)
    assert len(found) == 3 * TURNS
    loaded = load(str(model))
    for prompt in Task(Options(file=str(command[6]))).prompts(chat=True):
        ids = [loaded.encode(prompt.after([""] * turn)) for turn in range(prompt.turns)]
        shared = [0, *(common(before, after) for before, after in pairwise(ids))]
        assert all(shared[1:])
        for method in ("ar", "pld", "jacobi"):
            keys = [f"{method}|{prompt.id}|0" + (f"|{turn}" if turn > 1 else "") for turn in range(1, 1 + prompt.turns)]
            assert [found[key].get("prefix_tokens", 0) for key in keys] == shared
            assert [found[key]["prompt_tokens"] for key in keys] == [len(each) for each in ids]
            assert [found[key]["output_ids"] for key in keys] == [whole[key]["output_ids"] for key in keys]
    assert not any("prefix_tokens" in line for line in whole.values())
    every, reused = (sum(line.get(name, 0) for line in found.values()) for name in ("prompt_tokens", "prefix_tokens"))
    rows = runs.rows_on_disk(kept)
    assert [rows[label]["prefix_share"] for label in ("ar", "pld")] == pytest.approx([reused / every] * 2)
    verbose = cli.ok("show", kept, "--verbose").out
    assert f"{reused / every:.0%}" in verbose
    assert max(map(len, verbose.splitlines())) <= 80


@pytest.mark.parametrize("left", [1, 2, 4, 8, 13])
def test_a_resumed_run_has_the_same_records(cli: Any, command: tuple[Any, ...], tmp_path: Path, left: int) -> None:
    command = (*command, "--keep-prefix", "--concurrency", 2)
    folder = cli.made(tmp_path / "out", *command)
    unbroken = answers(folder)
    lines = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(lines[:left]))
    (folder / "DONE").unlink()
    assert cli.made(tmp_path / "out", *command) == folder
    assert answers(folder) == unbroken


def test_kept_prefixes_are_refused_by_name(cli: Any, command: tuple[Any, ...], model: Path, tmp_path: Path) -> None:
    out = ("--keep-prefix", "--out", tmp_path)
    assert wording(cli.refused(2, "run", "--model", "config:tiny", "--task", "humaneval", "--limit", 1, *out))
    assert wording(cli.refused(2, *command[:7], "--method", "ar,hf:generate", *out))
    config, made, sizes = models.RECURRENT["lfm2"]
    models.build((config, made, {**sizes, "vocab_size": 300})).save_pretrained(tmp_path / "lfm2")
    load(str(model)).tokenizer.save_pretrained(tmp_path / "lfm2")
    assert "recurrent" in cli.refused(2, "run", "--model", tmp_path / "lfm2", *command[3:], *out)
