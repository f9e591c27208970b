"""Measure bandwidth and peak of the device, the basis of every prediction."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.nodes import COPIED
from benchmarks.gpu_check.predict import Expected, Known
from benchmarks.gpu_check.records import Figure
from specbench.hardware import gpus
from specbench.hardware.gpus import Gpu
from specbench.profiling.ceilings import measure_ceilings

_SECONDS = 6.0


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the ceilings from the datasheet."""
    if known.card is not None:
        yield from _expected(known.card)


def _expected(card: Gpu) -> Iterator[Figure]:
    basis = f"datasheet of {card.name}"
    copied = f"{COPIED:.3g} (assumed) of the {basis}"
    for name in ("copy bandwidth", "read bandwidth"):
        yield Figure(name, None, "GB/s", predicted=COPIED * card.bandwidth_gb_s, basis=copied)
    if card.bf16:
        yield Figure("matrix product", None, "TFLOP/s", predicted=card.bf16, basis=basis)


def run(bench: Bench) -> Iterator[Figure]:
    """Measure bandwidth by copying and by reading, and FLOPs by a square matrix product; compare with the datasheet."""
    device = torch.device("cpu" if bench.rehearse else "cuda")
    dtype = torch.float32 if bench.rehearse else torch.bfloat16
    found = measure_ceilings(device, dtype, seconds=0.0 if bench.rehearse else _SECONDS)
    here = bench.journal.last("device")
    board = gpus.identify(here.get("name", ""), here.get("memory_bytes"))
    expected = Expected()
    if board is not None:
        expected.add(_expected(board))
    note = f"{found.buffer_bytes / 2**30:.3g} GiB, median of {found.repeats}"
    yield Figure(
        "copy bandwidth", found.copy_bytes_per_s / 1e9, "GB/s", note=f"read and written; {note}", key="copy",
        **expected.fields("copy bandwidth"),
    )  # fmt: skip
    yield Figure(
        "read bandwidth",
        found.read_bytes_per_s / 1e9,
        "GB/s",
        note=f"by reading alone; {note}",
        **expected.fields("read bandwidth"),
    )
    yield Figure(
        "matrix product", found.flops_per_s / 1e12, "TFLOP/s", key="flops",
        note=f"square, {found.matmul_size}, {str(dtype).removeprefix('torch.')}", **expected.fields("matrix product"),
    )  # fmt: skip
