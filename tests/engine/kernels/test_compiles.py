"""The kernels compile to machine code for every GPU generation, without a GPU: they fit, keep their registers in loops,
stream in 16-byte copies and use the matrix unit.

``SPECBENCH_OTHER_TRITON`` names a folder with another triton, of which the same has to hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.kernels import TARGETS, builds, cases, over_limits

#: The kernels of a layer.
DEPENDENT = {"add_norm", "skinny", "rotate", "attend", "combine", "gated"}
OTHER = os.environ.get("SPECBENCH_OTHER_TRITON")


def check(found: list[dict[str, Any]], capability: int) -> None:
    expected = [(case.kernel, case.configuration) for case in cases(capability)]
    assert [(built["kernel"], built["configuration"]) for built in found] == expected
    assert len(set(expected)) == len(expected) > 60
    for built in found:
        assert over_limits(built) == [], built
        check_waiting(built, capability)
        if built["kernel"] == "attend":
            check_attention(built, capability)
        if built["kernel"] == "choose":
            assert not built["fused"], f"the noise would depend on what the compiler fuses: {built}"
        if built["kernel"] == "commit":
            assert built["barriers"], f"a store could overtake another thread's load: {built}"
        if (built["kernel"], built["configuration"].split(" ")[0]) in {("choose", "bf16"), ("commit", "128")}:
            assert built["vectors"], f"loads one element at a time: {built}"


def check_waiting(built: dict[str, Any], capability: int) -> None:
    """Kernels that start while the one before ends read and write nothing before it has ended, but for weights."""
    exact = built["kernel"] == "skinny" and " fp32 " in built["configuration"]
    depends = capability >= 90 and built["kernel"] in DEPENDENT and not exact
    assert (built["waits"], built["starts_the_next"]) == (depends, depends), built
    if depends:
        assert built["before_waiting"] == 0, f"reads or writes what the kernel before may still write: {built}"
        assert bool(built["prefetched"]) == (built["kernel"] == "skinny"), built


def check_attention(built: dict[str, Any], capability: int) -> None:
    words = built["configuration"].split(", ")
    # Blackwell's waits come after the code and jump back into it, which looks like a loop around nearly everything.
    assert built["spills_in_loops"] <= 4 or capability in (100, 120), built
    if "fp32" not in words:
        tall = any(word in words for word in ("64 rows", "128 rows"))
        assert built["matrix"][TARGETS[capability].tall if tall else "HMMA"], f"misses the matrix unit: {built}"
        assert built["async_16_bytes"], f"does not stream in 16-byte copies: {built}"


@pytest.mark.slow
@pytest.mark.parametrize("capability", TARGETS)
def test_everything_compiles(capability: int, tmp_path: Path) -> None:
    check(builds(capability, tmp_path), capability)


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="SPECBENCH_OTHER_TRITON names no folder")
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_everything_compiles_with_another_triton(capability: int, tmp_path: Path) -> None:
    check(builds(capability, tmp_path, triton=OTHER), capability)
