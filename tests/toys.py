"""A clock that only moves when told, an engine that serves known answers on it, and decoders of known acceptance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench.decoding import Context, Method
from specbench.engine.tree import StepResult, TokenTree
from specbench.options import Options
from specbench.records import (
    MethodSpec,
    ModelSpec,
    RequestRecord,
    RunConfig,
    SamplingSpec,
    TaskSpec,
)
from specbench.runner import Request, Runner
from specbench.stopping import StopRule

WRONG = -1  # no token of any answer


class Clock:
    """Nanoseconds that pass only when something is charged."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def answer(prompt: Sequence[int], at: int) -> int:
    """Token ``at`` of the answer to a prompt; never repeats within an answer, so a misplaced token is seen."""
    return 1000 * prompt[0] + at


class Toy(Options):
    """``right[i % len]`` guesses of step i are right, the rest of the ``rows`` are wrong."""

    rows: int
    right: tuple[int, ...]


class Decoder:
    """Knows the answer and drafts as much of it as its options say."""

    draft_forwards = 0

    def __init__(self, options: Any, context: Context) -> None:
        self.options, self.steps, self.emitted = options, 0, [0]
        self.prompt: Sequence[int] = ()

    @staticmethod
    def max_rows(options: Any) -> int:
        return int(options.rows)

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self.prompt = prompt
        self.emitted.clear()
        return None

    def observe(self, result: StepResult) -> None:
        self.emitted += result.emitted

    def draft(self) -> TokenTree:
        right = self.options.right[self.steps % len(self.options.right)]
        self.steps += 1
        self.draft_forwards += 2
        at = len(self.emitted)
        guesses = [answer(self.prompt, at + i) if i < right else WRONG for i in range(self.options.rows - 1)]
        return TokenTree.chain([self.emitted[-1], *guesses])


def toy(rows: int = 1, right: tuple[int, ...] = (0,), label: str = "toy", decoder: type[Decoder] = Decoder) -> Method:
    """A method; without arguments it is autoregressive decoding."""
    return Method(label.partition("#")[0], label, Toy(rows=rows, right=right), True, decoder)


class Engine:
    """Serves chains; a forward costs ``fixed + per_row × rows`` nanoseconds, times what ``noise`` returns.

    Attributes:
        target: what the model says after an output so far, (prompt, output) -> token.
        trees: trees of each step, in order.
        fail_at: forward (prefills included) that raises.
    """

    def __init__(self, clock: Clock, slots: int = 1, fixed: int = 0, per_row: int = 0) -> None:
        self.clock, self.fixed, self.per_row = clock, fixed, per_row
        self.prompts: list[Sequence[int] | None] = [None] * slots
        self.outputs: list[list[int]] = [[] for _ in range(slots)]
        self.target: Callable[[Sequence[int], Sequence[int]], int] = lambda prompt, out: answer(prompt, len(out))
        self.trees: list[dict[int, TokenTree]] = []
        self.forwards = 0
        self.fail_at: int | None = None
        self.noise: Callable[[], float] = lambda: 1.0

    @property
    def occupied(self) -> int:
        return sum(prompt is not None for prompt in self.prompts)

    def alloc(self) -> int:
        slot = self.prompts.index(None)
        self.prompts[slot] = ()
        return slot

    def free(self, slot: int) -> None:
        assert self.prompts[slot] is not None, "freed twice"
        self.prompts[slot] = None

    def _forward(self, rows: int) -> None:
        self.forwards += 1
        if self.forwards == self.fail_at:
            raise RuntimeError("the device fell off the bus")
        self.clock.now += round((self.fixed + self.per_row * rows) * self.noise())

    def prefill(self, slot: int, ids: Sequence[int], tree: TokenTree | None = None) -> StepResult:
        self._forward(len(ids) - 1 + (len(tree) if tree else 1))
        self.prompts[slot], self.outputs[slot] = ids, []
        return self._verify(slot, tree or TokenTree.chain([ids[-1]]))

    def step(self, trees: Mapping[int, TokenTree]) -> dict[int, StepResult]:
        self._forward(sum(map(len, trees.values())))
        self.trees.append(dict(trees))
        results = {}
        for slot, tree in trees.items():
            assert tree.tokens[0] == self.outputs[slot][-1], "the root is the last emitted token"
            results[slot] = self._verify(slot, tree)
        return results

    def _verify(self, slot: int, tree: TokenTree) -> StepResult:
        prompt, output = self.prompts[slot], self.outputs[slot]
        assert prompt
        assert list(tree.parents) == list(range(-1, len(tree) - 1)), "a chain"
        guesses = list(tree.tokens[1:])
        said = [self.target(prompt, output + guesses[:row]) for row in range(len(tree))]
        allowed = (tree.accept or [True] * len(tree))[1:]
        matches = [ok and guess == word for ok, guess, word in zip(allowed, guesses, said, strict=False)]
        right = [*matches, False].index(False)
        output += said[: right + 1]
        return StepResult(said[: right + 1], list(range(right + 1)), said)


def runner(engine: Engine, concurrency: int = 1) -> Runner:
    """A runner on the engine's clock."""
    return Runner(engine, lambda label, request: Context(10, 0, random.Random(0)), concurrency, engine.clock)


def request(number: int, budget: int, stop: int | None = None, length: int = 3) -> Request:
    """Prompt ``number`` of ``length`` tokens; its answer stops at token ``stop``, counted from 0."""
    ids = [number] + [7] * (length - 1)
    stops = frozenset() if stop is None else frozenset({answer(ids, stop)})
    return Request(f"p{number:02d}", 0, ids, StopRule(stops, (), budget, lambda ids: " ".join(map(str, ids))))


def config(labels: Sequence[str], prompts: int, *, repeats: int = 1, concurrency: int = 1) -> RunConfig:
    """The configuration of a run of these methods, as far as a summary reads it."""
    return RunConfig(
        model=ModelSpec(
            name="m", source="m", revision=None, fingerprint="0", dtype="float32", device="cpu",
            parameters=1, weight_bytes=4, dummy=True,
        ),
        task=TaskSpec(name="t", version=1, options={}, prompts=prompts, prompts_sha256="0"),
        methods=[MethodSpec(label=label, name=label, options={}, lossless=True) for label in labels],
        sampling=SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0),
        max_new_tokens=8,
        repeats=repeats,
        concurrency=concurrency,
        attention="reference",
        linears="torch",
        order_seed=0,
        identity={},
    )  # fmt: skip


def relabelled(record: RequestRecord, label: str) -> RequestRecord:
    """The same measurement under the label of another method."""
    return record.model_copy(update={"method": label})
