"""Time of one engine step by its number of rows, compared with the machine's limits, with and without our own layers.

A step has to read every weight once and compute every matrix product. Its time is therefore at least weight bytes /
measured bandwidth, and about the time that torch takes for the products with weights in cache. ``bound`` is the larger
of the two. Both are measured in every round together with the steps, because other processes on the machine change its
bandwidth; the figures are medians of ratios within a round, with quartiles. ``share`` is the part of the bandwidth that
the step uses; ``to first`` is the step's time divided by that of the step with the fewest rows.

    python benchmarks/cpu_step.py [--rows 1,8,16,64] [--rounds 15] [--context 200] [--threads 1,2] [--compile]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from specbench.decoding import TokenTree
from specbench.engine import Engine
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import LoadedModel, load


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Steps:
    """Steps of chains of random tokens over a fixed context.

    Args:
        model: a transformers causal LM without an engine.
        context: tokens in the cache before a step.
        rows: rows of the largest step.
        options: options of the engine.
    """

    def __init__(self, model: Any, context: int, rows: int, **options: Any) -> None:
        vocab = model.get_input_embeddings().num_embeddings
        self._random, self._vocab, self._context = random.Random(1), vocab, context
        self.engine = Engine(model, capacity=context + rows, max_rows=rows, **options)
        self._slot = self.engine.alloc()
        self.engine.prefill(self._slot, [self._random.randrange(vocab) for _ in range(context)])
        self.engine.detach()

    def __call__(self, rows: int) -> float:
        """Seconds of a step. The engine uses the model during the call."""
        self.engine.attach()
        tree = TokenTree.chain([self._random.randrange(self._vocab) for _ in range(rows)])
        seconds = _seconds(lambda: self.engine.step({self._slot: tree}))
        self.engine.rewind(self._slot, self._context)
        self.engine.detach()
        return seconds


def torch_seconds(model: Any, rows: int) -> float:
    """Seconds that torch takes for all matrix products of a step, with weights in cache if they fit.

    One layer of each shape is timed several times in a row and multiplied by the number of layers with that shape.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    counts = Counter(layer.weight.shape for layer in layers)
    total = 0.0
    with torch.inference_mode():
        for layer in {layer.weight.shape: layer for layer in layers}.values():
            call = partial(
                nn.functional.linear, torch.randn(rows, layer.in_features).to(layer.weight.dtype), layer.weight
            )
            total += counts[layer.weight.shape] * median([_seconds(call) for _ in range(4)][1:])
    return total


def measure(loaded: LoadedModel, rows: list[int], rounds: int, context: int, compiled: bool) -> list[dict[str, Any]]:
    """Return a table row for each number of rows, with torch's current number of threads."""
    model, weight_bytes = loaded.model, loaded.spec.weight_bytes
    kinds: dict[str, dict[str, Any]] = {"own": {"native": True}, "without": {"native": False}}
    if compiled:
        kinds["compiled"] = {"native": False, "compile": True}
    arms = {name: Steps(model, context, max(rows), **options) for name, options in kinds.items()}
    for steps in arms.values():
        for count in (1, *rows):
            steps(count)
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    with BandwidthProbe() as probe:
        for _ in range(rounds):
            for count in rows:
                rate = probe.read(torch.get_num_threads(), readings=1)
                floor = weight_bytes / rate
                bound = max(floor, torch_seconds(model, count))
                found["bandwidth", count].append(rate)
                for arm, steps in arms.items():
                    seconds = steps(count)
                    found[arm, count].append(seconds)
                    found[f"{arm} over bound", count].append(seconds / bound)
                    found[f"{arm} share", count].append(floor / seconds)
    table = []
    for count in rows:
        row: dict[str, Any] = {"threads": torch.get_num_threads(), "rows": count}
        row["gb_s"] = median(found["bandwidth", count]) / 1e9
        for arm in arms:
            low, middle, high = quantiles(found[f"{arm} over bound", count], n=4)
            row |= {
                f"{arm}_ms": 1e3 * median(found[arm, count]),
                f"{arm}_over_bound": middle,
                f"{arm}_over_bound_quartiles": [low, high],
                f"{arm}_share": median(found[f"{arm} share", count]),
                f"{arm}_to_first": median(found[arm, count]) / median(found[arm, rows[0]]),
            }
        table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", default="1,8,16,64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loaded = load(args.model, dtype=args.dtype, device="cpu")
    rows = [int(count) for count in args.rows.split(",")]
    table: list[dict[str, Any]] = []
    for threads in args.threads.split(","):
        torch.set_num_threads(int(threads))
        table += measure(loaded, rows, args.rounds, args.context, args.compile)
    if args.json:
        print(json.dumps(table, indent=2))
        return
    print(f"{loaded.spec.name} {loaded.spec.dtype}, {loaded.spec.weight_bytes / 1e6:.0f} MB, context {args.context}")
    print(f"{'threads':>7} {'rows':>4} {'GB/s':>5}  arm            ms  over bound             share  to first")
    for row in table:
        for arm in ("own", "without", "compiled"):
            if f"{arm}_ms" in row:
                low, high = row[f"{arm}_over_bound_quartiles"]
                print(
                    f"{row['threads']:7} {row['rows']:4} {row['gb_s']:5.1f}  {arm:9} {row[f'{arm}_ms']:7.1f}  "
                    f"{row[f'{arm}_over_bound']:10.2f} [{low:.2f}, {high:.2f}]  {row[f'{arm}_share']:8.2f}  "
                    f"{row[f'{arm}_to_first']:8.2f}"
                )


if __name__ == "__main__":
    main()
