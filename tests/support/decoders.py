"""Toy decoders on a clock that only tests move, random trees, draft heads, and options of every method."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_check.wild_trees import hiding_tree as hiding_tree
from specbench import decoding
from specbench.common import registry
from specbench.common.options import Options
from specbench.decoding.protocol import Context, Method, Target
from specbench.decoding.tree import COMPUTED, StepResult, TokenTree
from specbench.engine import pack
from specbench.engine.engine import Engine
from specbench.engine.layout import Layout
from specbench.engine.ops import accept_path, ancestors
from specbench.engine.phases import Phases
from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead
from specbench.models.loaded_model import ByteTokenizer, LoadedModel
from specbench.planning.methods import plan_methods
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import BASELINE, MethodSpec, ModelSpec, RunConfig, SamplingSpec, TaskSpec
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

# ------------------------------
# Random token trees, and ones that hide a given continuation somewhere among their branches.


def random_tree(rng: random.Random, root: int, vocab: int, rows: int) -> TokenTree:
    """A tree of any shape with random tokens; about one row in four may not be accepted."""
    return hiding_tree(rng, root, [], vocab, rows - 1)


def hiding_drafts(seed: int, truth: list[int], vocab: int, right: int, rows: int, apart: bool = False) -> Any:
    """Draft trees of any shape below ``rows`` rows, that hide fewer than ``right`` tokens of the truth."""
    rng = random.Random(seed)

    def draft(out: list[int]) -> TokenTree:
        hidden = truth[len(out) : len(out) + rng.randrange(right)]
        return hiding_tree(rng, out[-1], hidden, vocab, rng.randrange(len(hidden), rows), apart=apart)

    return draft


# ------------------------------
# What a run tells its methods of their target, for the engines of the tests; draft models are near copies of it.


Load = Callable[[str], LoadedModel]


def loaded(model: Any, name: str = "draft", tokenizer: Any = None) -> LoadedModel:
    """A model as the loader returns it."""
    dtype = str(model.dtype).removeprefix("torch.")
    spec = ModelSpec(
        name=name, source=name, revision=None, fingerprint=f"of {name}", dtype=dtype, device="cpu",
        parameters=1, weight_bytes=4, dummy=True, template=None,
    )  # fmt: skip
    return LoadedModel(model, tokenizer or ByteTokenizer(), frozenset(), 0, None, spec)


def copied(engine: Engine, noise: float = 0.0) -> Any:
    """A copy of an engine's model, its weights off by ``noise`` of their spread: what it says, mostly."""
    engine.detach()  # the copy would serve it too
    try:
        baseline = copy.deepcopy(engine.model)
    finally:
        engine.attach()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in baseline.parameters():
            if noise and parameter.dim() > 1:
                parameter += noise * parameter.std() * torch.randn_like(parameter)
    return baseline


def eager(work: Callable[[], None]) -> Callable[[], None]:
    """Captures nothing."""
    work()
    return work


def alone(
    model: Any, *, slots: int = 1, capacity: int, capture: Callable[..., Any] = eager, attention: str = "auto"
) -> Target:
    """What a head knows of a target that no engine runs: its passes are tested alone."""

    def none(*_: Any) -> Any:
        raise AssertionError("a head's passes need neither step times nor other models")

    return Target(
        model=model,
        name="target",
        tokenizer=ByteTokenizer(),
        slots=slots,
        capacity=capacity,
        sampling=none,
        step_seconds=none,
        capture=capture,
        load=none,
        engine=none,
        attention=attention,
    )


def target(engine: Engine, load: Load | None = None, tokenizer: Any = None) -> Target:
    """The target that a method sees of ``engine``."""

    def engine_like_it(model: Any, max_rows: int) -> Engine:
        made = Engine(
            model, slots=engine.slots, capacity=engine.capacity, max_rows=max_rows, sampling=engine.sampling.of_drafts
        )
        engine.at_close(made.close)
        return made

    return Target(
        model=engine.model,
        name="target",
        tokenizer=tokenizer or ByteTokenizer(),
        slots=engine.slots,
        capacity=engine.capacity,
        sampling=lambda: engine.sampling,
        step_seconds=lambda rows, context=0: [(at, 1 + at / 64) for at in (1, 2, 4, 8, 16, 32, 64, 128, 512)],
        capture=engine.capture,
        follow=engine.follow,
        at_close=engine.at_close,
        load=load or (lambda name: loaded(copied(engine, 0.05), name)),
        engine=engine_like_it,
    )


