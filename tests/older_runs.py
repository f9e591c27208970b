"""Runs as schema 1 had them, made of runs of today by a table of its own: what it says of names is not the code's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Today's name of a request's field -> that of schema 1.
REQUEST = {
    "request_id": "key", "prompt_tokens": "n_prompt", "output_ids": "ids", "finish_reason": "stop_reason",
    "output_tokens": "n_out", "overshoot_tokens": "n_overshoot", "stop_tail_tokens": "n_stop_tail",
    "accepted_lengths": "accepts", "tree_rows": "rows", "target_forwards": "forwards", "latency_s": "e2e_s",
    "prefill_share_s": "busy_prefill_s", "decode_share_s": "busy_decode_s",
}  # fmt: skip

#: The same of a method in a summary, and of its groups.
ROW = {"tokens_per_forward": "tpf", "tokens_per_forward_with_prefill": "tpf_all", "decode_tok_s": "tok_s"}

#: What schema 1 did not have.
LATER = ("peak_memory_bytes", "tpot_median_s")


def make_schema_1(folder: Path) -> Path:
    """Rewrites a run folder in place."""
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "schema_version": 1}))
    requests = folder / "requests.jsonl"
    lines = [_named(json.loads(line), REQUEST) for line in requests.read_text().splitlines()]
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        rows = [_named(row, ROW) for row in summary["rows"]]
        for row in rows:
            row.pop("text")  # not either, but it follows from the requests
            row["groups"] = {name: _named(group, ROW) for name, group in row["groups"].items()}
        (folder / "summary.json").write_text(json.dumps({**summary, "rows": rows}, indent=2) + "\n")
    return folder


def names(content: Any) -> set[str]:
    """Every name in a JSON document."""
    if isinstance(content, dict):
        return {*content}.union(*(names(value) for value in content.values()))
    return set().union(*(names(value) for value in content)) if isinstance(content, list) else set()


def _named(fields: dict[str, Any], older: dict[str, str]) -> dict[str, Any]:
    return {older.get(name, name): value for name, value in fields.items() if name not in LATER}
