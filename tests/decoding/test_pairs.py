"""Pairs of methods: which one drafts, what the other one gets, and the options; first with two that record calls."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support import decoders, models
from support.asserting import known, refusal
from support.decoders import decided
from support.wording import wording

from specbench import decoding
from specbench.common import UsageError
from specbench.common.options import Options
from specbench.decoding.pairs import RETRIEVED, pair_methods
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import Branch, StepResult, TokenTree
from specbench.planning.methods import make_method, plan_methods
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.stop import StopRule

NOTHING, SURE, UNSURE = "nothing", "sure", "unsure"  # what the retrieval finds at a step


class Half(Options):
    rows: int = 4
    top: int = 0
    script: tuple[str, ...] = (SURE,)
    remembers: bool = False
    promises: float = 0.0
    fallback: str | None = None
    retrieve: str | None = None


@dataclass
class Heard:
    """What a decoder was called with, in order, and what it drafted."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    drafts: list[TokenTree] = field(default_factory=list)

    def of(self, call: str) -> list[Any]:
        return [given for name, given in self.calls if name == call]


class Drafter(decoding.Decoder):
    """Drafts one token, 200 + the number of its drafts."""

    base, own = 200, "depth"

    def __init__(self, options: Any, context: Context) -> None:
        self.options, self.context, self.heard = options, context, Heard()

    @staticmethod
    def max_rows(options: Any) -> int:
        return int(options.rows)

    @staticmethod
    def top_k(options: Any) -> int:
        return int(options.top)

    @staticmethod
    def taps(options: Any, shared: Any) -> tuple[int, ...]:
        return (int(shared or 0),)

    @staticmethod
    def prepare(options: Any, target: Any) -> Any:
        return target.layer + options.rows

    @staticmethod
    def weights(shared: Any) -> Mapping[str, str]:
        return {f"weights of {shared}": "w"}

    @staticmethod
    def memory_bytes(shared: Any) -> int:
        return int(shared or 0)

    @staticmethod
    def state(options: Any) -> Any:
        return [options.rows] if options.remembers else None

    def begin(self, prompt: Sequence[int]) -> None:
        self.heard.calls.append(("begin", list(prompt)))

    def observe(self, result: StepResult) -> None:
        self.heard.calls.append(("observe", result))

    def draft(self) -> TokenTree:
        self.draft_forwards += 3
        tree = self._tree()
        self.heard.calls.append(("draft", tree))
        self.heard.drafts.append(tree)
        return tree

    def _tree(self) -> TokenTree:
        return TokenTree.chain([7, self.base + len(self.heard.drafts)])

    def instead(self, tree: TokenTree) -> None:
        self.heard.calls.append(("instead", tree))

    def end(self) -> None:
        self.heard.calls.append(("end", None))

    def branches(self) -> Sequence[Branch]:
        return [Branch(step, tree.tokens[1:], -1.0) for step, tree in enumerate(self.heard.drafts)]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        return {self.own: float(kept), "both": float(self.base)}


class Retrieval(Drafter):
    """Finds something, or nothing, as its script says; its tokens are 100 and more."""

    base, own = 100, "match"

    def _tree(self) -> TokenTree:
        found = self._found(len(self.heard.drafts))
        return TokenTree.chain([7]) if found == NOTHING else super()._tree()

    def _found(self, at: int) -> str:
        return str(self.options.script[at % len(self.options.script)])

    def matched(self) -> bool:
        return self._found(len(self.heard.drafts) - 1) != UNSURE  # as of pld, whatever it drafts has matched


class NoHalf(Drafter):
    """A method that does not support pairs."""

    instead = decoding.Decoder.instead


def method(decoder: Any, name: str, **options: Any) -> Method:
    return Method(name, name, Half(**options), True, decoder, {decoder.own: f"of {name}", "both": f"both of {name}"})


def paired(script: Sequence[str] = (SURE,), role: Any = "fallback", **drafter: Any) -> Method:
    one, other = method(Retrieval, "finds", script=tuple(script)), method(Drafter, "drafts", **drafter)
    return pair_methods(one, other, role) if role == "fallback" else pair_methods(other, one, role)


