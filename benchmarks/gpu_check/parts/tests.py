"""Run about thirty selected tests of the suite: kernels against the oracle, graphs against eager steps."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.orphans import end_with_the_parent
from benchmarks.gpu_check.records import Figure

ROOT = Path(__file__).parents[3]

#: Packages that the suite's conftest imports.
_NEEDS = ("pytest", "hypothesis")

#: File -> selected tests, each with an expression of ``-k`` for its parameters, or "" for all.
CHOSEN: Mapping[str, Mapping[str, str]] = {
    "tests/engine/test_cuda.py": {
        "test_every_way_to_run_a_step_says_the_same": "(qwen2 or qwen3) and triton or "
        "(gpt_oss or gemma2 or llama4) and triton and greedy",
        "test_recurrent_models_decode_trees_on_a_card": "",
        "test_a_seed_and_a_temperature_are_not_baked_into_a_graph": "",
        "test_captures_are_made_beforehand_and_reported": "cuda",
    },
    "tests/engine/test_fill.py": {"test_passes_on_a_card_equal_a_dense_forward": ""},
    "tests/methods/test_heads_cuda.py": {"test_graphs_and_kernels_draft_what_the_oracle_drafts": "qwen3"},
    "tests/engine/kernels/test_tree_attention.py": {
        "test_splits_make_no_difference": "", "test_windows_count_positions_not_cells": "",
        "test_any_group_of_heads_whatever_the_height": "", "test_capped_scores_and_sinks": "5-True-33",
        "test_chunks_begin_at_multiples_of_their_size": "1-1 or 90-3",
    },
    "tests/engine/kernels/test_layer_kernels.py": {
        "test_sum_and_norm": "576", "test_norms_rotation_and_store": "sizes42 or sizes84 or sizes91",
        "test_activation": "1100",
    },
    "tests/engine/kernels/test_fused_layers.py": {"test_fused_layers_decode_what_the_models_own_decode": "gemma3"},
    "tests/engine/kernels/test_sample.py": {
        "test_random_bits_are_the_samplers": "", "test_sampled_is_the_samplers_choice": "",
    },
}  # fmt: skip

#: The tests of a rehearsal.
REHEARSED: Mapping[str, Mapping[str, str]] = {"tests/decoding/test_tree.py": {}}


#: A line of ``pytest -v``: file, test and outcome.
_RESULT = re.compile(r"(\S+\.py)::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


def run(bench: Bench) -> Iterator[Figure]:
    """Run the tests in one pytest process, because imports take longer than most tests."""
    lacking = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    chosen = REHEARSED if bench.rehearse else CHOSEN
    if lacking or not (ROOT / "tests").is_dir():
        why = f"not installed: {', '.join(lacking)}" if lacking else "the tests are missing"
        yield Figure("chosen tests", None, note=f"left out; {why}")
        return
    yield from results(chosen)


def results(chosen: Mapping[str, Mapping[str, str]]) -> Iterator[Figure]:
    """Yield the failures of each file as soon as the next file begins.

    Args:
        chosen: file -> tests of it (all if empty) -> expression of ``-k`` for their parameters.
    """
    command = [sys.executable, "-u", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--no-header", "--color=no"]
    each = [
        f"({name}{' and (' + parameters + ')' if parameters else ''})"
        for tests in chosen.values()
        for name, parameters in tests.items()
    ]
    with subprocess.Popen(
        [*command, *(["-k", " or ".join(each)] if each else []), *chosen],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        preexec_fn=partial(end_with_the_parent, os.getpid()),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        names = {Path(file).name: file for file in chosen}  # pytest prints another path for a file outside the project
        tallies: dict[str, dict[str, list[str]]] = {}
        last, reported = "", set[str]()
        for text in process.stdout:
            last = text.strip() or last
            if found := _RESULT.match(text):
                file, test, how = names[Path(found[1]).name], found[2], found[3]
                tallies.setdefault(file, {}).setdefault(how, []).append(test)
                for other in tallies.keys() - {file} - reported:
                    reported.add(other)
                    yield _of_file(other, tallies[other])
            sys.stderr.write(text)  # tracebacks go to the part's log
        status = process.wait()
    for file in tallies.keys() - reported:
        # If pytest crashed, it was in this file.
        yield _of_file(file, tallies[file], "" if status in (0, 1) else f"pytest ended with status {status}: {last}")
    for file in chosen.keys() - tallies.keys():
        yield Figure(f"tests of {file}", 1, "failures", "== 0", f"no test was run; pytest: {last}"[:500])


def _of_file(file: str, tally: Mapping[str, Sequence[str]], ended: str = "") -> Figure:
    """Return the number of failures of a file; at least one if no test passed."""
    failed = [*tally.get("FAILED", ()), *tally.get("ERROR", ())]
    counts = ", ".join(f"{len(tests)} {how.lower()}" for how, tests in tally.items())
    count = len(failed) + bool(ended) or int("PASSED" not in tally)
    note = "; ".join(filter(None, [counts, ended, *failed[:8]]))[:500]
    return Figure(f"tests of {file}", count, "failures", "== 0", note)
