"""Compare our tree attention with torch's SDPA with a dense mask: one layer of Qwen2.5-7B in bfloat16, by cache length.

Both read the same cache and write the same rows. Both are captured in CUDA graphs and replayed alternately, so that
launch time does not count and both run at the same clocks. Between replays a buffer larger than L2 is written, because
in a model the weights of a layer pass through L2 between two attentions. SDPA's mask is built outside the timing.

The GPU check's part ``attention`` calls it; it needs a CUDA device.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
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