def played(script: Sequence[str], steps: int, role: Any = "fallback") -> tuple[Any, list[TokenTree], list[StepResult]]:
    """Return a pair's decoder after some steps, the trees that it drafted, and the results of the forwards."""
    made: Any = paired(script, role).new(Context(50, 0, random.Random(0)))
    made.begin([5, 6])
    results, trees = [decided([7])], []
    made.observe(results[0])
    for _ in range(steps):
        trees.append(made.draft())
        results.append(decided([7]))
        made.observe(results[-1])
    return made, trees, results


# ------------------------------------------------------------------ who drafts


@pytest.mark.parametrize("role", ["fallback", "retrieve"])
def test_the_drafter_is_asked_where_nothing_matches_or_the_match_is_worth_less(role: Any) -> None:
    made, trees, _ = played([SURE, NOTHING, UNSURE, SURE], 4, role)
    # The retrieval drafts at every step, 100 to 103; the drafter's own first draft is 200.
    assert [tree.tokens[1] for tree in trees] == [100, 200, 201, 103]
    assert len(made.drafter.heard.drafts) == 2, "a draft that is not taken would cost a forward of its model"


def test_a_slot_that_does_not_draft_sees_the_verified_tree() -> None:
    made, trees, _ = played([SURE, NOTHING, UNSURE, SURE], 4)
    assert [id(tree) for tree in made.drafter.heard.of("instead")] == [id(trees[0]), id(trees[3])]
    assert [id(tree) for tree in made.retrieval.heard.of("instead")] == [id(trees[1]), id(trees[2])]
    # Before the forward's result comes, which is about that tree.
    for half in (made.drafter, made.retrieval):
        names = [name for name, _ in half.heard.calls]
        assert names[:2] == ["begin", "observe"]
        assert all(names[at] == "observe" for at in range(1, len(names)) if names[at - 1] in ("instead",))


def test_guesses_with_a_prompt_are_no_part_of_a_pair() -> None:
    class Guesses(Drafter):
        def begin(self, prompt: Sequence[int]) -> Any:
            return TokenTree.chain([prompt[-1], 3], drafts_only=True)

    made = pair_methods(method(Retrieval, "finds"), method(Guesses, "drafts"), "fallback").new(
        Context(9, 0, random.Random(0))
    )
    with pytest.raises(ValueError, check=wording):
        made.begin([5, 6])


# ------------------------------------------------------------------ what the runner asks of it


def test_what_both_bring_is_prepared_once_and_handed_to_its_own() -> None:
    target: Any = SimpleNamespace(layer=10)
    ready = pair_methods(method(Retrieval, "finds", rows=3), method(Drafter, "drafts", rows=5), "fallback").ready(
        target
    )
    assert (ready.weights, ready.memory_bytes) == ({"weights of 13": "w", "weights of 15": "w"}, 28)
    assert ready.taps == (15,), "the drafter's: what looks text up reads no layers"
    assert pair_methods(method(Retrieval, "finds"), method(Drafter, "drafts"), "fallback").weights == {}, (
        "not loaded yet"
    )
    made: Any = ready.new(Context(50, 0, random.Random(0)))
    assert (made.retrieval.context.shared, made.drafter.context.shared) == (13, 15)
    assert made.retrieval.context.rng is made.drafter.context.rng


def test_weights_of_one_name_are_both_in_the_record() -> None:
    """As the corpora of sam before sam: a run whose record lacked one would go on with another one in its place."""

    class Corpus(Drafter):
        @staticmethod
        def weights(shared: Any) -> Mapping[str, str]:
            return {"corpus": f"hash {shared}", f"only {shared}": "w"}

    class CorpusToo(Corpus, Retrieval):
        pass

    target: Any = SimpleNamespace(layer=10)
    ready = pair_methods(method(CorpusToo, "finds", rows=3), method(Corpus, "drafts", rows=5), "fallback").ready(target)
    assert sorted(ready.weights.values()) == ["hash 13", "hash 15", "w", "w"]
    assert (ready.weights["corpus"], ready.weights["only 13"], ready.weights["only 15"]) == ("hash 15", "w", "w")


