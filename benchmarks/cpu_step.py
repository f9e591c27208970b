"""The time of one engine step by its rows, over the memory-bandwidth floor, as it is and compiled.

A step has to read every weight once, so the floor is the time of reading as many bytes, by specbench's probe, which
needs a C++ compiler. It is measured in every round beside the steps, because a machine's bandwidth is its neighbours'
too; the figures are medians of ratios within a round. `linears` is the model's linear layers alone, as the engine runs
them without compilation; what a step takes beyond them (`outside`, as a share of the step) is attention, cache, norms,
rotary embedding and Python.

    python benchmarks/cpu_step.py [--rows 1,2,4,8,16,32,64] [--rounds 15] [--context 200] [--threads 2] [--no-compile]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from specbench.decoding import TokenTree
from specbench.engine import Engine
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import load


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Steps:
    """Steps of chains of random tokens, of which an engine takes one or little more, over a context that grows by it.

    Args:
        model: a transformers causal LM without an engine.
        context: tokens in the cache before the first step.
        steps: how many there will be at most.
        rows: largest step.
        compiled: whether the engine compiles the layers.
    """

    def __init__(self, model: Any, context: int, steps: int, rows: int, compiled: bool) -> None:
        self._ids = random.Random(0).choices(range(model.get_input_embeddings().num_embeddings), k=context)
        self._random = random.Random(1)
        self.engine = Engine(model, capacity=context + 4 * steps + rows, max_rows=rows, compile=compiled)
        self._slot = self.engine.alloc()
        self.engine.prefill(self._slot, self._ids)
        self.engine.close()

    def __call__(self, rows: int) -> float:
        """Seconds of a step; the model is the engine's while it lasts."""
        self.engine.attach()
        tree = TokenTree.chain(self._random.choices(self._ids, k=rows))
        seconds = _seconds(lambda: self.engine.step({self._slot: tree}))
        self.engine.close()
        return seconds


def linears_alone(engine: Engine, rows: int) -> float:
    """Seconds of all linear layers with the engine's kernels, in the order in which the model holds them."""
    layers = [m for m in engine.model.modules() if type(m) is nn.Linear]
    inputs = {layer.in_features: torch.randn(1, rows, layer.in_features) for layer in layers}
    engine.attach()
    with torch.inference_mode():
        seconds = _seconds(lambda: [layer(inputs[layer.in_features]) for layer in layers])
    engine.close()
    return seconds


def measure(name: str, rows: list[int], rounds: int, context: int, compiled: bool) -> dict[str, Any]:
    """Ratios of every row count; ``start_s`` is what the first steps of each kind took, compilation included."""
    loaded = load(name, dtype="float32")
    arms: dict[str, Steps] = {}
    start: dict[str, float] = {}
    for arm in ("step", "compiled") if compiled else ("step",):
        began = time.perf_counter()
        arms[arm] = Steps(loaded.model, context, (rounds + 2) * len(rows) + 1, max(rows), arm == "compiled")
        for count in (1, *rows):
            arms[arm](count)
        start[arm] = time.perf_counter() - began
    ratios: dict[tuple[str, int], list[float]] = defaultdict(list)
    floors = []
    with BandwidthProbe() as probe:
        for _ in range(rounds):
            for count in rows:
                floors.append(loaded.spec.weight_bytes / probe.read(torch.get_num_threads(), readings=1))
                times = {arm: steps(count) for arm, steps in arms.items()}
                times["linears"] = linears_alone(arms["step"].engine, count)
                for arm, seconds in times.items():
                    ratios[arm, count].append(seconds / floors[-1])
    over = {key: median(found) for key, found in ratios.items()}
    table = []
    for count in rows:
        row: dict[str, Any] = {"rows": count}
        for arm in (*arms, "linears"):
            row[arm] = over[arm, count]
        row |= {f"{arm}_to_first": over[arm, count] / over[arm, rows[0]] for arm in arms}
        row["outside"] = 1 - over["linears", count] / over["step", count]
        table.append(row)
    return {"model": loaded.spec.name, "floor_ms": 1e3 * median(floors), "start_s": start, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [int(count) for count in args.rows.split(",")]
    result = measure(args.model, rows, args.rounds, args.context, not args.no_compile)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    start = ", ".join(f"{arm} {seconds:.1f} s" for arm, seconds in result["start_s"].items())
    print(
        f"{result['model']} fp32; floor {result['floor_ms']:.1f} ms, all else over it; start and first steps: {start}"
    )
    print("".join(f"{name:>19}" for name in result["table"][0]))
    for row in result["table"]:
        print("".join(f"{value:19.2f}" if isinstance(value, float) else f"{value:19}" for value in row.values()))


if __name__ == "__main__":
    main()
