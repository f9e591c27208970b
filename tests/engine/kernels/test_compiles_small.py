"""The small kernels compile to machine code for every GPU generation, without a GPU, and do not spill.

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
from typing import Any

import pytest

# Arguments that need not be multiples of 16 elements. Strides usually are, and loads are vectorised then.
COUNTS = {"rows", "words", "heads", "slots", "first_slot", "queries", "splits"}


def cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(name, kernel, types of pointers, compile-time arguments, options); what is not a pointer here is an int.

    Triton makes a compile-time argument of an int that is 1, so the cases of one row have those too.
    """
    from specbench.engine.kernels import accept, kv, sample

    i32, four_warps = "*i32", {"num_warps": 4}
    for rows in (1, 64, 512):
        block, rounds = max(32, rows), (rows - 1).bit_length()
        pointers = {"parents": i32, "bits": i32, "depth": i32}
        sizes = {"ROUNDS": rounds, "BLOCK": block} | ones(rows, "rows", "words", "slot_stride")
        yield f"bits {rows}", accept._tree_bits, pointers, sizes, four_warps
        pointers |= dict.fromkeys(["tokens", "next_token", "forced", "count", "path", "bonus"], i32)
        for flag, forced in (("*i1", True), (i32, False)):
            sizes = {"FORCED": forced, "BLOCK": block, "WORDS": block // 32}
            sizes |= ones(rows, "rows", "words", "tokens_stride", "accept_stride")
            if not forced:
                sizes["forced"] = None
            options = {"num_warps": 8 if block > 128 else 4}
            yield f"accept {rows} {flag}", accept._accept, pointers | {"accept": flag}, sizes, options
    for name, greedy in (("bf16", True), ("bf16", False), ("fp16", False), ("fp32", False)):
        pointers = {"logits": f"*{name}", "positions": i32, "seed": "*i64", "temperature": "*fp32", "partial": "*i64"}
        sizes = {"GREEDY": greedy, "BLOCK": sample._BLOCK} | ones(1, *["queries", "position_stride"] * greedy)
        label = f"choose {name} {'greedy' if greedy else 'sampled'}"
        yield label, sample._best_of_split, pointers, sizes, sample._OPTIONS
    for splits in (1, 128):
        sizes = {"BLOCK": splits} | ones(splits, "splits")
        yield f"reduce {splits}", sample._best_of_row, {"partial": "*i64", "chosen": i32}, sizes, {"num_warps": 1}
    for size, value, rows in ((128, 128, 1), (128, 128, 16), (96, 64, 16), (576, 512, 16)):
        tile_rows, _ = kv._tile(rows, max(size, value))
        pointers = dict.fromkeys(["key", "value", "keys", "values"], "*bf16") | {"lengths": i32}
        sizes = {"KEY": size, "KEY_WIDE": kv._tile(rows, size)[1], "VALUE": value}
        sizes |= {"VALUE_WIDE": kv._tile(rows, value)[1], "TILE_ROWS": tile_rows} | ones(rows, "rows", "heads")
        yield f"write {size} {value} {rows}", kv._write, pointers, sizes, four_warps
        tile_rows, wide = kv._tile(rows, size)
        pointers = {"buffer": "*bf16", "lengths": i32, "count": i32, "path": i32}
        sizes = {"SIZE": size, "WIDE": wide, "TILE_ROWS": tile_rows} | ones(rows, "slots", "heads", "path_stride")
        yield f"commit {size} {rows}", kv._commit, pointers, sizes, four_warps


def ones(rows: int, *arguments: str) -> dict[str, Any]:
    return dict.fromkeys(arguments, 1) if rows == 1 else {}


def compile_all(capability: int) -> dict[str, dict[str, int]]:
    """Registers and spills of each kernel, and in its PTX: fused multiply-adds, 16-byte loads, and the barriers between
    the last load and the first store."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    found = {}
    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for name, kernel, pointers, sizes, options in cases():
        ints = {each: "i32" if each in COUNTS | {"vocab", "span"} else "i64" for each in kernel.arg_names}
        types = ints | pointers | dict.fromkeys(sizes, "constexpr")
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, each in enumerate(kernel.arg_names)
            if each not in COUNTS and types[each] != "constexpr"
        }
        source = ASTSource(kernel, signature=types, constexprs=sizes, attrs=aligned)
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(built.asm["cubin"])
            file.flush()
            usage = subprocess.run(
                [dump, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
            ).stdout
        count = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", usage)}
        ptx = built.asm["ptx"]
        until_store = ptx.split("st.global")[0]
        found[name] = count | {
            "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
            "vectors": ptx.count("ld.global.v4.b32"),
            "barriers": until_store.rsplit("ld.global", 1)[1].count("bar.sync"),
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_without_spills(capability: int, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, __file__, str(capability)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout)
    assert len(found) == 23
    for name, usage in found.items():
        assert usage["STACK"] == usage["LOCAL"] == 0, f"{name} spills: {usage}"
        if name.startswith("choose"):
            assert usage["fused"] == 0, f"{name}: the noise would depend on what the compiler fuses"
        if name.startswith("commit"):
            assert usage["barriers"], f"{name}: a store could overtake another thread's load"
        if name.startswith(("choose bf16", "commit 128 16", "write 128 128 16")):
            assert usage["vectors"], f"{name} loads its elements one by one"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compile_all(int(sys.argv[1]))))