def test_forwards_of_draft_models_add_up_and_branches_stand_at_their_forwards() -> None:
    made, trees, _ = played([SURE, NOTHING, SURE, SURE, NOTHING], 5)
    assert made.draft_forwards == 3 * (5 + 2)
    # The drafter's first and second trees went into the second and the fifth forward.
    assert [(branch.step, list(branch.tokens)) for branch in made.branches()] == [(1, [200]), (4, [201])]
    assert [list(trees[branch.step].tokens[1:]) for branch in made.branches()] == [[200], [201]]


@pytest.mark.parametrize(
    ("script", "share"), [([SURE], 1.0), ([NOTHING], 0.0), ([UNSURE], 0.0), ([SURE, NOTHING, SURE, SURE], 0.75)]
)
def test_the_record_says_which_share_of_the_forwards_was_retrieved(script: list[str], share: float) -> None:
    made, _, _ = played(script, 8)
    found = made.measures(40, True)
    assert found[RETRIEVED] == share
    assert (found["match"], found["depth"]) == (40.0, 40.0)
    assert found["both"] == 200.0, "one name, one figure: that which the drafter's words describe"
    assert made.measures(40, True).keys() <= paired().measures.keys()
    assert paired().measures["both"] == "both of drafts"


def test_a_drafter_that_was_never_asked_leaves_no_figure_under_its_words() -> None:
    """A figure of the retrieval of the same name would be averaged with the drafter's of other requests."""

    class Silent(Drafter):
        def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
            return super().measures(kept, stopped) if self.heard.drafts else {}

    made: Any = pair_methods(method(Retrieval, "finds"), method(Silent, "drafts"), "fallback").new(
        Context(50, 0, random.Random(0))
    )
    made.begin([5, 6])
    made.observe(decided([7]))
    made.draft()
    assert made.measures(40, True) == {"match": 40.0, RETRIEVED: 1.0}


@pytest.mark.parametrize("remember", [(False, False), (True, False), (True, True)])
def test_each_half_has_its_own_state(remember: tuple[bool, bool]) -> None:
    one = method(Retrieval, "finds", rows=3, remembers=remember[0])
    other = method(Drafter, "drafts", rows=5, remembers=remember[1])
    made = pair_methods(one, other, "fallback")
    assert made.stateful == any(remember)
    state = made.new_state()
    assert made.new_state() is not state or state is None
    halves: list[Any] = [made.new(Context(50, 0, random.Random(0), state=state)) for _ in range(2)]
    for decoder in halves:
        assert decoder.retrieval.context.state == ([3] if remember[0] else None)
        assert decoder.drafter.context.state == ([5] if remember[1] else None)
    if remember[0]:
        assert halves[0].retrieval.context.state is halves[1].retrieval.context.state, "handed on, not begun anew"


def test_who_cannot_be_half_of_a_pair_is_refused() -> None:
    finds, drafts, alone = method(Retrieval, "finds"), method(Drafter, "drafts"), method(NoHalf, "alone")
    refused = [
        (finds, alone, "fallback"),
        (drafts, alone, "retrieve"),
        (drafts, finds, "fallback"),
        (finds, paired(role="retrieve"), "fallback"),
    ]
    for one, other, role in refused:
        assert wording(refusal(UsageError, pair_methods, one, other, role))


# ------------------------------------------------------------------ as options


def made(setting: str, name: str = "suffix") -> Method:
    return plan_methods([name], [f"{name}.{setting}"])[1]


COLD, WARM = "warm=false unknown=skip", "warm=true unknown=skip"
SUFFIX = "suffix depth=24 draft_length=24 factor=1.0 offset=0.0 min_prob=0.1 tree=false"


