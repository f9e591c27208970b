"""Compare our tree attention with torch's SDPA with a dense mask: one layer of Qwen2.5-7B in bfloat16, by cache length.

Both read the same cache and write the same rows. Both are captured in CUDA graphs and replayed alternately, so that
launch time does not count and both run at the same clocks. Between replays a buffer larger than L2 is written, because
in a model the weights of a layer pass through L2 between two attentions. SDPA's mask is built outside the timing.

    python benchmarks/kernels/attention_vs_sdpa.py [--rows 64] [--slots 1] [--out FILE.json]

Needs a CUDA device; without one it exits with code 3.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
HEADS, KV_HEADS, SIZE = 28, 4, 128  # Qwen2.5-7B
_FLUSH_BYTES = 256 << 20  # twice the largest L2 cache of any GPU


def measure(
    rows: int = 64, contexts: Sequence[int] = CONTEXTS, slots: int = 1, repeats: int = 50, seed: int = 0
) -> list[dict[str, Any]]:
    """Time both at every cache length.

    Args:
        rows: rows of the tree, which has a random shape.
        contexts: numbers of cached cells before the tree.
        slots: sequences in the forward.
        repeats: timed replays of each.
        seed: random seed of the data, the tree and the order.

    Returns:
        One dict per length: ``context``, ``rows``, ``slots``, median ``kernel_ms`` and ``sdpa_ms``, their ratio
        ``speedup``, ``kv_gb_s`` (visible keys and values per second of the kernel, in 10⁹ bytes), and
        ``max_difference`` of the two results; ``joined_ms`` and ``combined_ms`` are the kernel's times if the last
        split joins all splits, and if a second kernel does.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("timing attention needs a CUDA device")
    rng = random.Random(seed)
    torch.manual_seed(seed)
    return [_at(context, rows, slots, repeats, rng) for context in contexts]


def _at(context: int, rows: int, slots: int, repeats: int, rng: random.Random) -> dict[str, Any]:
    from specbench.engine.attention.backends import ReferenceAttention, TritonAttention
    from specbench.engine.attention.interface import LayerAttention, Visibility
    from specbench.engine.kernels.ops import TritonOps
    from specbench.engine.kernels.tree_attention import tile_height, tree_attention
    from specbench.engine.layout import Layout
    from specbench.engine.ops import TorchOps

    device = torch.device("cuda")
    query, keys, values = (
        torch.randn(*shape, SIZE, dtype=torch.bfloat16, device=device)
        for shape in ((1, HEADS, slots * rows), *[(slots, KV_HEADS, context + rows)] * 2)
    )
    group = HEADS // KV_HEADS
    height = tile_height(slots * rows, group, rows > 16 // group, device, KV_HEADS)
    layout = Layout.even(slots, rows, device, height=height)
    tree = [0] + [rng.randrange(row) for row in range(1, rows)]
    parents = torch.tensor([slot * rows + row for slot in range(slots) for row in tree], dtype=torch.int32).to(device)
    lengths = torch.full((slots,), context, dtype=torch.int32, device=device)

    def arm(ops: Any, backend: Any) -> Callable[[], Tensor]:
        ancestry = ops.ancestry(parents, layout)
        attention = backend(Visibility(layout, lengths, ancestry.depth, ancestry.rows))
        return lambda: attention(query, keys, values, LayerAttention())

    arms = {"kernel": arm(TritonOps(device), TritonAttention), "sdpa": arm(TorchOps(), ReferenceAttention)}
    bits = TritonOps(device).ancestry(parents, layout)
    for name, joins in (("joined", True), ("combined", False)):
        arms[name] = partial(
            tree_attention, query, keys, values, layout, lengths, bits.rows, bits.depth, LayerAttention(), joins=joins
        )
    difference = (arms["kernel"]() - arms["sdpa"]()).abs().max().item()
    milliseconds = _interleaved(arms, repeats, rng)
    moved = keys.nbytes + values.nbytes
    return {
        "context": context,
        "rows": rows,
        "slots": slots,
        "kernel_ms": milliseconds["kernel"],
        "sdpa_ms": milliseconds["sdpa"],
        "joined_ms": milliseconds["joined"],
        "combined_ms": milliseconds["combined"],
        "speedup": milliseconds["sdpa"] / milliseconds["kernel"],
        "kv_gb_s": moved / milliseconds["kernel"] / 1e6,
        "max_difference": difference,
    }


def _interleaved(arms: dict[str, Callable[[], Tensor]], repeats: int, rng: random.Random) -> dict[str, float]:
    """Median milliseconds of a replay of each graph, in random order, with L2 emptied before each replay."""
    graphs = {name: _captured(call) for name, call in arms.items()}
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name in rng.sample(list(graphs), len(graphs)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            start.record()
            graphs[name].replay()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: median(start.elapsed_time(end) for start, end in pairs) for name, pairs in events.items()}


def _captured(call: Callable[[], Tensor]) -> torch.cuda.CUDAGraph:
    """Capture one call in a graph, after warm-up calls on another stream that compile kernels and allocate memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 3
    found = measure(args.rows, args.contexts, args.slots, args.repeats)
    print(f"{torch.cuda.get_device_name()}: {args.slots} x {args.rows} rows, {HEADS}/{KV_HEADS} heads of {SIZE}, bf16")
    print(f"{'cells':>7} {'kernel µs':>10} {'SDPA µs':>10} {'speedup':>8} {'KV GB/s':>8} {'difference':>10}")
    for row in found:
        print(
            f"{row['context']:7d} {1e3 * row['kernel_ms']:10.1f} {1e3 * row['sdpa_ms']:10.1f} {row['speedup']:8.2f}"
            f" {row['kv_gb_s']:8.0f} {row['max_difference']:10.4f}"
        )
    if args.out:
        args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