def served(
    engine: Engine,
    method: Method,
    asked: Sequence[Request | Sequence[int]],
    tokens: int = 20,
    together: int = 1,
    trace: bool = False,
) -> list[RequestRecord]:
    """Records of requests, or of prompts with a budget of ``tokens``, in their order."""
    vocab = engine.model.get_output_embeddings().weight.shape[0]
    rule = StopRule(frozenset(), (), tokens, str)
    requests = [one if isinstance(one, Request) else Request(str(at), 0, one, rule) for at, one in enumerate(asked)]
    runner = Runner(engine, lambda *_: Context(vocab, 0, random.Random(0)), together, trace=trace)
    found = {record.prompt_id: record for record in runner.segment(method, requests)}
    return [found[request.prompt_id] for request in requests]


# ------------------------------
# A clock that only moves when advanced, an engine that serves known answers on it, and decoders of known acceptance.


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


ToyTarget = Callable[[Sequence[int], Sequence[int]], int]  # (prompt, output so far) -> the model's next token


class ToyEngine:
    """Verifies token trees; a forward costs ``fixed + per_row × rows`` nanoseconds, times what ``noise`` returns."""

    def __init__(self, clock: Clock, slots: int = 1, fixed: int = 0, per_row: int = 0) -> None:
        self.clock, self.fixed, self.per_row = clock, fixed, per_row
        self.prompts: list[Sequence[int] | None] = [None] * slots
        self.outputs: list[list[int]] = [[] for _ in range(slots)]
        self.target: ToyTarget = lambda prompt, out: answer(prompt, len(out))
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

    def rewind(self, slot: int, length: int) -> None:
        kept = self.prompts[slot]
        assert kept is not None
        assert length <= len(kept)
        self.prompts[slot] = kept[:length]

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

    def fill(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this engine has no model, so nothing predicts masked positions")

    def prefill(
        self, slot: int, ids: Sequence[int], tree: TokenTree | None = None, *, top_k: int = 0, taps: Any = ()
    ) -> StepResult:
        self._forward(len(ids) - 1 + (len(tree) if tree else 1))
        self.prompts[slot], self.outputs[slot] = [*(self.prompts[slot] or ()), *ids], []
        tree = tree or TokenTree.chain([ids[-1]])
        assert tree.tokens[0] == ids[-1], "the root is the last token of the prompt"
        return self._verify(slot, tree, top_k)

    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        acceptance: Any = None,
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
        outcome = [self.target(prompt, output)]
        right = [True]
        for row in range(1, len(tree)):
            parent, token = tree.parents[row], tree.tokens[row]
            seen.append([*seen[parent], token])
            outcome.append(self.target(prompt, output + seen[row]))
        for row, token in enumerate(forced or ()):
            outcome[row] = outcome[row] if token == COMPUTED else token
        for row in range(1, len(tree)):
            parent, token = tree.parents[row], tree.tokens[row]
            right.append(right[parent] and allowed[row] and token == outcome[parent])
        # The deepest, of equally deep ones the lowest.
        last = max(range(len(tree)), key=lambda row: (right[row], len(seen[row]), -row))
        path = [last]
        while path[0]:
            path.insert(0, tree.parents[path[0]])
        emitted = [outcome[row] for row in path]
        output += emitted
        top = None
        if top_k:
            ids = torch.tensor([[(word + rank) % self.vocab for rank in range(top_k)] for word in outcome])
            top = (-torch.arange(float(top_k)).expand(len(tree), top_k), ids)
        return StepResult(emitted, path, outcome, top)


# ------------------------------------------------------------------ decoders on a language


def language(seed: int, words: int = 12, memory: int = 2, period: int = 0) -> ToyTarget:
    """A model whose next token depends on the last ``memory`` tokens, and on the position modulo ``period``."""

    def target(prompt: Sequence[int], out: Sequence[int]) -> int:
        text = [*prompt, *out]
        at = len(text) % period if period else 0
        context = f"{seed}/{at}/{text[-memory:] if memory else ()}"
        return int.from_bytes(hashlib.blake2b(context.encode(), digest_size=4).digest(), "big") % words

    return target


@dataclass
class Walk:
    """A sequence decoded without a runner."""

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
    decoder: decoding.Decoder, target: ToyTarget, prompt: Sequence[int], tokens: int, *, top_k: int = 0, vocab: int = 50
) -> Walk:
    """Decodes until ``tokens`` tokens are there."""
    engine = ToyEngine(Clock())
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