@pytest.mark.parametrize(
    ("name", "setting", "recorded", "rows", "top", "stateful"),
    [
        ("suffix", "fallback=recycling budget=9 warm=true", f"recycling tree=2.2.2 budget=9 {WARM}", 13, 8, True),
        ("pld", "fallback=recycling B=9", f"recycling tree=2.2.2 budget=9 {COLD}", 11, 8, False),
        ("sam", "fallback=recycling 'tree=0 1 00'", f"recycling 'tree=0 1 00' budget=81 {COLD}", 41, 8, False),
        (
            "sam", "fallback=recycling preset=released",
            "recycling tree=2.2.2 budget=81 warm=true unknown=zero", 81, 8, True,
        ),
        ("recycling", "retrieve=suffix preset=vllm", f"{SUFFIX} cached_requests=10000 min_score=1.0", 81, 8, True),
        ("jetspec", "retrieve=suffix min-score=2", f"{SUFFIX} cached_requests=0 min_score=2.0", 64, 0, False),
        (
            "logitspec", "retrieve=pld k=99",
            "pld max_ngram=3 min_ngram=1 draft_length=99 branches=1 order=earliest full_only=true", 100, 64, False,
        ),
        (
            "recycling", "retrieve=sam corpus='my texts.txt'",
            "sam draft_length=40 alpha=4.0 full_only=true 'corpus=my texts.txt' len_bias=5 min_match=5", 81, 8, False,
        ),
    ],
)  # fmt: skip
def test_the_record_says_all_that_the_pair_is_made_of(
    name: str, setting: str, recorded: str, rows: int, top: int, stateful: bool
) -> None:
    found = made(setting, name)
    role = setting.partition("=")[0]
    assert found.options.model_dump()[role] == recorded
    assert (found.max_rows, found.top_k, found.stateful) == (rows, top, stateful)
    # What a record says makes the same again.
    again = make_method(name, name, found.options.model_dump(exclude_none=True))
    assert again.options == found.options
    assert (again.max_rows, again.measures, again.stateful) == (found.max_rows, found.measures, found.stateful)
    assert set(found.measures) >= {RETRIEVED, *plan_methods([name], [])[1].measures}


REFUSED = (
    "fallback=recyclin",
    "fallback=lookahead",
    "fallback=msn",
    "fallback=recycling retrieve=sam",
    "fallback=sam fallback=recycling",
    "fallback=recycling bugdet=9",
    "fallback=recycling budget=1",
    "fallback=recycling budget",
    "fallback=recycling budget=8 B=9",
    "fallback=recycling preset=realised",
    "fallback=recycling 'budget=9",
    "fallback= ",
    "fallback=vllm:ngram",
    "retrieve=sam",
)


@pytest.mark.parametrize("setting", REFUSED)
def test_what_makes_no_pair_is_refused_in_a_line(setting: str) -> None:
    message = refusal(UsageError, made, setting)
    assert wording(message)


@pytest.mark.parametrize(("other", "rows", "drafted"), [("sam k=9", 10, 8), ("sam k=2", 5, 2), ("sam k=5", 6, 5)])
def test_a_method_may_stand_next_to_itself_with_other_options(other: str, rows: int, drafted: int) -> None:
    """As sam without a corpus before sam with one; each is sized by its own options."""
    found = plan_methods(["sam"], ["sam.k=4", f"sam.fallback={other}"])[1]
    assert found.max_rows == rows
    text = [5, 6, *range(10, 40), 5, 6]  # two tokens match: of the 8 that alpha allows as many as the other one takes
    decoder = found.new(Context(50, 0, random.Random(0)))
    decoder.begin(text[:-1])
    decoder.observe(decided([text[-1]]))
    assert len(decoder.draft()) == 1 + drafted


# ------------------------------------------------------------------ real ones on an engine


def test_a_head_is_not_run_where_text_is_retrieved() -> None:
    """And what it drafts after that is what it would have drafted: it has the features of all that was accepted."""
    model = decoders.loaded(models.tiny_llama(61), name="config:tiny")
    options = ["jetspec.head=random", "jetspec.budget=8", "jetspec.width=4"]
    settings = [*options, *(each.replace("jetspec", "jetspec#2") for each in options)]
    methods = plan_methods(["jetspec", "jetspec"], [*settings, "jetspec#2.retrieve=suffix min_score=0.4 factor=3"])
    rule = StopRule(frozenset(), (), 60, str)
    requests = [Request(str(n), 0, [5, 6, 7, 8, 9, 5, 6, 7, n], rule) for n in range(3)]
    with Session(model, methods, capacity=96) as session:
        alone, both = ([*session.decode(each, requests)] for each in session.methods[1:])
    assert [record.output_ids for record in both] == [record.output_ids for record in alone]
    for record in both:
        retrieved = round(record.measures[RETRIEVED] * record.target_forwards)
        assert record.draft_forwards == record.target_forwards - retrieved
        words = known(record.tokens).words
        assert ("lookup" in words) <= (retrieved > 0)
    assert 0 < sum(record.draft_forwards for record in both) < sum(record.target_forwards for record in both)
