"""Host time of a step by the number of sequences and their rows, with a device that takes no time.

The cost of a step without the target's forward, in µs per step: ``pack`` orders the trees and writes them into the
input array, ``results`` reads the output array, ``rest`` is everything else that :meth:`Engine.step` does around a
replay that leaves its output unchanged. ``loop`` is the runner's own work between two steps. Steps with more rows than
are ever captured run eagerly. Then follow real eager steps of a tiny random model by the phases of ``--trace``:
``draft`` and ``observe`` are the method's; the other phases include the device's work.

With ``--against FOLDER``, another checkout, every figure is measured there too, alternating with this checkout, and
``ratio`` is this checkout's time divided by the other's: the median over the rounds, with quartiles.

    python benchmarks/host_step.py [--sequences 1,8,64] [--rows 1,8,64] [--rounds 9] [--against FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from specbench import decoding
from specbench.decoding import Context, Method, StepResult, TokenTree
from specbench.engine import Engine, graphs, pack
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.program import Computed
from specbench.planning.methods import plan_methods
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

VOCAB = 997
CONTEXT = 100  # cached tokens before each step
ACCEPTED = 3  # rows of each path, if the tree is deep enough
STEPS = 40  # timed in each round
REAL = ("ar", "pld")
OWN = ("pack", "results", "rest", "loop")
PHASES = ("draft", "build", "accept", "commit", "observe")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", default="1,8,64")
    parser.add_argument("--rows", default="1,8,64", help="rows of each tree: 1 is AR, up to 16 are chains")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of this repository")
    parser.add_argument("--no-real", action="store_true", help="leave out the real steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    checkouts = {"here": Path(__file__).resolve().parents[1]}
    if args.against:
        checkouts["there"] = args.against.resolve()
    sequences, rows = ([int(each) for each in given.split(",")] for given in (args.sequences, args.rows))
    cells: list[tuple[str, int]] = [(str(count), many) for many in sequences for count in rows]
    if not args.no_real:
        cells += [(name, many) for many in sequences for name in REAL]
    table = compare(checkouts, cells, args.rounds)
    if args.json:
        print(json.dumps(table, indent=2))
        return
    print(f"{'sequences':>9} {'trees':>6}  {'µs a step':10}" + "".join(f"{name:>10}" for name in checkouts) + "  ratio")
    for row in table:
        line = f"{row['sequences']:9} {row['trees']:>6}  {row['figure']:10}"
        line += "".join(f"{row[name]:10.1f}" for name in checkouts)
        if "ratio" in row:
            line += "  {:.2f} [{:.2f}, {:.2f}]".format(row["ratio"], *row["ratio_quartiles"])
        print(line)


def compare(checkouts: Mapping[str, Path], cells: Sequence[tuple[str, int]], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each figure of each cell. A cell is (rows of a tree or name of a method, sequences)."""
    found: dict[tuple[str, int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        ask = {name: stack.enter_context(serving(root)) for name, root in checkouts.items()}
        for turn in range(rounds):
            for trees, sequences in cells:
                # Alternate the order: the first one finds the caches filled by the other.
                for name in sorted(ask, reverse=bool(turn % 2)):
                    for figure, seconds in ask[name](trees, sequences).items():
                        found[trees, sequences, figure][name].append(1e6 * seconds)
    table = []
    for (trees, sequences, figure), taken in found.items():
        row: dict[str, Any] = {"sequences": sequences, "trees": trees, "figure": figure}
        row |= {name: median(times) for name, times in taken.items()}
        if len(taken) == 2:
            ratios = [here / there for here, there in zip(taken["here"], taken["there"], strict=True)]
            low, row["ratio"], high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            row["ratio_quartiles"] = [low, high]
        table.append(row)
    return table


@contextmanager
def serving(root: Path) -> Iterator[Callable[[str, int], dict[str, float]]]:
    """Start a process that measures cells on the checkout ``root`` and stays warm; yield the function that asks it."""
    if not (root / "specbench" / "engine").is_dir():
        raise SystemExit(f"{root} is not a checkout of this repository")
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        requests, replies = process.stdin, process.stdout
        assert requests
        assert replies

        def ask(trees: str, sequences: int) -> dict[str, float]:
            print(json.dumps([trees, sequences]), file=requests, flush=True)
            line = replies.readline()
            if not line:
                raise SystemExit(f"the benchmark on the checkout {root} ended early; see its output above")
            reply: dict[str, float] = json.loads(line)
            return reply

        where = Path(replies.readline().strip())
        if not where.is_relative_to(root):
            raise SystemExit(f"specbench was imported from {where} instead of {root}")
        yield ask
        requests.close()


# ------------------------------------------------------------------ in the process of a checkout


def serve() -> None:
    """Read one cell per input line and write its figures, in seconds, as one output line."""
    print(Path(decoding.__file__).resolve(), flush=True)
    model, benches = tiny(), {}
    for line in sys.stdin:
        trees, sequences = key = tuple(json.loads(line))
        if key not in benches:
            benches[key] = Real(model, trees, sequences) if trees in REAL else Steps(model, int(trees), sequences)
        print(json.dumps(benches[key].measure()), flush=True)


def tiny() -> Any:
    """Make a random Llama model so small that its compute time does not matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=512, initializer_range=0.3, pad_token_id=0,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def drawn_tree(rng: random.Random, rows: int) -> TokenTree:
    """Make a random tree as a drafter would: a root alone, a chain of up to 16 rows, or a tree of any shape."""
    tokens = [rng.randrange(VOCAB) for _ in range(rows)]
    if rows == 1:
        return TokenTree.chain(tokens)
    parents = [-1, *range(rows - 1)] if rows <= 16 else [-1, *(rng.randrange(row) for row in range(1, rows))]
    return TokenTree(tokens, parents, origins="lookup")


def path_in(tree: TokenTree) -> list[int]:
    """Return a path of :data:`ACCEPTED` rows, or a shorter one if the tree is not deep enough."""
    path = [0]
    while len(path) < ACCEPTED and path[-1] in tree.parents:
        path.append(list(tree.parents).index(path[-1]))
    return path


def outcome_of(trees: Mapping[int, TokenTree], shape: pack.Shape) -> Any:
    """Make the output array of a step in which every slot accepts a path."""
    batch = pack.Batch.of(trees)
    out = np.zeros(shape.width_out(0), dtype=np.int32)
    out[: batch.rows] = [token for tree in trees.values() for token in tree.tokens]
    for slot, tree in trees.items():
        path = path_in(tree)
        start = shape.of_rows + batch.first[slot]
        out[start : start + len(path)] = path
        out[2 * shape.of_rows + slot], out[2 * shape.of_rows + shape.of_slots + slot] = len(path), 7
    return out


class Steps:
    """Host work of steps; the device does nothing.

    Args:
        model: a model without an engine.
        rows: rows of each tree.
        sequences: sequences stepped together, which is also the number of slots.
    """

    def __init__(self, model: Any, rows: int, sequences: int) -> None:
        self._rng, self._rows, self._sequences = random.Random(rows), rows, sequences
        self._captured = rows * sequences <= ROW_BUCKETS[-1]  # larger steps run eagerly

        def capture(device: torch.device) -> graphs.Capture:
            return once

        with patch.object(graphs, "cuda_capture", capture):
            self._engine = Engine(
                model, slots=sequences, capacity=CONTEXT + 8, max_rows=max(rows, 2), native=False,
                graphs=self._captured, pad_rows=True,
            )  # fmt: skip
        for _ in range(sequences):
            self._engine.assume(self._engine.alloc(), CONTEXT)
        # Trees of all steps have the same shape, so that one outcome fits all of them.
        self._parents = [drawn_tree(self._rng, rows).parents for _ in range(sequences)]
        self._engine.step(self._trees())
        if self._captured:
            assert self._engine._graphs
            (graph,) = self._engine._graphs.graphs.values()
            self._shape = graph.shape
            self._out = outcome_of(self._trees(), self._shape)
            graph._host_out[:] = self._out
        else:
            self._shape = pack.Shape(row_bucket(rows * sequences), sequences)
            self._out = outcome_of(self._trees(), self._shape)
            computed = Computed(torch.from_numpy(self._out))
            self._engine._eager.program.run = lambda *args, **given: computed  # type: ignore[method-assign]
            self._engine.cache.commit = lambda *args: None  # type: ignore[method-assign]
        self._packed = np.zeros(self._shape.width_in, dtype=np.int32)
        self._engine.detach()

    def _trees(self) -> dict[int, TokenTree]:
        """Make new trees for a step."""
        found = {}
        for slot, parents in enumerate(self._parents):
            tokens = [self._rng.randrange(VOCAB) for _ in parents]
            found[slot] = TokenTree.chain(tokens) if len(tokens) == 1 else TokenTree(tokens, parents, origins="lookup")
        return found

    def measure(self) -> dict[str, float]:
        """Return the median seconds of each figure."""
        engine, taken = self._engine, defaultdict(list)
        lengths = [CONTEXT] * self._sequences
        for _ in range(STEPS):
            trees = self._trees()
            started = time.perf_counter()
            batch = pack.Batch.of(trees)
            pack.fill(self._packed, self._shape, batch, lengths)
            packed = time.perf_counter()
            results = pack.Outcome(self._out, self._shape, 0).results(batch)
            ended = time.perf_counter()
            taken["pack"].append(packed - started)
            taken["results"].append(ended - packed)
            trees = self._trees()
            started = time.perf_counter()
            engine.step(trees)
            taken["step"].append(time.perf_counter() - started)
            for slot in trees:
                engine.rewind(slot, CONTEXT)
        found = {name: median(times) for name, times in taken.items()}
        step = found.pop("step")
        return found | {"rest": step - found["pack"] - found["results"], "loop": loop_seconds(self._trees(), results)}


def once(work: Callable[[], None]) -> Callable[[], None]:
    """Capture a step as a replay that does nothing."""
    work()
    return lambda: None


class Known:
    """An engine that returns prepared results.

    Attributes:
        between: seconds between the end of a step and the beginning of the next.
    """

    def __init__(self, results: Mapping[int, StepResult]) -> None:
        self._results, self._free, self._ended = dict(results), sorted(results), 0.0
        self.between: list[float] = []

    def alloc(self) -> int:
        return self._free.pop(0)

    def finite(self, slot: int) -> bool:
        return True

    def rewind(self, slot: int, length: int) -> None: ...

    def free(self, slot: int) -> None:
        self._ended = 0.0

    def settle(self) -> None:
        pass

    def prefill(self, slot: int, ids: Sequence[int], tree: TokenTree | None = None, **asked: Any) -> StepResult:
        last = self._results[slot].emitted[-1]
        return StepResult([last], [0], [last])

    def step(self, trees: Mapping[int, TokenTree], **asked: Any) -> dict[int, StepResult]:
        if self._ended:
            self.between.append(time.perf_counter() - self._ended)
        self._ended = time.perf_counter()
        return self._results

    def fill(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("there are no results of passes over masked positions")


def loop_seconds(trees: Mapping[int, TokenTree], results: Mapping[int, StepResult]) -> float:
    """Median seconds of the runner between two steps, with decoders that take no time."""
    # The trees hang under the token that the slot always emits.
    rooted = {slot: replace(tree, tokens=[results[slot].emitted[-1], *tree.tokens[1:]]) for slot, tree in trees.items()}
    waiting = sorted(rooted, reverse=True)  # slots are allocated in order

    class Idle(decoding.Decoder):
        def __init__(self, options: Any, context: Context) -> None:
            self._tree = rooted[waiting.pop()]

        @staticmethod
        def max_rows(options: Any) -> int:
            return max(map(len, rooted.values()))

        def draft(self) -> TokenTree:
            return self._tree

        def observe(self, result: StepResult) -> None:
            pass

    engine = Known(results)
    budget = 1 + STEPS * min(len(result.emitted) for result in results.values())
    rule = StopRule(frozenset({VOCAB}), (), budget, lambda ids: "a" * len(ids))
    method = Method("idle", "idle", decoding.Options(), True, Idle)
    runner = Runner(engine, _context, len(trees))
    for _ in runner.segment(method, [Request(f"{slot}", 0, [1, 2, 3], rule) for slot in trees]):
        pass
    return median(engine.between)


def _context(label: str, request: Request) -> Context:
    return Context(VOCAB, 0, random.Random(request.prompt_id))


class Real:
    """Steps of a method on a tiny model.

    Args:
        model: a model without an engine.
        name: name of the method.
        sequences: sequences stepped together.
    """

    def __init__(self, model: Any, name: str, sequences: int) -> None:
        self._method = plan_methods([name], [])[-1]
        self._sequences = sequences
        most = max(2, self._method.max_rows)
        self._engine = Engine(
            model, slots=sequences, capacity=CONTEXT + 2 * STEPS, max_rows=most, native=False, graphs=False
        )
        self._engine.detach()

    def measure(self) -> dict[str, float]:
        """Return the median seconds of each phase, in steps that serve all sequences."""
        rng = random.Random(0)
        rule = StopRule(frozenset({VOCAB}), (), STEPS, lambda ids: "a" * len(ids))
        # Repetitive text, so that methods find something to look up.
        prompts = [[rng.randrange(VOCAB) for _ in range(CONTEXT // 4)] * 4 for _ in range(self._sequences)]
        requests = [Request(f"{at}", 0, ids, rule) for at, ids in enumerate(prompts)]
        self._engine.attach()
        records = list(Runner(self._engine, _context, self._sequences, trace=True).segment(self._method, requests))
        self._engine.detach()
        fewest = min(record.target_forwards for record in records)  # all sequences take part in the steps before this
        phases = [record.phases_s for record in records if record.phases_s]
        return {name: sum(median(spent[name][:fewest]) for spent in phases) for name in (*PHASES, "forward")}


if __name__ == "__main__":
    main()
