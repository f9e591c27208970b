"""A method with one fault of a kind, which it commits at its second timed prompt."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch

from specbench import decoding
from specbench.decoding import Context, StepResult, Target, TokenTree, option
from specbench.decoding.tree import Branch


class _Own(BaseException):
    """What no ``except Exception`` catches."""


class _Tree(TokenTree):
    """A subclass may do anything when it is asked for its rows."""


class _Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


def raising(raised: BaseException) -> Callable[[Any], Any]:
    def call(self: Any) -> Any:
        raise raised

    return call


def tree(tokens: Any = (), parents: Any = None, **more: Any) -> Callable[[Any], Any]:
    """A call that drafts a tree of the last token and others."""

    def call(self: Any) -> Any:
        every = [self.last, *tokens]
        return TokenTree(every, range(-1, len(every) - 1) if parents is None else parents, **more)

    return call


def plain(self: Any) -> TokenTree:
    """What a method without a fault drafts."""
    return TokenTree.chain([self.last])


def first(does: Callable[[], object]) -> Callable[[Any], Any]:
    """A call that does something and then drafts as it should."""

    def call(self: Any) -> TokenTree:
        does()
        return plain(self)

    return call


#: What is raised, returned or done in ``draft``.
DRAFTS: dict[str, Callable[[Any], Any]] = {
    "raises an error": raising(ValueError("no\x1b]0;luck\nat all")),
    "raises what has no text": raising(_Hostile()),
    "raises GeneratorExit": raising(GeneratorExit()),
    "raises StopIteration": raising(StopIteration()),
    "raises an own BaseException": raising(_Own("own")),
    "raises MemoryError": raising(MemoryError()),
    "raises AssertionError": raising(AssertionError()),
    "calls itself": lambda self: DRAFTS["calls itself"](self),
    "calls sys.exit": lambda self: sys.exit(0),
    "returns nothing": lambda self: None,
    "returns a list": lambda self: [self.last],
    "returns a text": lambda self: "tree",
    "returns a subclass": lambda self: _Tree([self.last], [-1]),
    "returns an unmade tree": lambda self: TokenTree.__new__(TokenTree),
    "has no rows": lambda self: TokenTree([], []),
    "has too many rows": tree([1] * 9),
    "has another root": lambda self: TokenTree.chain([self.last + 1]),
    "has a token beyond": tree([1 << 20]),
    "has a negative token": tree([-1]),
    "has a token of 41 bits": tree([1 << 40]),
    "has a token and a half": tree([1.5]),
    "has a token of text": tree(["1"]),
    "has a token that is None": tree([None]),
    "has a token that is True": tree([True]),
    "has tokens of text": lambda self: TokenTree(cast(Any, "ab"), [-1, 0]),
    "has a cycle": tree([1, 2], [-1, 2, 1]),
    "has a parent after its child": tree([1, 2], [-1, 2, 0]),
    "has two roots": tree([1], [-1, -1]),
    "has parents of text": tree([1], "ab"),
    "has parents and a half": tree([1], [-1, 0.0]),
    "has parents that are False": tree([1], [-1, False]),
    "has too few parents": tree([1, 2], [-1, 0]),
    "accepts None": tree([1], accept=[None, None]),
    "accepts a text": tree([1], accept="ab"),
    "accepts numbers": tree([1], accept=[1, 0]),
    "accepts too little": tree([1, 2], accept=[True]),
    "has origins of numbers": tree([1], origins=[1, 2]),
    "has too few origins": tree([1, 2], origins=["draft"]),
    "has a score that is NaN": tree([1], scores=[None, math.nan]),
    "has scores of text": tree([1], scores=["a", "b"]),
    "has too many scores": tree([1], scores=[None] * 3),
    "proposes a number": tree([1], proposal=3),
}

#: What is changed that all methods share.
SETTINGS: dict[str, Callable[[], object]] = {
    "sets a narrow default dtype": lambda: torch.set_default_dtype(torch.bfloat16),
    "sets a wide default dtype": lambda: torch.set_default_dtype(torch.float64),
    "sets a default device": lambda: torch.set_default_device("meta"),
    "sets threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "leaves grad mode off": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "leaves inference mode on": lambda: _leave(torch.inference_mode()),
    "asks for deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "lowers the precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "leaves autocast on": lambda: torch.set_autocast_enabled("cpu", True),
    "flushes small numbers": lambda: torch.set_flush_denormal(True),
    "changes the working directory": lambda: os.chdir("/"),
    "changes the environment": lambda: os.environ.update(OMP_NUM_THREADS="63"),
    "draws from random": random.random,
    "seeds numpy": lambda: np.random.seed(1),
    "draws from torch": lambda: torch.rand(1),
    "handles a signal": lambda: signal.signal(signal.SIGALRM, lambda number, frame: None),
    "stops garbage collection": gc.disable,
    "makes numpy raise": lambda: np.seterr(all="raise"),
}
DRAFTS |= {kind: first(does) for kind, does in SETTINGS.items()}
_left: list[Any] = []


def _leave(entered: Any) -> None:
    entered.__enter__()
    _left.append(entered)


#: What the other calls return, or raise.
OTHERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "begin raises": ("begin", raising(OSError("disk"))),
    "begin returns a list": ("begin", lambda self: [1]),
    "begin has another root": ("begin", lambda self: TokenTree.chain([1 << 20, 1], drafts_only=True)),
    "begin has rows that are emitted": ("begin", lambda self: TokenTree.chain([self.prompt[-1], 1, 1])),
    "observe raises": ("observe", raising(KeyError("k"))),
    "observe raises GeneratorExit": ("observe", raising(GeneratorExit())),
    "end raises": ("end", raising(_Own("own"))),
    "measures are a number": ("measures", lambda self: 3),
    "a measure is NaN": ("measures", lambda self: {"luck": math.nan}),
    "a measure is a text": ("measures", lambda self: {"luck": "much"}),
    "a measure is True": ("measures", lambda self: {"luck": True}),
    "a measure is complex": ("measures", lambda self: {"luck": 1j}),
    "a measure has no name": ("measures", lambda self: {7: 1.0}),
    "branches are None": ("branches", lambda self: None),
    "branches are numbers": ("branches", lambda self: [3]),
    "a branch has tokens of text": ("branches", lambda self: [Branch(0, cast(Any, "ab"), -1.0)]),
    "a branch has a score of text": ("branches", lambda self: [Branch(0, [1], cast(Any, "-1"))]),
}

#: What it asks of the engine.
ASKS: dict[str, tuple[str, Any]] = {
    "top_k is True": ("top_k", True),
    "top_k is a fraction": ("top_k", 2.5),
    "top_k is a text": ("top_k", "3"),
    "top_k is below zero": ("top_k", -1),
    "top_k is beyond the vocabulary": ("top_k", 1 << 20),
    "taps are no layers": ("taps", ["x"]),
    "taps are beyond the model": ("taps", [99]),
    "taps are None": ("taps", None),
    "memory_bytes is a text": ("memory_bytes", "much"),
    "memory_bytes is below zero": ("memory_bytes", -1),
    "draft_forwards is NaN": ("draft_forwards", math.nan),
    "draft_forwards is below zero": ("draft_forwards", -2),
}

#: What it does to the model that all decode with, given that model.
SPOILS: dict[str, Callable[[Any], object]] = {
    "writes weights past their version": lambda model: model.get_output_embeddings().weight.data.mul_(-1),
    "writes weights": lambda model: model.get_output_embeddings().weight.detach().mul_(-1),
    "replaces a weight": lambda model: setattr(
        model.get_output_embeddings(), "weight", torch.nn.Parameter(model.get_output_embeddings().weight * 2)
    ),
    "replaces the data of a weight": lambda model: setattr(
        model.get_output_embeddings().weight, "data", -model.get_output_embeddings().weight.data
    ),
    "leaves a hook": lambda model: model.get_output_embeddings().register_forward_hook(lambda *given: -given[-1]),
    "leaves training mode on": lambda model: model.train(),
}

ROWS = [*DRAFTS, *OTHERS, *ASKS]


class Options(decoding.Options):
    """Options of a faulty method."""

    kind: str = option("none", help="which fault")
    early: bool = option(False, help="in prepare, and not at the second timed prompt")


class Decoder(decoding.Decoder):
    """Plain decoding until its fault is due."""

    begun: ClassVar[Counter[str]] = Counter()

    def __init__(self, options: Options, context: Context) -> None:
        self.kind, self.model, self.last, self.due = options.kind, context.shared, -1, False
        self.prompt: Sequence[int] = ()

    @staticmethod
    def max_rows(options: Options) -> int:
        return 4

    @staticmethod
    def top_k(options: Options) -> Any:
        return _asked(options.kind, "top_k", 0)

    @staticmethod
    def taps(options: Options, shared: Any) -> Any:
        return _asked(options.kind, "taps", ())

    @staticmethod
    def memory_bytes(shared: Any) -> Any:
        return _asked(getattr(shared, "faulty_kind", ""), "memory_bytes", 0)

    @staticmethod
    def prepare(options: Options, target: Target) -> Any:
        if options.early:
            _change(options.kind, target.model)
        return _Brought(options.kind, target.model)

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self.prompt = prompt
        Decoder.begun[self.kind] += 1
        self.due = Decoder.begun[self.kind] >= 3  # a warm-up, and the first timed prompt
        return cast("TokenTree | None", self._other("begin"))

    def observe(self, result: StepResult) -> None:
        self._other("observe")
        self.last = result.emitted[-1]

    def draft(self) -> TokenTree:
        due, self.due = self.due, self.due and self.kind in OTHERS  # once: what is turned round twice is as before
        if due and self.kind in SPOILS:
            _change(self.kind, self.model.model)
        does = DRAFTS.get(self.kind, plain) if due else plain
        return cast(TokenTree, does(self))

    def end(self) -> None:
        self._other("end")

    def measures(self, kept: int, stopped: bool) -> Any:
        return self._other("measures", {})

    def branches(self) -> Any:
        return self._other("branches", ())

    @property
    def draft_forwards(self) -> Any:  # type: ignore[override]
        return _asked(self.kind, "draft_forwards", 0)

    def _other(self, call: str, usual: Any = None) -> Any:
        where, does = OTHERS.get(self.kind, ("", plain))
        return does(self) if self.due and where == call else usual


class _Brought:
    """What its sequences share."""

    def __init__(self, kind: str, model: Any) -> None:
        self.faulty_kind, self.model = kind, model


def _asked(kind: str, call: str, usual: Any) -> Any:
    where, value = ASKS.get(kind, ("", None))
    return value if where == call else usual


def _change(kind: str, model: Any) -> None:
    if kind in SPOILS:
        SPOILS[kind](model)
    else:
        SETTINGS[kind]()
