"""Schema 1: the names that records, summaries and projections had before schema 2, and the way there and back.

A run of schema 1 is read with today's names and stays what it is: what is written into its folder later has the old
names again, so that no file and no folder has names of both. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RECORD = {
    "key": "request_id",
    "n_prompt": "prompt_tokens",
    "ids": "output_ids",
    "stop_reason": "finish_reason",
    "n_out": "output_tokens",
    "n_overshoot": "overshoot_tokens",
    "n_stop_tail": "stop_tail_tokens",
    "accepts": "accepted_lengths",
    "rows": "tree_rows",
    "forwards": "target_forwards",
    "e2e_s": "latency_s",
    "busy_prefill_s": "prefill_share_s",
    "busy_decode_s": "decode_share_s",
}

#: Of a method in ``summary.json``, and of its groups of categories.
_ROW = {"tpf": "tokens_per_forward", "tpf_all": "tokens_per_forward_with_prefill", "tok_s": "decode_tok_s"}

_PROJECTED = {"tok_s": "decode_tok_s"}

#: What a method's row has since schema 2.
_ADDED = ("tpot_median_s", "peak_memory_bytes", "text")


def record_from_1(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``requests.jsonl`` with today's names.

    Raises:
        ValueError: it has a name of today already; names it.
    """
    return _renamed(line, _RECORD)


def summary_from_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``summary.json`` with today's names; what has another shape is left to the model to refuse.

    Raises:
        ValueError: it has a name of today already; names it.
    """
    return _summary(content, _ROW)


def summary_to_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``summary.json`` as schema 1 has it, without the figures that came with schema 2."""
    found = _summary(content, _backwards(_ROW))
    rows = [{name: value for name, value in row.items() if name not in _ADDED} for row in found["rows"]]
    return {**found, "rows": rows}


def projection_from_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``projection-GPU.json`` with today's names; what has another shape is left to the model.

    Raises:
        ValueError: it has a name of today already; names it.
    """
    return _projection(content, _PROJECTED)


def projection_to_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``projection-GPU.json`` as schema 1 has it."""
    return _projection(content, _backwards(_PROJECTED))


def _summary(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    rows = content.get("rows")
    if not isinstance(rows, list):
        return dict(content)
    return {**content, "rows": [_row(row, names) if isinstance(row, dict) else row for row in rows]}


def _row(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = _renamed(row, names)
    groups = found.get("groups")
    if isinstance(groups, dict):
        found["groups"] = {
            name: _renamed(figures, names) if isinstance(figures, dict) else figures for name, figures in groups.items()
        }
    return found


def _projection(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    rows = content.get("rows")
    if not isinstance(rows, dict):
        return dict(content)
    named = {label: _renamed(row, names) if isinstance(row, dict) else row for label, row in rows.items()}
    return {**content, "rows": named}


def _renamed(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same in the same order under other names.

    Raises:
        ValueError: a name of the other schema is there already.
    """
    if mixed := found.keys() & {*names.values()} - names.keys():
        raise ValueError(f"'{min(mixed)}' is a name of another schema")
    return {names.get(name, name): value for name, value in found.items()}


def _backwards(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}
