"""What a method may not do while it decodes: it is named, with its call; its sequences are given up, others go on."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from support import decoders, models
from support.wording import wording

from specbench.common import EnvironmentRefused, UsageError, heartbeat
from specbench.common.errors import PluginFault
from specbench.common.heartbeat import Activity
from specbench.common.timeout import step_timeout
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import Branch, StepResult, TokenTree
from specbench.engine.engine import Engine
from specbench.runner import Runner

KEPT = "; finished requests are kept; fix it or leave it out"


@pytest.fixture(autouse=True)
def _nothing_from_before() -> None:
    """What a command says of itself is shared with its forks, and a test that forked one may have left some."""
    heartbeat.clear()


def raising(raised: BaseException) -> Callable[..., Any]:
    def call(*given: Any, **more: Any) -> Any:
        raise raised

    return call


def returning(value: Any) -> Callable[..., Any]:
    return lambda *given, **more: value


#: (call, what stands in its place, what is said of it); the toy's first emitted token of prompt 1 is 1000.
FAULTS: dict[str, tuple[str, Any, str]] = {
    f"{call} raises": (
        call, raising(ValueError("no\x1b]0;luck\nat all")), f"failed in {where} (ValueError: no ]0;luck at all at"
    )
    for call, where in {
        "begin": "begin", "draft": "draft", "observe": "observe", "end": "end",
        "measures": "measures or branches", "branches": "measures or branches",
    }.items()
} | {
    "a usage error": ("draft", raising(UsageError("give me more")), "failed in draft (give me more)"),
    "an assertion": ("observe", raising(AssertionError()), "failed in observe (AssertionError at"),
    "too deep": ("draft", lambda self: self.draft(), "failed in draft (RecursionError: maximum recursion depth"),
    "no tree": ("draft", returning(None), "it returned NoneType, not a TokenTree"),
    "too many rows": ("draft", returning(TokenTree.chain([1000, 1, 2])), "its tree has 3 rows, and its max_rows is 2"),
    "another root": ("draft", returning(TokenTree.chain([7])), "its tree has root 7, and the last emitted token is"),
    "a cycle": ("draft", lambda self: TokenTree([1000, 1], [-1, 1]), "failed in draft (ValueError: row 1 has parent 1"),
    "half a token": ("draft", lambda self: TokenTree.chain(cast(Any, [1000, 1.5])), "token 1.5 is no"),
    "guesses that are none": ("begin", returning([1]), "it returned list, not a TokenTree or None"),
    "a prompt that is emitted": (
        "begin", returning(TokenTree.chain([7, 1000])), "guesses sent with the prompt must be draft-only rows"
    ),
    "the prompt changed": ("begin", lambda self, prompt: prompt.append(3), "failed in begin (AttributeError: 'tuple'"),
    "measures are none": ("measures", returning(3), "failed in measures or branches (TypeError: 'int'"),
    "a measure is NaN": ("measures", returning({"luck": math.nan}), "its measure luck is nan, which is not a number"),
    "branches are none": ("branches", returning([3]), "it returned int, not a Branch"),
    "forwards are NaN": ("draft_forwards", math.nan, "its draft_forwards is nan, which is not a count"),
    "forwards below zero": ("draft_forwards", -2, "its draft_forwards is -2, which is not a count"),
}  # fmt: skip


class Plain(decoders.Decoder):
    """Drafts nothing, and counts no forwards of its own."""

    def draft(self) -> TokenTree:
        return TokenTree.chain([self.emitted[-1]])


def method(**calls: Any) -> Method:
    return decoders.toy(rows=2, label="guest#2", decoder=type("Guest", (Plain,), calls))


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_and_ends_nothing_else(case: str, together: int) -> None:
    call, does, outcome = FAULTS[case]
    engine = decoders.ToyEngine(decoders.Clock(), slots=2, fixed=5)
    runner = decoders.runner(engine, together)
    requests = [decoders.request(1, 4), decoders.request(2, 4)]
    with pytest.raises(PluginFault) as caught:
        list(runner.segment(method(**{call: does}), requests))
    text = str(caught.value)
    assert text.startswith("method 'guest' (from specbench) ")
    assert outcome in text
    assert text.endswith(KEPT)
    assert text.isprintable()
    assert caught.value.row == "guest#2"
    assert (engine.occupied, heartbeat.SHARED[heartbeat.AT]) == (0, Activity.OURS)
    (first, second) = runner.segment(decoders.toy(), requests)
    assert (first.output_ids, second.output_ids) == ([1000, 1001, 1002, 1003], [2000, 2001, 2002, 2003])


def test_what_is_finished_has_been_handed_over_before() -> None:
    runner = decoders.runner(decoders.ToyEngine(decoders.Clock(), slots=1))

    class Second(Plain):
        def begin(self, prompt: Any) -> TokenTree | None:
            if prompt[0] == 2:
                raise OSError("disk")
            return super().begin(prompt)

    made = runner.segment(decoders.toy(decoder=Second), [decoders.request(1, 4), decoders.request(2, 4)])
    assert next(made).output_ids == [1000, 1001, 1002, 1003]
    with pytest.raises(PluginFault, check=wording):
        next(made)


def test_an_engine_fault_is_not_a_methods_fault() -> None:
    engine = decoders.ToyEngine(decoders.Clock(), slots=1)
    engine.fail_at = 3
    with pytest.raises(RuntimeError, check=wording):
        list(decoders.runner(engine).segment(method(), [decoders.request(1, 4)]))
    refused = method(draft=raising(EnvironmentRefused("no memory for the draft model")))
    with pytest.raises(EnvironmentRefused, check=wording):
        list(decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(refused, [decoders.request(1, 4)]))


def test_a_decoder_that_changes_what_it_gets_changes_no_answer() -> None:
    class Vandal(decoders.Decoder):
        def observe(self, result: StepResult) -> None:
            super().observe(result)
            result.emitted.extend([666] * 5)
            result.path.clear()
            result.next_tokens.clear()

    honest, vandal = (
        list(decoders.runner(decoders.ToyEngine(decoders.Clock(), slots=2), 2).segment(
            decoders.toy(3, (1, 2), decoder=decoder), [decoders.request(1, 7), decoders.request(2, 7)]
        ))
        for decoder in (decoders.Decoder, Vandal)
    )  # fmt: skip
    assert [record.output_ids for record in vandal] == [record.output_ids for record in honest]
    assert [record.accepted_lengths for record in vandal] == [record.accepted_lengths for record in honest]


def test_a_branch_of_a_step_that_was_none_is_left_out() -> None:
    branches = returning([Branch(0, [], 0.0), Branch(99, [1], -1.0), Branch(0, [1], math.nan), Branch(1, [5], -2.0)])
    (record,) = decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(
        method(branches=branches), [decoders.request(1, 4)]
    )
    assert [(each.step, each.ids) for each in record.branches or ()] == [(1, [5])]


def test_a_tree_does_not_change() -> None:
    tokens, parents, accept, origins, scores = [5, 6], [-1, 0], [True, True], ["draft"] * 2, [None, -0.5]
    made = TokenTree(tokens, parents, accept, origins, scores)
    for each in (tokens, parents, accept, origins, scores):
        each.clear()
    assert made == TokenTree((5, 6), (-1, 0), (True, True), ("draft", "draft"))
    assert made.row_scores() == (None, -0.5)


# ------------------------------------------------------------------ trees that only an engine can refuse


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with models.attached(models.supported("llama"), slots=2, capacity=64, max_rows=8) as made:
        yield made


class _Last(decoders.Decoder):
    def observe(self, result: StepResult) -> None:
        self.last = result.emitted[-1]


#: What it drafts after the last token, and what is said of it; the model has 97 tokens.
TREES: dict[str, tuple[Callable[[int], TokenTree], str]] = {
    "beyond": (lambda last: TokenTree.chain([last, 97]), "its tree has token 97, the model has 97"),
    "negative": (lambda last: TokenTree.chain([last, -1]), "its tree has token -1, the model has 97"),
}


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("case", TREES)
def test_a_tree_that_the_model_cannot_take(case: str, together: int, engine: Engine) -> None:
    draft, _ = TREES[case]
    plugin = decoders.toy(
        rows=3, label="guest", decoder=type("Guest", (_Last,), {"draft": lambda self: draft(self.last)})
    )
    runner = Runner(engine, lambda label, request: Context(97, 0, random.Random(0)), together)
    requests = [decoders.request(at, 6) for at in (1, 2)]
    good = decoders.toy(rows=1, decoder=type("Good", (_Last,), {"draft": lambda self: TokenTree.chain([self.last])}))
    before = [record.output_ids for record in runner.segment(good, requests)]
    with pytest.raises(PluginFault, check=wording):
        list(runner.segment(plugin, requests))
    assert [record.output_ids for record in runner.segment(good, requests)] == before


def slept(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def forever(*given: Any) -> Any:
    while True:
        pass


SLOW: dict[str, Callable[..., Any]] = {
    "a loop": forever,
    "a sleep": lambda *given: time.sleep(60),
    "in a library": lambda *given: next(one for one in itertools.count() if one < 0),
    "a lock": lambda *given: threading.Event().wait(60),
}


@pytest.mark.parametrize(
    ("slow", "call"),
    [(slow, "draft") for slow in SLOW] + [("a loop", call) for call in ("begin", "observe", "end", "measures")],
)
def test_what_takes_too_long_is_broken_off(slow: str, call: str) -> None:
    started = time.monotonic()
    with step_timeout(0.2), pytest.raises(PluginFault) as caught:
        list(
            decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(
                method(**{call: SLOW[slow]}), [decoders.request(1, 4)]
            )
        )
    where = {"measures": "measures or branches"}.get(call, call)
    assert f"{where}" in str(caught.value)
    assert "--step-timeout" in str(caught.value)
    assert time.monotonic() - started < 5


def test_a_slow_forward_is_not_a_methods_fault() -> None:
    engine = decoders.ToyEngine(decoders.Clock())
    engine.noise = lambda: slept(60, 1.0)
    with step_timeout(0.2), pytest.raises(EnvironmentRefused, check=wording):
        list(decoders.runner(engine).segment(method(), [decoders.request(1, 4)]))


def test_time_without_a_limit_is_unlimited() -> None:
    """Between steps the run has control, and without a limit, or below it, all may take what it takes."""
    slow = method(draft=lambda self: slept(0.15, TokenTree.chain([self.emitted[-1]])))
    with step_timeout(0.6):
        for _ in decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(
            slow, [decoders.request(at, 3) for at in (1, 2)]
        ):
            time.sleep(0.9)
    assert heartbeat.read().limit_s == 0
    (record,) = decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(slow, [decoders.request(1, 3)])
    assert record.output_tokens == 3
