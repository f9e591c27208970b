"""Tests: about thirty of the suite, chosen: kernels against the oracle, graphs against eager steps. Needs pytest."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.orphans import end_with_the_parent
from benchmarks.gpu_check.records import Figure

ROOT = Path(__file__).parents[3]

#: What the suite's own conftest imports.
_NEEDS = ("pytest", "hypothesis")

#: File -> tests of it, whole ones or with the parameters that ``-k`` names.
CHOSEN: Mapping[str, Mapping[str, str]] = {
    "tests/engine/test_cuda.py": {
        "test_every_way_to_run_a_step_says_the_same": "(qwen2 or qwen3) and triton",
        "test_a_seed_and_a_temperature_are_not_baked_into_a_graph": "",
        "test_captures_are_made_beforehand_and_reported": "",
    },
    "tests/methods/test_jetspec_cuda.py": {"test_graphs_and_kernels_draft_what_the_oracle_drafts": "qwen3"},
    "tests/engine/kernels/test_tree_attention.py": {
        "test_splits_make_no_difference": "", "test_windows_count_positions_not_cells": "",
        "test_any_group_of_heads_whatever_the_height": "",
    },
    "tests/engine/kernels/test_layer_kernels.py": {
        "test_sum_and_norm": "576", "test_norms_rotation_and_store": "sizes42 or sizes84 or sizes91",
        "test_activation": "1100",
    },
    "tests/engine/kernels/test_fused_layers.py": {"test_fused_layers_decode_what_the_models_own_decode": "gemma3"},
    "tests/engine/kernels/test_sample.py": {
        "test_random_bits_are_the_samplers": "", "test_the_noise_is_what_decides_flat_logits": "",
    },
}  # fmt: skip

#: Of a rehearsal.
REHEARSED: Mapping[str, Mapping[str, str]] = {"tests/decoding/test_tree.py": {}}


def run(bench: Bench) -> Iterator[Figure]:
    """A process of pytest per file."""
    lacking = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    chosen = REHEARSED if bench.rehearse else CHOSEN
    if lacking or not (ROOT / "tests").is_dir():
        why = f"not installed: {', '.join(lacking)}" if lacking else "the tests are not here"
        yield Figure("chosen tests", None, note=f"left out; {why}")
        return
    for file, tests in chosen.items():
        yield _file(file, tests)


def _file(file: str, tests: Mapping[str, str]) -> Figure:
    each = [f"({name}{' and ' + parameters if parameters else ''})" for name, parameters in tests.items()]
    wanted = ["-k", " or ".join(each)] if each else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *wanted, file],
        capture_output=True, text=True, cwd=ROOT, preexec_fn=partial(end_with_the_parent, os.getpid()),
    )  # fmt: skip
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # 5: nothing was collected, which is no success here
    count = len(failed) or 1 if done.returncode else 0
    return Figure(f"tests of {file}", count, "failures", "== 0", "; ".join([last, *failed[:8]])[:500])