def greedy(target: ToyTarget, prompt: Sequence[int], tokens: int) -> list[int]:
    """What autoregressive decoding says."""
    output: list[int] = []
    while len(output) < tokens:
        output.append(target(prompt, output))
    return output


def runner(engine: ToyEngine, concurrency: int = 1, trace: bool = False, **more: Any) -> Runner:
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


# ------------------------------
# The registered methods with the options that the contract tests run them with: their defaults, and these.
#
# A new method is tested with its defaults as soon as its folder is there. Give it option sets here that reach every
# branch of its drafting; small sizes make a stop or a budget fall inside a block more often. The first set of a
# method is also what it runs with on a real model, where a wide tree is dear.


#: Texts whose bytes are tokens of the tiny models.
CORPUS = Path(__file__).parents[1] / "small_data" / "corpus.jsonl"

OPTION_SETS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "jacobi": [
        {"n": 5},
        {"n": 1},
        {"n": 4, "init": "pad"},
        {"n": 5, "window": "sliding", "init": "uniform"},
        {"n": 6, "init": "uniform", "prefill_draft": False},
        {"n": 4, "window": "sliding", "prefill_draft": False},
    ],
    "fast-dllm": [{"n": 4}, {"n": 4, "small": 2, "block_cache": True, "t": 0.3}],
    "sdar": [{"fuse": True}, {"strategy": "entropy_bounded"}, {"strategy": "sequential", "steps": 2}],
    "dllm": [{"n": 4, "cache": "dual", "shift": False}, {"n": 4, "cache": "prefix", "steps": 2}, {"score": "entropy"}],
    "d2f": [{"n": 4, "t": 0.3}],
    "cllm": [{"n": 4}, {"n": 1}, {"n": 4, "init": "pad"}, {"n": 6, "init": "uniform"}],
    "medusa": [{"tree": "accum-logp", "depth": 2}],
    "lookahead": [
        {"W": 3, "N": 4, "G": 2},
        {"W": 1, "N": 2, "G": 1, "pool_from_prompt": True},  # no guess but the pool's
        {"W": 1, "N": 4, "G": 1, "pool_from_prompt": True},
        {"W": 4, "N": 2, "G": 3},  # nothing goes with the prompt
        {"W": 5, "N": 3, "G": 2, "pool_from_prompt": True},
        {"W": 3, "N": 4, "G": 3, "pool_from_prompt": True, "full_accept_bonus": False},
        {"W": 5, "N": 3, "G": 3, "pool_from_prompt": True, "shift": "accepted"},
        {"W": 4, "N": 3, "G": 2, "init": "const"},
        {"W": 4, "N": 3, "G": 2, "accept_window": True},
        {"W": 4, "N": 4, "G": 2, "accept_window": True, "shift": "accepted", "init": "const"},
        {"W": 3, "N": 3, "G": 2, "pool_from_prompt": True, "lru": "generated", "share_prefixes": False},
        {"preset": "released", "W": 3, "N": 4, "G": 2},
        {"W": 4, "N": 4, "G": 2, "init": "vocabulary", "layout": "ngrams", "pool_from_prompt": True},
        {"W": 3, "N": 3, "G": 2, "shift": "rows", "first_key": "guess", "pool_from_prompt": True},
        {"preset": "llama.cpp", "W": 4, "N": 4, "G": 3},
    ],
    "pld": [
        {"k": 4, "branches": 3},
        {"k": 4, "order": "latest"},
        {"k": 3, "branches": 2, "full_only": False},
        {"k": 3, "max_ngram": 2, "min_ngram": 2},
        {"k": 1, "max_ngram": 1},
        {"preset": "transformers", "k": 4},
        {"k": 4, "fallback": "recycling"},
    ],
    "suffix": [
        {"tree": True, "factor": 3.0, "k": 9, "min_prob": 0.0},
        {"requests": 2, "depth": 6, "factor": 2.0},
        {"requests": 50, "tree": True, "offset": 2.0, "min_prob": 0.2, "k": 12},
        {"fallback": "recycling budget=9", "min_score": 2.0},
    ],
    "recycling": [
        {"budget": 12},
        {"tree": "0 1 00 01 000 2", "warm": True},
        {"preset": "released", "budget": 20},
        {"budget": 10, "retrieve": "suffix min_score=1.5 requests=3"},
    ],
    "sam": [
        {"k": 5, "full_only": False},
        {"k": 3, "alpha": 1.0},
        {"k": 6, "fallback": "logitspec budget=8", "min_match": 2},
        {"k": 4, "corpus": str(CORPUS), "len_bias": 0, "full_only": False},
    ],
    "logitspec": [
        {"budget": 10, "k": 4},
        {"budget": 40, "max_ngram": 1},
        {"budget": 12, "retrieve": "pld k=5"},
    ],
    "jf": [
        {"n": 6, "K": 2, "r": 0.5, "pool": 3},
        {"n": 5, "K": 3, "r": 0.0},
        {"n": 1, "K": 2, "r": 1.0, "pool": 2},
        {"preset": "vanilla", "n": 5},
        {"preset": "M", "n": 6, "r": 0.5, "init": "pad", "prefill_draft": False},
        {"preset": "R", "n": 6, "init": "uniform"},
        {"preset": "released", "n": 6, "K": 2, "r": 0.5, "pool": 4},
        {"preset": "released", "n": 10, "K": 2, "r": 0.3, "pool": 6},  # where recycled guesses are accepted
        {"preset": "released", "n": 5, "multiblock": False, "init": "uniform", "prefill_draft": False},
        {"preset": "released", "n": 4, "r": 0.0, "recycling": False, "init": "pad"},
        {"preset": "released", "n": 1},
    ],
    "msn": [
        {"tree": "chain", "m": 3},
        {"tree": "chain", "m": 1},
        {"preset": "released"},
        {"retrieval": "pld", "tie": "first"},
        {"retrieval": "off", "fill": "stale_root"},
        {"tree": "[[0], [0, 0], [2], [0, 0, 1], [0, 0, 1, 0], [2, 3]]", "retrieval": "pld"},
    ],
    "sps": [{"k": 3}, {"k": 1}, {"k": 8}],
    "jetspec": [
        {"budget": 40, "width": 36},
        {"tree": "accum-logp", "budget": 48, "width": 40, "depth": 2},
        {"tree": "auto", "budget": 64, "width": 60},
        {"head": "random-dflash", "budget": 60, "width": 50, "depth": 4},
        {"budget": 24, "width": 20, "retrieve": "suffix min_score=0.5"},
    ],
    "eagle3": [
        {"budget": 40, "width": 30, "depth": 2},
        {"tree": "chain", "depth": 4, "budget": 4},
        {"budget": 24, "width": 6, "depth": 5},
        {"budget": 9, "width": 64, "depth": 1},
        {"head": "random-parallel", "budget": 50, "width": 40, "depth": 4},
        {"head": "random-parallel", "tree": "chain", "depth": 3},
        {"budget": 24, "width": 20, "depth": 3, "retrieve": "suffix min_score=0.5"},
    ],
    "dspark": [
        {"budget": 40, "width": 30, "depth": 2},
        {"budget": 9, "width": 64, "depth": 1},
        {"budget": 60, "width": 40, "depth": 3, "confidence": 0.499},
    ],
    "mtp": [
        {"tree": "dynamic", "budget": 40, "width": 30, "depth": 2},
        {"depth": 4},
        {"depth": 1, "feed": "norm"},
        {"tree": "dynamic", "budget": 24, "width": 6, "depth": 5},
        {"tree": "dynamic", "budget": 24, "width": 20, "depth": 3, "retrieve": "suffix min_score=0.5"},
    ],
    "eagle": [
        {"budget": 40, "width": 30, "depth": 2},
        {"tree": "chain", "depth": 4, "budget": 4},
        {"tree": "static", "depth": 5},
        {"tree": "0 1 2 3 4 5 6 7 00 01 10 000 77", "depth": 3},
        {"budget": 24, "width": 20, "depth": 3, "retrieve": "suffix min_score=0.5"},
    ],
}

