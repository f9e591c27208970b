"""Tree attention compiles to machine code for every GPU generation, without a GPU: it fits the shared memory, keeps its
registers and uses the matrix unit.

Compiling is done by a process of its own, this file as a script, because the tests' own process interprets kernels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Target(NamedTuple):
    """Bytes of shared memory that a program may take, and the matrix instruction of tiles of 64 rows and more."""

    shared: int
    tall: str


TARGETS = {
    80: Target(163 * 1024, "HMMA"),
    86: Target(99 * 1024, "HMMA"),
    89: Target(99 * 1024, "HMMA"),
    90: Target(227 * 1024, "HGMMA"),
    100: Target(227 * 1024, "UTCHMMA"),
    120: Target(99 * 1024, "HMMA"),
}


class Config(NamedTuple):
    """A model's heads, and a step of it."""

    kv_heads: int
    group: int
    size: int
    rows: int
    dtype: str = "bf16"
    window: bool = False
    direct: bool = False


# (KV heads, queries per KV head, head size): Qwen2.5-7B, Qwen3-8B, SmolLM2-135M
QWEN25, QWEN3, SMOLLM2 = (4, 7, 128), (8, 4, 128), (3, 3, 64)
STEPS: list[dict[str, Any]] = [
    *({"rows": rows} for rows in (1, 4, 8, 16, 128)),
    {"rows": 8, "window": True},
    {"rows": 8, "direct": True},
    {"rows": 8, "dtype": "fp16"},
    {"rows": 8, "dtype": "fp32"},
]
SHAPES = [QWEN25, QWEN3, SMOLLM2, (8, 1, 80), (8, 1, 96), (4, 2, 112), (4, 2, 256)]
MANY = [Config(*heads, **step) for heads in SHAPES for step in STEPS]


def may_spill(config: Config, capability: int) -> int:
    """Bytes per thread that a kernel may keep in memory instead of registers."""
    if capability == 100 and config.size == 256:
        return 256  # its accumulator is beside the registers, and all of it comes in at once to be rescaled
    # A register or two, where one more program then fits a multiprocessor: the assembler's choice. For one row of
    # Qwen3-8B on sm_90 it is a store before the loop over the prefix and a load behind it.
    return 16


def build(config: Config, capability: int) -> dict[str, Any]:
    """Compiles the attention kernel as the launcher would and reads the result."""
    from specbench.engine.kernels.tree_attention import padded_size, tile_for
    from specbench.engine.kernels.tree_attention_kernels import attend

    size, wide = config.size, padded_size(config.size)
    itemsize = 4 if config.dtype == "fp32" else 2
    tile = tile_for(config.rows * config.group, size, size, itemsize, TARGETS[capability].shared)
    constants = {
        "kv_heads": config.kv_heads,
        "group": config.group,
        "key_size": size,
        "value_size": size,
        "has_window": config.window,
        "direct": config.direct,
        "block_m": tile.block_m,
        "block_n": tile.block_n,
        "block_k": wide,
        "block_v": wide,
        "chunk": tile.chunk,
        "min_tiles": tile.min_tiles,
        "stages": tile.stages,
    }
    partial = f"*{config.dtype}" if config.direct else "*fp32"
    types = dict.fromkeys(("query", "keys", "values", "out"), f"*{config.dtype}")
    types |= dict.fromkeys(("lengths", "bits", "depth"), "*i32") | dict.fromkeys(
        ("partial", "maxima", "totals"), partial
    )
    types |= {"scale": "fp32"}
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return compiled(attend, types, constants, options, capability) | {"block_m": tile.block_m}


def build_combine(splits: int, dtype: str, capability: int) -> dict[str, Any]:
    from specbench.engine.kernels.tree_attention_kernels import combine

    types = dict.fromkeys(("partial", "maxima", "totals"), "*fp32") | {"lengths": "*i32", "out": f"*{dtype}"}
    constants = {"kv_heads": 4, "group": 7, "value_size": 128, "has_window": False, "block_n": 64}
    constants |= {"block_s": splits, "block_v": 64, "min_tiles": 2}
    return compiled(combine, types, constants, {"num_warps": 4 if splits > 16 else 1}, capability)


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int], capability: int
) -> dict[str, Any]:
    """Shared bytes, registers, spilled bytes and some instruction counts. What has no type in ``types`` is an int."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(constants, "constexpr")
    # the launcher finds pointers and strides that are multiples of 16, and never asks that of counts
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name[:2] in ("q_", "k_", "v_")
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = output(tools / "cuobjdump", "--dump-resource-usage", file.name)
        code = output(tools / "nvdisasm", file.name)
    count = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    matrix = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HMMA", "HGMMA", "UTCHMMA")}
    return {
        "shared": built.metadata.shared,
        "registers": count["REG"],
        "spilled": count["STACK"] + count["LOCAL"],
        "async_16_bytes": len(re.findall(r"\bLDGSTS\.E\.BYPASS\.\S*128", code)),
        **matrix,
    }


def output(*command: object) -> str:
    return subprocess.run([str(each) for each in command], check=True, capture_output=True, text=True).stdout


def verify(configs: list[Config], capability: int, cache: Path) -> None:
    """Compiles all in a child process and checks each."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, __file__, str(capability), json.dumps(configs)],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    found = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(found) == len(configs) + 2
    *kernels, few, most = found
    assert few["spilled"] == most["spilled"] == 0
    target = TARGETS[capability]
    for config, built in zip(configs, kernels, strict=True):
        assert built["shared"] <= target.shared, f"{config}: {built}"
        assert built["spilled"] <= may_spill(config, capability), f"{config}: {built}"
        if config.dtype != "fp32":
            assert built[target.tall if built["block_m"] >= 64 else "HMMA"], f"{config} misses the matrix unit: {built}"
            assert built["async_16_bytes"], f"{config} does not stream in 16-byte copies: {built}"


@pytest.mark.slow
@pytest.mark.parametrize("capability", TARGETS)
def test_everything_compiles(capability: int, tmp_path: Path) -> None:
    verify(MANY, capability, tmp_path)


def lines(capability: int, configs: list[list[Any]]) -> Iterator[dict[str, Any]]:
    for config in configs:
        yield {"config": config} | build(Config(*config), capability)
    for splits in (4, 64):
        yield {"combine": splits} | build_combine(splits, "bf16", capability)


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]), json.loads(sys.argv[2])):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
