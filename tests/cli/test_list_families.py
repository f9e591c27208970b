"""``specbench list families``."""

from __future__ import annotations

import json
from typing import Any


def test_the_list_names_every_class_with_a_reason(cli: Any) -> None:
    listed = json.loads(cli.ok("list", "families", "--json").out)
    assert {one["model_type"] for one in listed} >= {"llama", "gpt_oss", "rwkv"}
    assert all(bool(one["why"]) == (one["result"] != "exact") for one in listed)
    assert {one["result"] for one in listed} == {"exact", "refused", "not tried"}
    table = cli.ok("list", "families").out
    assert "indexed_attention" in table
    assert "qwen3_next" in table
