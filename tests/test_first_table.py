"""README's first table, computed again from the run that it names, by other code than the tool's: digit for digit."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DRAWS, SEED = 10_000, 0


def table() -> tuple[dict[str, list[str]], Path]:
    """Rows of the first table by method, and the run that the text behind it names."""
    page = (ROOT / "README.md").read_text()
    block = next(part for part in page.split("```")[1::2] if re.search(r"^method +tokens", part, re.M))
    lines = block.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("method ")) + 2
    rows = {}
    for line in lines[begin:]:
        if not line.strip():
            break
        method, *cells = re.split(r"  +", line.strip())
        rows[re.sub(r" \(.*\)$", "", method)] = cells  # without the size of its trees
    link = re.search(r"\]\((results/[^)]+)\)", page[page.index(block) :])
    assert link
    return rows, ROOT / link[1]


def log_speedup(weights: Any, columns: Any) -> Any:
    """Logarithm of AR's pooled seconds per token over the method's, each prompt counted so often."""
    ar_seconds, ar_tokens, seconds, tokens = (weights @ column for column in columns)
    return np.log(ar_seconds) - np.log(ar_tokens) - np.log(seconds) + np.log(tokens)


def error(weights: Any, columns: Any) -> Any:
    """Its standard error, by the prompts' pull on it."""
    signs, count = (1, -1, -1, 1), weights.shape[-1]
    pull = sum(s * column / (weights @ column)[..., None] for s, column in zip(signs, columns, strict=True))
    return np.sqrt((weights * pull**2).sum(-1) * count / (count - 1))


def interval(columns: Any) -> tuple[float, float, float]:
    count = columns.shape[1]
    once = np.ones((1, count))
    value, se = float(log_speedup(once, columns)[0]), float(error(once, columns)[0])
    picked = np.random.Generator(np.random.PCG64(SEED)).integers(count, size=(DRAWS, count))
    weights = np.stack([np.bincount(row, minlength=count) for row in picked]).astype(float)
    spread = error(weights, columns) ** 2
    far = np.abs(log_speedup(weights, columns) - value) / np.sqrt(spread + (se**2 - spread) / count**2)
    half = float(np.quantile(far, 0.95)) * se
    return math.exp(value), math.exp(value - half), math.exp(value + half)


def test_the_first_table_of_the_readme_is_what_its_run_says() -> None:
    rows, folder = table()
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    right = {line["request"]: line["passed"] for line in map(json.loads, (folder / "verdicts.jsonl").open())}
    by_method: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_method.setdefault(line["method"], []).append(line)
    assert rows.keys() == by_method.keys()
    prompts = sorted({line["prompt_id"] for line in lines})
    for method, cells in rows.items():
        mine, ar = ({line["prompt_id"]: line for line in by_method[name]} for name in (method, "ar"))
        assert mine.keys() == ar.keys() == {*prompts}, "one answer a prompt"
        tokens = sum(line["output_tokens"] for line in mine.values())
        decoded = tokens - len(mine)
        forwards, seconds = (sum(line[name] for line in mine.values()) for name in ("target_forwards", "decode_s"))
        cut = sum(line["finish_reason"] == "length" for line in mine.values()) / len(mine)
        passed = sum(right[line["request_id"]] for line in mine.values())
        said = [str(tokens), f"{decoded / forwards:.2f}", f"{decoded / seconds:.1f}"]
        if method == "ar":
            said += ["1", "1"]
        else:
            sides = [[ar[prompt] for prompt in prompts], [mine[prompt] for prompt in prompts]]
            columns = np.array([
                part
                for side in sides
                for part in ([line["decode_s"] for line in side], [line["output_tokens"] - 1 for line in side])
            ], dtype=float)  # fmt: skip
            value, low, high = interval(columns)
            whole = [
                sum(line["latency_s"] for line in side) / sum(line["output_tokens"] for line in side) for side in sides
            ]
            said += [f"{value:.2f} [{low:.2f}, {high:.2f}]", f"{whole[0] / whole[1]:.2f}"]
        said += [f"{cut:.0%}", f"{passed}/{len(mine)}"]
        assert cells[: len(said)] == said, method


def test_the_intervals_of_this_file_are_those_of_a_hand_computation() -> None:
    columns = np.array([[2.0, 4.0, 3.0], [1.0, 2.0, 2.0], [1.0, 3.0, 1.0], [1.0, 2.0, 2.0]])
    value, low, high = interval(columns)
    assert value == pytest.approx((9 / 5) / (5 / 5))
    assert low < value < high
    assert low * high == pytest.approx(value**2)