#: What a method cannot run without. In the tests any draft model's name stands for a near copy of the target; a head
#: that knows nothing is right by guessing much.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "sps": {"draft": "config:tiny"},
    "jetspec": {"head": "random", "width": 64, "budget": 96},
    "eagle3": {"head": "random", "width": 64, "budget": 96, "depth": 2},
    "medusa": {"head": "random", "width": 64, "budget": 96},
    "dspark": {"head": "random", "width": 64, "budget": 96, "depth": 2},
    "eagle": {"head": "random", "width": 64, "budget": 96, "depth": 2},
    "mtp": {"head": "random", "width": 64, "budget": 96, "depth": 2},
    **{name: {"mask": 5} for name in ("fast-dllm", "sdar", "dllm", "d2f")},
}
#: The part of it that presets leave open.
_BARE: Mapping[str, Mapping[str, Any]] = {
    "sps": {"draft": "config:tiny"},
    **{name: {"head": "random"} for name in ("jetspec", "eagle3", "eagle", "mtp", "medusa", "dspark")},
    **{name: {"mask": 5} for name in ("fast-dllm", "sdar", "dllm", "d2f")},
}


def with_options(name: str, options: Mapping[str, Any]) -> Method:
    """A registered method, made as the command line makes it: a preset may be among the options."""
    needed = (_BARE if "preset" in options else NEEDED).get(name, {})
    given = {**needed, **options}
    return plan_methods([name], [f"{name}.{option}={value}" for option, value in given.items()])[-1]


