"""``make gpu-check``: is everything right on this GPU, and how fast is it?

    python -m benchmarks.gpu_check [--model FILE.gguf] [--out results/gpu-check] [--rehearse]

Needs no network. Beside torch, triton and transformers it needs pydantic, typer, rich, pandas, pytest, and gguf where
the model is a GGUF file. Parts are in order of importance, each is written as it ends, and an error ends its part only.
``--rehearse`` runs every part on tiny models on whatever device there is: nothing it prints is a result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu_check import shapes, small
from benchmarks.gpu_check.records import Check, Figure, Part
from specbench.hardware import environment
from specbench.hardware.profile import MeasuredCeilings
from specbench.models.loader import _device as device_of
from specbench.models.names import DEFAULT_MODEL
from specbench.profiling.ceilings import measure_ceilings
from specbench.runner.methods import runnable

BUDGET_S = 520  # under 9 minutes
JF_LARGE = ["jf.n=64", "jf.K=2", "jf.r=0.85", "jf.pool=4"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the small real model: alias, folder or .gguf file")
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check"))
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds after which no part is begun")
    parser.add_argument("--only", default="", help="parts whose names hold this")
    parser.add_argument("--rehearse", action="store_true", help="tiny models, any device")
    args = parser.parse_args()
    device = device_of("auto")
    if device.type != "cuda" and not args.rehearse:
        print("gpu-check needs a CUDA device; --rehearse runs its parts on tiny models without one", file=sys.stderr)
        return 3
    captured = environment.capture(str(device)).model_dump(mode="json")
    check = Check(args.out, captured, args.budget)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    ceilings = measure_ceilings(device, dtype)
    bandwidth = ceilings.copy_bytes_per_s
    check.run("ceilings", lambda: _ceilings(ceilings, dtype), _say)
    for name, part in parts(args.model, bandwidth, args.out, args.rehearse).items():
        if args.only in name:
            check.run(name, part, _say)
            shapes.free_memory()
    _say(f"{args.out / 'gpu-check.md'}: {'passed' if check.passed else 'NOT passed'}")
    return 0 if check.passed else 1


def _ceilings(measured: MeasuredCeilings, dtype: torch.dtype) -> Iterator[Figure]:
    yield Figure("copy bandwidth", measured.copy_bytes_per_s / 1e9, "GB/s", note="read and written")
    yield Figure("read bandwidth", measured.read_bytes_per_s / 1e9, "GB/s", note="of a sum")
    product = f"square product of {measured.matmul_size}, {str(dtype).removeprefix('torch.')}"
    yield Figure("arithmetic", measured.flops_per_s / 1e12, "TFLOP/s", note=product)


def parts(model: str, bandwidth: float, out: Path, rehearse: bool) -> dict[str, Part]:
    """Name -> part, the most important first."""
    methods = runnable()
    if rehearse:
        size = shapes.Size(context=40, steps=6, concurrency=(1, 2), rows=(1, 4))
        large, other, dtype = "config:tiny", "config:tiny", "float32"
        model, tokens, few = "config:tiny", 8, 1
        jf, budget = ["jf.n=8", "jf.K=2", "jf.pool=2"], "jetspec.budget=16"
        suites: dict[str, Part] = {"tests": partial(small.tests, ["tests/decoding/test_tree.py"])}
    else:
        size = shapes.Size()
        large, other, dtype = "config:qwen2.5-7b", "config:qwen3-8b", "bfloat16"
        tokens, few = 128, 6
        jf, budget = JF_LARGE, "jetspec.budget=128"
        suites = {
            "kernels": partial(small.tests, ["tests/engine/kernels"], "-m", "not slow"),
            "graphs": partial(small.tests, ["tests/engine/test_cuda.py", "tests/methods/test_jetspec_cuda.py"]),
        }
    drafters = [("jf", jf), ("lookahead", ["lookahead.preset=15/5/15"])]
    found: dict[str, Part] = {
        **suites,
        "lossless fp32": partial(small.lossless, model, methods, "float32", tokens, few),
        "large model": partial(shapes.baseline, large, bandwidth, size, dtype, compile=not rehearse),
        "large model, not compiled": partial(shapes.baseline, large, bandwidth, size, dtype, compile=False, brief=True),
        "drafting": partial(shapes.drafting, large, size, dtype, drafters),
        "draft head": partial(shapes.drafting, other, size, dtype, [("jetspec", ["jetspec.head=random", budget])]),
        "other model": partial(shapes.baseline, other, bandwidth, size, dtype, compile=not rehearse),
        "small model": partial(small.speed, model, methods, tokens, out),
        "concurrency": partial(shapes.concurrency, large, size, dtype, ["jf.n=16"]),
        "drafts by models": partial(
            small.lossless,
            model,
            ["sps", "jetspec"],
            "float32",
            tokens,
            few,
            [f"sps.draft={model}", "jetspec.head=random"],
        ),
        "graded bf16": partial(small.lossless, model, methods, "bfloat16", tokens, few),
    }
    if not rehearse:
        from benchmarks.gpu_check.attention import kernel

        found["attention"] = partial(kernel, 64)
    return found


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
