"""The engine's Triton kernels: which are launched, compiled without a GPU, and counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from specbench.engine.kernels.tiles import MAX_SPLITS, padded_size, tile_for

# ------------------------------
# Kernels of the engine as launches compile them: every tile that can be chosen, for usual and for odd heads.


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


class Case(NamedTuple):
    """A kernel and what it is compiled with."""

    kernel: str
    configuration: str
    function: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    plain: frozenset[str]
    integer: str = "i64"


class Step(NamedTuple):
    """A layout's tiles, and what attention is asked."""

    packed: int  # rows of a tile, query heads counted
    dtype: str = "bf16"
    window: bool = False
    direct: bool = False
    min_tiles: int = 1
    chunked: bool = False
    capped: bool = False
    sinks: bool = False


# (queries per KV head, head size): of Qwen2.5-7B and SmolLM2-135M, and the widest, for every kind of step; of Qwen3-8B,
# and of sizes between powers of two, for every tile.
HEADS, MORE_HEADS = [(7, 128), (3, 64), (2, 256)], [(4, 128), (1, 80), (1, 96), (2, 112)]
TILES = [Step(packed) for packed in (16, 32, 64, 128)]
STEPS = [
    *TILES,
    Step(16, min_tiles=2, window=True),
    Step(64, min_tiles=2, window=True),
    Step(16, direct=True),
    Step(64, direct=True),
    Step(64, dtype="fp16"),
    Step(64, dtype="fp32"),
]
# Attention of gpt-oss, Gemma 2 and Llama 4.
FEATURES = [
    ((8, 64), [Step(packed, min_tiles=2, window=True, sinks=True) for packed in (16, 64)] + [Step(64, sinks=True)]),
    ((2, 256), [Step(packed, window=packed == 64, capped=True) for packed in (16, 64, 128)]),
    ((5, 128), [Step(packed, window=True, chunked=True) for packed in (16, 64)]),
    ((2, 64), [Step(64, direct=True, capped=True, sinks=True)]),
]
_PLAIN = frozenset({"slots", "rows", "words", "height", "programs_each", "window", "share", "most"})
_BY_SLOT = dict.fromkeys(("firsts", "counts", "lengths"), "*i32")
_PARTIAL = ("partial", "maxima", "totals")


def _dependent(capability: int) -> tuple[dict[str, bool], dict[str, bool]]:
    """(compile-time arguments, options) of kernels that are launched while the one before ends, where a card can."""
    return {"PDL": capability >= 90}, {"launch_pdl": True} if capability >= 90 else {}