def ready(method: Method, engine: Engine) -> Method:
    """The method with what its sequences share on this engine, made once."""
    # Kept with the engine and given up with it: what is shared may refer to it, so that no table of ours would let go.
    made: dict[str, Method] = vars(engine).setdefault("_methods_made_ready", {})
    key = f"{method.name} {method.options!r}"
    if key not in made:
        made[key] = method.ready(target(engine))
    return made[key]


def label(name: str, options: Mapping[str, Any]) -> str:
    """The test's id."""
    return " ".join([name, *(f"{option}={value}" for option, value in options.items() if value != str(CORPUS))])


#: Every method as it comes.
DEFAULTS: dict[str, Method] = {name: with_options(name, {}) for name in registry.methods()}

ALL: dict[str, Method] = DEFAULTS | {
    label(name, options): with_options(name, options)
    for name in registry.methods()
    for options in OPTION_SETS.get(name, [])
}


#: Those that draft trees; the others fill masked blocks.
TREES: dict[str, Method] = {key: method for key, method in ALL.items() if not method.fills}


def lossless(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Those that claim to be; the baseline is left out, for it is what the others are compared with."""
    return {key: method for key, method in methods.items() if method.lossless and method.name != BASELINE}


LOSSLESS = lossless(ALL)


# ------------------------------
# The engine's acceptance rule on a single tree.


def accepted(tree: TokenTree, following: Sequence[int]) -> tuple[list[int], int]:
    """Rows of the path, and the token after its last, where the target says ``following`` after each row."""
    parents = torch.tensor([0, *tree.parents[1:]])
    allowed = torch.tensor(list(tree.accept) if tree.accept else [True] * len(tree))
    layout = Layout.even(1, len(tree), torch.device("cpu"))
    path, bonus = accept_path(
        torch.tensor(list(tree.tokens)), parents, allowed, ancestors(parents), torch.tensor(following), layout
    )
    return path.nonzero().flatten().tolist(), int(bonus)


# ------------------------------
# Rows of token trees one after the other, packed as a step packs them: what device operations are called with.


VOCAB = 3  # few tokens, so that guesses are often right and siblings often equal


def forest(seed: int, sizes: Mapping[int, int], *, vocab: int = VOCAB) -> dict[int, TokenTree]:
    """By slot, a random tree of so many rows; every other one is deep, because its parents are near."""
    rng, found = random.Random(seed), {}
    for slot, size in sizes.items():
        tree = random_tree(rng, rng.randrange(vocab), vocab, size)
        if rng.random() < 0.5:
            parents = [-1] + [max(parent, row - 3) for row, parent in enumerate(tree.parents) if row]
            tree = TokenTree(tree.tokens, parents, tree.accept)
        found[slot] = tree
    return found


def sizes_of(seed: int, slots: int, most: int) -> dict[int, int]:
    """Rows of some of so many slots, at most ``most`` each; with holes, and at least one slot."""
    rng = random.Random(seed)
    taken = sorted(rng.sample(range(slots), rng.randint(1, slots)))
    return {slot: rng.randint(1, most) for slot in taken}


def flat(
    trees: Mapping[int, TokenTree],
    slots: int,
    device: str,
    *,
    spare: int = 0,
    height: int = 0,
    lengths: Sequence[int] | None = None,
    known: bool = False,
) -> pack.Fields:
    """A step's fields."""
    batch, cached = pack.Batch.of(trees), lengths or [0] * slots
    shape = pack.Shape(batch.rows + spare, slots, height)
    packed = np.full(shape.width_in, -7, dtype=np.int32)  # nothing may be left of it
    pack.fill(packed, shape, batch, cached)
    return pack.split(torch.from_numpy(packed).to(device), shape, batch.groups(cached) if known else None)


def following(seed: int, fields: pack.Fields, *, vocab: int = VOCAB) -> Tensor:
    """int32 [N], a next token of each row; rows of padding say what they hold, so that they match themselves."""
    rng = random.Random(seed)
    drawn = torch.tensor([rng.randrange(vocab) for _ in range(len(fields.tokens))], dtype=torch.int32)
    return torch.where(fields.layout.real, drawn.to(fields.tokens.device), fields.tokens)


# ------------------------------
# Small draft heads, and what a head computes written down twice: in plain words, and in one forward.


HIDDEN, HEADS, KV_HEADS, SIZE = 24, 4, 2, 8
TINY: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": 40,
    "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE,
    "num_target_layers": 12, "block_size": 6, "rope_theta": 1000000, "rope_scaling": None, "rms_norm_eps": 1e-6,
    "vocab_size": 50, "dflash_config": {"mask_token_id": 49, "causal_head": True},
}  # fmt: skip


