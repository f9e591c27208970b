"""A clock that only moves when told, an engine that serves known answers on it, and decoders of known acceptance."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench import decoding
from specbench.common.options import Options
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import COMPUTED, StepResult, TokenTree
from specbench.engine.phases import Phases
from specbench.results.schema import MethodSpec, ModelSpec, RunConfig, SamplingSpec, TaskSpec
from specbench.runner.loop import Request, Runner
from specbench.runner.stop import StopRule

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


class Decoder(decoding.Decoder):
    """Knows the answer and drafts as much of it as its options say."""

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


Target = Callable[[Sequence[int], Sequence[int]], int]  # (prompt, output so far) -> the model's next token


class Engine:
    """Verifies token trees; a forward costs ``fixed + per_row × rows`` nanoseconds, times what ``noise`` returns.

    Attributes:
        target: what the model says after an output so far. A row of a tree sees the output and its own ancestors.
        vocab: ``top`` lists what the model says first, then the ids above it, modulo this.
        trees: trees of each step, in order.
        forced: what each step was told to say, by slot.
        fail_at: forward (prefills included) that raises.
        costs: nanoseconds of each phase of a step beside the forward.
        overflown: whether what it comes to is no number.
    """

    def __init__(self, clock: Clock, slots: int = 1, fixed: int = 0, per_row: int = 0) -> None:
        self.clock, self.fixed, self.per_row = clock, fixed, per_row
        self.prompts: list[Sequence[int] | None] = [None] * slots
        self.outputs: list[list[int]] = [[] for _ in range(slots)]
        self.target: Target = lambda prompt, out: answer(prompt, len(out))
        self.vocab = 50
        self.trees: list[dict[int, TokenTree]] = []
        self.forced: list[dict[int, Sequence[int]]] = []
        self.forwards = 0
        self.fail_at: int | None = None
        self.noise: Callable[[], float] = lambda: 1.0
        self.costs: dict[str, int] = {}
        self.settled = 0
        self.overflown = False

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

    def finite(self, slot: int) -> bool:
        return self.prompts[slot] is not None and not self.overflown

    def settle(self) -> None:
        self.settled += 1

    def _forward(self, rows: int) -> None:
        self.forwards += 1
        if self.forwards == self.fail_at:
            raise RuntimeError("the device fell off the bus")
        self.clock.now += round((self.fixed + self.per_row * rows) * self.noise())

    def _spend(self, phase: str, phases: Phases | None) -> None:
        self.clock.now += self.costs.get(phase, 0)
        if phases:
            phases.mark(phase)

    def prefill(
        self, slot: int, ids: Sequence[int], tree: TokenTree | None = None, *, top_k: int = 0, taps: Any = ()
    ) -> StepResult:
        self._forward(len(ids) - 1 + (len(tree) if tree else 1))
        self.prompts[slot], self.outputs[slot] = ids, []
        tree = tree or TokenTree.chain([ids[-1]])
        assert tree.tokens[0] == ids[-1], "the root is the last token of the prompt"
        return self._verify(slot, tree, top_k)

    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        phases: Phases | None = None,
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, StepResult]:
        self.forced.append(dict(forced or {}))
        self._spend("build", phases)
        self._forward(sum(map(len, trees.values())))
        self._spend("forward", phases)
        self.trees.append(dict(trees))
        results = {}
        for slot, tree in trees.items():
            assert tree.tokens[0] == self.outputs[slot][-1], "the root is the last emitted token"
            results[slot] = self._verify(slot, tree, top_k, (forced or {}).get(slot))
        self._spend("accept", phases)
        self._spend("commit", phases)
        return results

    def _verify(self, slot: int, tree: TokenTree, top_k: int, forced: Sequence[int] | None = None) -> StepResult:
        prompt, output = self.prompts[slot], self.outputs[slot]
        assert prompt
        allowed = tree.accept or [True] * len(tree)
        # Row by row: what it sees below the root and what is said after it, then whether that is the path.
        seen: list[list[int]] = [[]]
        said = [self.target(prompt, output)]
        right = [True]
        for row in range(1, len(tree)):
            parent, token = tree.parents[row], tree.tokens[row]
            seen.append([*seen[parent], token])
            said.append(self.target(prompt, output + seen[row]))
        for row, token in enumerate(forced or ()):
            said[row] = said[row] if token == COMPUTED else token
        for row in range(1, len(tree)):
            parent, token = tree.parents[row], tree.tokens[row]
            right.append(right[parent] and allowed[row] and token == said[parent])
        # The deepest, of equally deep ones the lowest.
        last = max(range(len(tree)), key=lambda row: (right[row], len(seen[row]), -row))
        path = [last]
        while path[0]:
            path.insert(0, tree.parents[path[0]])
        emitted = [said[row] for row in path]
        output += emitted
        top = None
        if top_k:
            ids = torch.tensor([[(word + rank) % self.vocab for rank in range(top_k)] for word in said])
            top = (-torch.arange(float(top_k)).expand(len(tree), top_k), ids)
        return StepResult(emitted, path, said, top)


# ------------------------------------------------------------------ decoders on a language


def language(seed: int, words: int = 12, memory: int = 2, period: int = 0) -> Target:
    """A model whose next token depends on the last ``memory`` tokens, and on the position modulo ``period``."""

    def target(prompt: Sequence[int], out: Sequence[int]) -> int:
        text = [*prompt, *out]
        at = len(text) % period if period else 0
        context = f"{seed}/{at}/{text[-memory:] if memory else ()}"
        return int.from_bytes(hashlib.blake2b(context.encode(), digest_size=4).digest(), "big") % words

    return target


@dataclass
class Walk:
    """A sequence decoded without a runner.

    Attributes:
        output: tokens emitted, in order, beyond the last one asked for where a step brought several.
        prefill: guesses that went along with the prompt.
        trees: tree of each step.
        results: what each step decided, the prefill's first.
    """

    output: list[int]
    prefill: TokenTree | None
    trees: list[TokenTree] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)

    @property
    def emitted(self) -> list[list[int]]:
        """Tokens of each step."""
        return [result.emitted for result in self.results[1:]]

    @property
    def drafts(self) -> list[tuple[list[int], list[int], list[bool]]]:
        """Tokens, parents and accept flags of each step's tree."""
        return [(list(t.tokens), list(t.parents), list(t.accept or [True] * len(t))) for t in self.trees]