def attention_cases(capability: int) -> Iterator[Case]:
    """The attention kernel with every tile, and the kernel that joins splits."""
    from specbench.engine.kernels import tree_attention_kernels as kernels
    from specbench.engine.kernels.bits import OPTIONS
    from specbench.engine.kernels.tree_attention import _JOINED_ROWS

    depends, launch = _dependent(capability)

    features = [([heads], steps) for heads, steps in FEATURES]
    for heads, steps in [(HEADS, STEPS), (MORE_HEADS, TILES), *features]:
        for (group, size), step in product(heads, steps):
            tile = tile_for(step.packed, size, size, 4 if step.dtype == "fp32" else 2, TARGETS[capability].shared)
            words = [f"{group} x {size}", step.dtype, f"{tile.block_m} rows", f"{tile.stages} stages"]
            words += (
                ["chunks" if step.chunked else "window"] * step.window
                + ["cap"] * step.capped
                + ["sinks"] * step.sinks
                + ["direct"] * step.direct
                + [f"of {step.packed}"]
                + ["2 blocks or more"] * (step.min_tiles > 1)
            )
            types = dict.fromkeys(("query", "keys", "values", "out"), f"*{step.dtype}") | {"scale": "fp32"}
            types |= _BY_SLOT | dict.fromkeys(("bits", "depth"), "*i32")
            types |= dict.fromkeys(_PARTIAL, f"*{step.dtype}" if step.direct else "*fp32")
            joins = not step.direct and tile.block_m <= _JOINED_ROWS
            types["arrivals"] = "*i32" if joins else types["out"]
            types |= {"sinks": types["out"], "softcap": "fp32"}
            constants = {
                "group": group, "key_size": size, "value_size": size, "has_window": step.window,
                "chunked": step.chunked, "capped": step.capped, "has_sinks": step.sinks,
                "direct": step.direct, "joins": joins,
                "block_m": tile.block_m, "block_n": tile.block_n, "block_k": padded_size(size),
                "block_v": padded_size(size), "block_s": 64,
                "chunk": tile.chunk, "min_tiles": step.min_tiles, "stages": tile.stages, **depends,
            }  # fmt: skip
            options = {"num_warps": tile.warps, "num_stages": tile.stages, **OPTIONS, **launch}
            yield Case("attend", ", ".join(words), kernels.attend, types, constants, options, _PLAIN, "i32")
    for most, sinks in ((4, False), (MAX_SPLITS, False), (MAX_SPLITS, True)):
        constants = {"group": 7, "value_size": 128, "has_window": False, "chunked": False, "has_sinks": sinks}
        constants |= {"block_n": 64, "block_c": most, "block_v": 64, "min_tiles": 1, **depends}
        types = _BY_SLOT | dict.fromkeys(_PARTIAL, "*fp32") | {"out": "*bf16", "sinks": "*bf16", "slot_of": "*i32"}
        options = {"num_warps": 4 if most > 16 else 1, **OPTIONS, **launch}
        name = f"{most} splits" + " and sinks" * sinks
        yield Case("combine", name, kernels.combine, types, constants, options, _PLAIN)


def small_cases(capability: int) -> Iterator[Case]:
    """The others."""
    yield from _tree_cases()
    yield from _choice_cases()
    yield from _cache_cases()
    yield from _layer_cases(capability)
    yield from _skinny_cases(capability)


