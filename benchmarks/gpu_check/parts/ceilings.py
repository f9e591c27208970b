"""Ceilings: what the device does at best, which every prediction is made of."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from specbench.hardware import gpus
from specbench.profiling.ceilings import measure_ceilings

_SECONDS = 6.0


def run(bench: Bench) -> Iterator[Figure]:
    """Bandwidth by a copy and by reading, arithmetic by a square matrix product, beside the datasheet's."""
    device = torch.device("cpu" if bench.rehearse else "cuda")
    dtype = torch.float32 if bench.rehearse else torch.bfloat16
    found = measure_ceilings(device, dtype, seconds=0.0 if bench.rehearse else _SECONDS)
    here = bench.journal.last("device")
    board = gpus.identify(here.get("name", ""), here.get("memory_bytes"))
    basis = f"datasheet of {board.name}" if board else ""
    bandwidth = board.bandwidth_gb_s if board else None
    peak = board.bf16 if board else None
    note = f"{found.buffer_bytes / 2**30:.3g} GiB, median of {found.repeats}"
    yield Figure(
        "copy bandwidth", found.copy_bytes_per_s / 1e9, "GB/s", note=f"read and written; {note}", key="copy",
        predicted=bandwidth, basis=basis,
    )  # fmt: skip
    yield Figure(
        "read bandwidth",
        found.read_bytes_per_s / 1e9,
        "GB/s",
        note=f"by reading alone; {note}",
        predicted=bandwidth,
        basis=basis,
    )
    yield Figure(
        "matrix product", found.flops_per_s / 1e12, "TFLOP/s", key="flops", predicted=peak, basis=basis,
        note=f"square, {found.matmul_size}, {str(dtype).removeprefix('torch.')}",
    )  # fmt: skip
