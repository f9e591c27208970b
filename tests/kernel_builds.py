"""Kernels compiled to machine code without a GPU, and what the assembler says of each.

Compiling is done by a process of its own, this file as a script, because the tests' own process interprets kernels; and
so by another triton than the tests', where ``triton`` names the folder of one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_cases import TARGETS, Case, cases

REGISTERS = 65536  # of a multiprocessor
_CODE = ("HMMA", "HGMMA", "UTCHMMA")


def builds(capability: int, cache: Path, *, kernel: str = "", triton: str | None = None) -> list[dict[str, Any]]:
    """What :func:`build` found of every case, or of those of one kernel.

    Args:
        capability: of the GPU, such as 90.
        cache: folder for triton's own.
        kernel: as the cases name it.
        triton: a folder that holds another triton, which compiles then.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    here = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(([triton] if triton else []) + here)
    child = subprocess.run(
        [sys.executable, __file__, str(capability), kernel],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return [json.loads(line) for line in child.stdout.splitlines()]


def tools() -> str:
    """The triton and the assemblers that compile here, in words."""
    import triton

    found = []
    for name in ("ptxas", "ptxas-blackwell"):
        found += re.findall(r"V([\d.]+)", _output(_tool(name), "--version"))
    return f"triton {triton.__version__}, ptxas {found[0]}, for sm_100 ptxas {found[1]}"


def build(case: Case, capability: int) -> dict[str, Any]:
    """Compiles a kernel as its launcher would: registers, shared and spilled bytes, and some instruction counts."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = case.function
    signature = dict.fromkeys(kernel.arg_names, case.integer) | dict.fromkeys(case.plain, "i32")
    signature = {name: signature[name] for name in kernel.arg_names} | case.types
    signature |= dict.fromkeys(case.constants, "constexpr")
    # The launcher finds pointers and strides that are multiples of 16, and never asks that of counts.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name not in case.plain and signature[name] not in ("constexpr", "fp32")
    }
    assert signature.keys() == set(kernel.arg_names), f"{case.kernel}: {signature.keys() ^ set(kernel.arg_names)}"
    source = ASTSource(kernel, signature=signature, constexprs=case.constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=case.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _output(_tool("cuobjdump"), "--dump-resource-usage", file.name)
        code = _output(_tool("nvdisasm"), file.name)
    count = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    ptx = built.asm["ptx"]
    before_store = ptx.split("st.global")[0]
    before_wait = ptx.split("griddepcontrol.wait")[0]
    return {
        "kernel": case.kernel,
        "configuration": case.configuration,
        "arch": f"sm_{capability}",
        "registers": count["REG"],
        "shared": built.metadata.shared,
        "spilled": count["STACK"] + count["LOCAL"],
        "threads": 32 * case.options.get("num_warps", 4),
        "spills_in_loops": _in_loops(code, r"\b(?:STL|LDL)\b"),
        "matrix": {name: len(re.findall(rf"\b{name}\b", code)) for name in _CODE},
        "async_16_bytes": len(re.findall(r"\bLDGSTS\.E\.BYPASS\.\S*128", code)),
        "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
        "vectors": ptx.count("ld.global.v4.b32"),
        "waits": ptx.count("griddepcontrol.wait"),
        "starts_the_next": ptx.count("griddepcontrol.launch_dependents"),
        "before_waiting": len(re.findall(r"\b(?:ld\.global|st\.global|cp\.async|atom\.)", before_wait)),
        "prefetched": before_wait.count("prefetch.global.L2"),
        "barriers": before_store.rsplit("ld.global", 1)[-1].count("bar.sync"),
    }


def over_limits(row: Mapping[str, Any]) -> list[str]:
    """What a kernel takes more of than its card has, or than it should; from a build or from a line of the table."""
    capability = int(row["arch"].removeprefix("sm_"))
    found = []
    if row["registers"] * row["threads"] > REGISTERS:
        found.append("registers")
    if row["shared"] > TARGETS[capability].shared:
        found.append("shared memory")
    # Where one more program then fits a multiprocessor, or where all 255 are taken, the assembler keeps a few registers
    # in memory from before the loops until behind them, once a program.
    allowed = 64 if row["kernel"] == "attend" else 0
    if row["spilled"] > allowed:
        found.append("spills")
    return found


def _in_loops(code: str, instruction: str) -> int:
    """How often an instruction stands between a label and a later branch back to it."""
    lines = code.splitlines()
    labels = {match[1]: at for at, line in enumerate(lines) if (match := re.match(r"(\.L_x_\d+):", line))}
    looped: set[int] = set()
    for at, line in enumerate(lines):
        jump = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if jump and labels[jump[1]] < at - 1:  # one line back is where code ends
            looped |= {each for each in range(labels[jump[1]], at) if re.search(instruction, lines[each])}
    return len(looped)


def _tool(name: str) -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name


def _output(*command: object) -> str:
    return subprocess.run([str(each) for each in command], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for case in cases(int(sys.argv[1])):
        if case.kernel == (sys.argv[2] or case.kernel):
            sys.stdout.write(json.dumps(build(case, int(sys.argv[1]))) + "\n")
            sys.stdout.flush()