def _tree_cases() -> Iterator[Case]:
    from specbench.engine.kernels import accept, bits

    i32, plain = "*i32", frozenset({"rows", "words"})
    for block in bits._BLOCKS:
        types = dict.fromkeys(("parents", "slot_of", "firsts", "counts", "bits", "depth"), i32)
        sizes: dict[str, Any] = {"ROUNDS": (block - 1).bit_length(), "BLOCK": block}
        options = {"num_warps": 4, **bits.OPTIONS}
        yield Case("bits", f"{block} rows", bits._tree_bits, types, sizes, options, plain)
        types |= dict.fromkeys(("tokens", "next_token", "taken", "path", "bonus"), i32)
        for flag in ("i1", "i32"):
            sizes, its = {"BLOCK": block, "WORDS": block // 32}, types | {"accept": f"*{flag}"}
            options = {"num_warps": 8 if block > 128 else 4, **bits.OPTIONS}
            yield Case("accept", f"{block} rows {flag}", accept._accept, its, sizes, options, plain)


def _choice_cases() -> Iterator[Case]:
    from specbench.engine.kernels import best, filters, sample

    plain = frozenset({"queries", "splits", "pieces", "shift", "position_stride"})
    types = {"positions": "*i64", "seed": "*i64", "temperature": "*fp32", "partial": "*i64", "vocab": "i32"}
    types |= {"span": "i32"}
    for dtype, greedy, cut in (
        ("bf16", True, False), ("bf16", False, False), ("fp16", False, False), ("fp32", False, False),
        ("bf16", False, True), ("fp16", False, True), ("fp32", False, True),
    ):  # fmt: skip
        limits = dict.fromkeys(("limits", "shares"))
        sizes = {"GREEDY": greedy, "FILTER": cut, "BLOCK": sample._BLOCK} | ({} if cut else limits)
        words = f"{dtype} {'greedy' if greedy else 'sampled'}" + " within limits" * cut
        its = types | {"logits": f"*{dtype}"} | (dict.fromkeys(limits, "*i32") if cut else {})
        yield Case("choose", words, sample._best_of_split, its, sizes, sample._OPTIONS, plain)
    for count, tiles in ((1, 32), (7, 256), (16, 256)):
        its = {"scores": "*bf16", "logp": "*fp32", "tokens": "*i64", "tops": "*i64", "maxima": "*fp32", "sums": "*fp32"}
        its |= {"arrived": "*i32", "vocab": "i32"}
        sizes = {"K": count, "WIDE": 1 << (count - 1).bit_length(), "TILES": tiles, "BLOCK": best._BLOCK}
        yield Case("best", f"{count} of {tiles} tiles", best._best, its, sizes, best._OPTIONS, frozenset())
    for splits in (32, 256):  # at most, of a vocabulary
        its, options = {"partial": "*i64", "chosen": "*i32"}, {"num_warps": 1, "enable_fp_fusion": True}
        yield Case("reduce", f"{splits} splits", sample._best_of_row, its, {"BLOCK": splits}, options, plain)
    types = {name: types[name] for name in ("temperature", "vocab", "span")} | {"kept": "*fp32", "shift": "i32"}
    types |= dict.fromkeys(("wanted", "last_sums", "last_state", "sums", "state"), "*i64")
    types |= dict.fromkeys(("maxima", "floor", "limits", "shares"), "*i32")
    wide = filters._MOST_PIECES

    def of(kernel: Any, dtype: str, *absent: str) -> dict[str, str]:
        return {
            name: word
            for name, word in (types | {"logits": f"*{dtype}"}).items()
            if name in kernel.arg_names and name not in absent
        }

    for dtype in ("bf16", "fp16", "fp32"):
        for name, kernel in (("largest", filters._largest_of_piece), ("keep", filters._keep)):
            yield Case(name, dtype, kernel, of(kernel, dtype), {"BLOCK": filters._BLOCK}, filters._OPTIONS, plain)
        for (mass, floor), launch in product(((False, False), (True, False), (True, True)), (0, 1, 2)):
            absent = ["maxima"] * (not mass) + ["floor"] * (not floor)
            sizes = {"LAUNCH": launch, "MASS": mass, "FLOOR": floor, "PIECES": wide, "BLOCK": filters._BLOCK}
            words = f"{dtype} {'masses' if mass else 'counts'} launch {launch}" + " after top-k" * floor
            if dtype == "bf16" or (launch == 2 and mass == floor):
                its = of(filters._weigh, dtype, *absent)
                sizes |= dict.fromkeys(absent)
                yield Case("weigh", words, filters._weigh, its, sizes, filters._OPTIONS, plain)
    for mass in (False, True):
        absent = ["maxima"] * (not mass)
        sizes = {"MASS": mass, "PIECES": wide} | dict.fromkeys(absent)
        its = of(filters._settle, "bf16", *absent)
        yield Case("settle", "masses" if mass else "counts", filters._settle, its, sizes, filters._SETTLE, plain)


def _cache_cases() -> Iterator[Case]:
    from specbench.engine.kernels import kv, take

    plain, by_slot = frozenset({"rows", "slots", "heads"}), dict.fromkeys(("firsts", "lengths"), "*i32")
    options = {"num_warps": 4, **kv.OPTIONS}
    for size, value in ((128, 128), (96, 64), (576, 512)):
        tile_rows, _ = kv._tile(max(size, value))
        types = dict.fromkeys(("key", "value", "keys", "values"), "*bf16") | {"slot_of": "*i32"} | by_slot
        sizes = {"KEY": size, "KEY_WIDE": kv._tile(size)[1], "VALUE": value}
        sizes |= {"VALUE_WIDE": kv._tile(value)[1], "TILE_ROWS": tile_rows}
        yield Case("write", f"{size} {value}", kv._write, types, sizes, options, plain)
        tile_rows, wide = kv._tile(size)
        types = {"buffer": "*bf16", "count": "*i32", "path": "*i32"} | by_slot
        sizes = {"SIZE": size, "WIDE": wide, "TILE_ROWS": tile_rows}
        yield Case("commit", f"{size}", kv._commit, types, sizes, options, plain)
    names = ("next_token", "path", "count", "bonus", "firsts", "follows", "new", "anchor", "tokens")
    types = dict.fromkeys(names, "*i32") | dict.fromkeys(("hidden", "features"), "*bf16")
    plain = frozenset({"rows", "hidden_row", "tokens_row"})
    yield Case("take", "features", take._take, types, {"BLOCK": take._BLOCK}, take._OPTIONS, plain)


def _layer_cases(capability: int) -> Iterator[Case]:
    """Between a layer's products: of Qwen3-8B, SmolLM2-135M, Gemma3 and odd heads."""
    from triton import next_power_of_2

    from specbench.engine.kernels import gated, norm, rotate

    depends, launch = _dependent(capability)
    for size, dtype, gemma in (
        (4096, "bf16", False), (576, "bf16", False), (8192, "bf16", False),
        (2560, "bf16", True), (4096, "fp16", False), (4096, "fp32", False),
    ):  # fmt: skip
        wide = next_power_of_2(size)
        of_rows = ("residual", "branch", "weight", "branch_weight", "total", "normed")
        types = dict.fromkeys(of_rows, f"*{dtype}") | dict.fromkeys(("eps", "branch_eps"), "fp32")
        for adds in (True, False):
            sizes = {"SIZE": size, "ADDS": adds, "BRANCH_NORM": gemma, "WIDE": wide, **depends}
            sizes |= dict.fromkeys(("OFFSET", "BRANCH_OFFSET"), int(gemma))
            words = f"{size} {dtype}" + " both norms" * gemma + ("" if adds else " no sum")
            options = {"num_warps": norm.warps_for(wide), **norm._OPTIONS, **launch}
            yield Case("add_norm", words, norm._add_norm, types, sizes, options, frozenset())
    for size, dtype, silu in (
        (12288, "bf16", True), (1536, "bf16", True), (10240, "bf16", False), (12288, "fp16", True),
        (12288, "fp32", True),
    ):  # fmt: skip
        types = dict.fromkeys(("both", "out"), f"*{dtype}")
        sizes = {"SIZE": size, "SILU": silu, "BLOCK": gated._BLOCK, **depends}
        words = f"{size} {dtype} {'silu' if silu else 'gelu'}"
        yield Case("gated", words, gated._gated, types, sizes, gated._OPTIONS | launch, frozenset())
    plain = frozenset({"rows", "slots", "heads", "kv_heads"})
    for size, rotary, normed, offset, dtype in (
        (128, 128, True, 0, "bf16"), (128, 128, False, 0, "bf16"),
        (64, 64, False, 0, "bf16"), (256, 256, True, 1, "bf16"), (96, 96, False, 0, "bf16"),
        (80, 32, False, 0, "bf16"), (128, 128, True, 0, "fp16"), (128, 128, True, 0, "fp32"),
    ):  # fmt: skip
        wide = next_power_of_2(size)
        names = ("query", "key", "value", "cos", "sin", "query_weight", "key_weight", "turned", "keys", "values")
        types = dict.fromkeys(names, f"*{dtype}") | dict.fromkeys(("slot_of", "firsts", "lengths"), "*i32")
        types |= dict.fromkeys(("query_eps", "key_eps"), "fp32")
        sizes = {"SIZE": size, "VALUE": size, "ROTARY": rotary, "QUERY_NORM": normed, "KEY_NORM": normed}
        sizes |= {"QUERY_OFFSET": offset, "KEY_OFFSET": offset, "WIDE": wide}
        sizes |= {"TILE_ROWS": max(1, rotate._TILE // wide), **depends}
        words = f"{size} {dtype}" + f" of {rotary}" * (rotary != size) + " norms" * normed
        yield Case("rotate", words, rotate._rotate, types, sizes, rotate._OPTIONS | launch, plain)


def _skinny_cases(capability: int) -> Iterator[Case]:
    """Products of few rows as they are cut for an H200; of a width that no tile divides, too, and with a bias."""
    import torch

    from specbench.engine.kernels import skinny

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for outputs, inputs, dtype, bias in (
        (4096, 4096, "bf16", False), (4096, 14336, "bf16", False), (4096, 4096, "fp32", False),
        (1152, 912, "fp16", True),
    ):  # fmt: skip
        depends, launch = _dependent(capability if dtype != "fp32" else 0)
        for config in skinny.configs(outputs, inputs, dtypes[dtype], 132):
            # Without splits their two arguments are the output.
            shared = {"parts": "*fp32", "arrived": "*i32"} if config.splits > 1 else {}
            types = dict.fromkeys(("x", "weight", "bias", "out", "parts", "arrived"), f"*{dtype}") | shared
            sizes = {"BIAS": bias, "WHOLE": inputs % config.block_k == 0, "SPLITS": config.splits, "ROWS": 16}
            sizes |= {"BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "AHEAD": config.stages - 1, **depends}
            sizes |= {"LINE": skinny._LINE // dtypes[dtype].itemsize}
            words = f"{outputs} of {inputs} {dtype} by {config.block_n} x {config.block_k} in {config.splits}"
            options = {"num_warps": config.warps, "num_stages": config.stages, **skinny._OPTIONS, **launch}
            yield Case("skinny", words, skinny._skinny, types, sizes, options, frozenset({"rows"}), "i32")


def cases(capability: int) -> Iterator[Case]:
    """All of them."""
    yield from attention_cases(capability)
    yield from small_cases(capability)


# ------------------------------
# Kernels compiled to machine code without a GPU, and what the assembler says of each.
#
# Compiling is done by a process of its own, this file as a script, because the tests' own process interprets kernels;
# and so by another triton than the tests', where ``triton`` names the folder of one.


REGISTERS = 65536  # of a multiprocessor
_CODE = ("HMMA", "HGMMA", "UTCHMMA")


def builds(capability: int, cache: Path, *, kernel: str = "", triton: str | None = None) -> list[dict[str, Any]]:
    """What :func:`build` found of every case, or of those of one kernel."""
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
    # in memory from before the loops until after them, once a program.
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


# ------------------------------
# Counts the variants of kernels that launches would compile, by triton's own rules and without a GPU.
#
# A launch is compiled anew where its key differs: the types of its arguments, whether a number is 1 or a multiple of
# 16, whether a pointer is a multiple of 16 bytes, compile-time arguments and options. Triton's binder makes that key;
# here it binds what :func:`benchmarks.gpu_check.meta_step.launches` notes, on tensors without memory, for an H200.


@dataclass(frozen=True)
class _Pointer:
    """What a binder reads of a tensor; CUDA's allocator aligns what a tensor begins at, a view may be further on."""

    dtype: Any
    at: int

    def data_ptr(self) -> int:
        return self.at


class Variants:
    """The distinct launches, by kernel; :meth:`note` is for :func:`benchmarks.gpu_check.meta_step.launches`."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = defaultdict(set)
        self.unsaid: set[str] = set()  # kernels whose launches leave fused multiply-add to triton's default

    def note(self, kernel: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        """Binds a launch's arguments."""
        _, found, options = _binder(kernel)(
            *[_pointer(each) for each in args], **{name: _pointer(each) for name, each in named.items()}
        )
        self.keys[kernel.__name__].add(f"{found} {sorted(options.items())}")
        if "enable_fp_fusion" not in options:
            self.unsaid.add(kernel.__name__)

    def counts(self) -> dict[str, int]:
        """Variants of each kernel."""
        return {name: len(keys) for name, keys in self.keys.items()}

    def total(self) -> int:
        """Variants of all kernels."""
        return sum(self.counts().values())


def _pointer(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return _Pointer(argument.dtype, int(argument.storage_offset()) * argument.element_size())


@cache
def _binder(kernel: Any) -> Any:
    """Of a kernel that is compiled or interpreted."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    if not isinstance(kernel, JITFunction):  # the interpreter's, which keeps what it was made with
        marks = {name: kernel.kwargs.get(name) for name in ("do_not_specialize", "do_not_specialize_on_alignment")}
        kernel = JITFunction(kernel.fn, **marks)
    return create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))