def walk(
    decoder: decoding.Decoder, target: Target, prompt: Sequence[int], tokens: int, *, top_k: int = 0, vocab: int = 50
) -> Walk:
    """Decodes until ``tokens`` tokens are there."""
    engine = Engine(Clock())
    engine.target, engine.vocab = target, vocab
    slot = engine.alloc()
    guesses = decoder.begin(prompt)
    result = engine.prefill(slot, prompt, guesses, top_k=top_k)
    walked = Walk(engine.outputs[slot], guesses, [], [result])
    decoder.observe(result)
    while len(walked.output) < tokens:
        tree = decoder.draft()
        result = engine.step({slot: tree}, top_k=top_k)[slot]
        decoder.observe(result)
        walked.trees.append(tree)
        walked.results.append(result)
    return walked


def decided(next_tokens: Sequence[int], path: Sequence[int] = (0,)) -> StepResult:
    """What a forward decides, from the token that each row says and the rows that it accepted."""
    return StepResult([next_tokens[row] for row in path], list(path), list(next_tokens))


def greedy(target: Target, prompt: Sequence[int], tokens: int) -> list[int]:
    """What autoregressive decoding says."""
    output: list[int] = []
    while len(output) < tokens:
        output.append(target(prompt, output))
    return output


def runner(engine: Engine, concurrency: int = 1, trace: bool = False, **more: Any) -> Runner:
    """A runner on the engine's clock."""
    context = Context(10, 0, random.Random(0))
    return Runner(engine, lambda label, request: context, concurrency, engine.clock, trace, **more)


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
            parameters=1, weight_bytes=4, dummy=True, template=None,
        ),
        task=TaskSpec(name="t", version=1, options={}, prompts=prompts, prompts_sha256="0"),
        methods=[MethodSpec(label=label, name=label, options={}, lossless=True) for label in labels],
        sampling=SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0),
        max_new_tokens=8, repeats=repeats, concurrency=concurrency, attention="reference", linears="torch",
        order_seed=0, trace=False, identity={},
    )  # fmt: skip