def head(causal: bool = True, seed: int = 0) -> BlockHead:
    """A small head in float64 whose weights are large enough that everything in it matters."""
    config = BlockHeadConfig.from_json({**TINY, "dflash_config": {"mask_token_id": 49, "causal_head": causal}})
    made = BlockHead.random(config, dtype=torch.float64, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return made


# ------------------------------------------------------------------ the same in plain words, one sequence, one position


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotate(x: Tensor, position: int) -> Tensor:
    """A vector [D] at a position: pairs (i, i + D/2) turned by position / theta^(2i/D)."""
    half = len(x) // 2
    angle = position * 1e6 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def plain(weights: dict[str, Tensor], features: Tensor, block: Tensor, causal: bool) -> Tensor:
    """The head as its papers describe it, with loops in place of shapes."""
    context = rms(features @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    n, rows = len(context), block
    for layer in range(3):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        inner = rms(rows, w["input_layernorm.weight"])
        seen = torch.cat([context, inner])  # the context has no norm of the layer

        def heads(x: Tensor, name: str, w: dict[str, Tensor] = w) -> Tensor:
            return (x @ w[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, SIZE))

        q, k, v = heads(inner, "q"), heads(seen, "k"), heads(seen, "v")
        q, k = rms(q, w["self_attn.q_norm.weight"]), rms(k, w["self_attn.k_norm.weight"])
        mixed = torch.zeros(len(rows), HEADS, SIZE, dtype=torch.float64)
        for i in range(len(rows)):
            sees = n + (i + 1 if causal else len(rows))
            for h in range(HEADS):
                kv = h // (HEADS // KV_HEADS)
                turned = torch.stack([rotate(k[j, kv], j) for j in range(sees)])
                scores = turned @ rotate(q[i, h], n + i) / SIZE**0.5
                mixed[i, h] = scores.softmax(0) @ v[:sees, kv]
        rows = rows + mixed.flatten(1) @ w["self_attn.o_proj.weight"].T
        inner = rms(rows, w["post_attention_layernorm.weight"])
        gate, up = inner @ w["mlp.gate_proj.weight"].T, inner @ w["mlp.up_proj.weight"].T
        rows = rows + (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T
    return rms(rows, weights["norm.weight"])


def together(head: BlockHead, features: Tensor, block: Tensor, causal: bool) -> Tensor:
    """The head in one forward over concatenated context, as training uses it."""
    n, rows = len(features), len(block)
    context = head.project_context(head.fuse(features[None]), torch.arange(n)[None])
    mask = torch.ones(rows, n + rows, dtype=torch.bool)
    if causal:
        mask[:, n:] = torch.ones(rows, rows, dtype=torch.bool).tril()

    def attend(layer: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(context[layer], (key, value), strict=True))
        out: Tensor = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=module.scaling, enable_gqa=True
        )
        return out.transpose(1, 2)

    found: Tensor = head(block[None], n + torch.arange(rows)[None], attend)
    return found[0]
