"""The contract of every method that says it is lossless: it emits what AR emits, token for token."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from support import decoders, models

from specbench import decoding
from specbench.decoding import Options
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import StepResult, TokenTree
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.grades import lossless
from specbench.runner.record import Request
from specbench.runner.stop import Output, StopRule

GREEDY = Sampling()
SAMPLED = [Sampling(temperature, seed=seed) for temperature in (0.7, 1.0) for seed in (0, 1, 2)]
FILTERED = Sampling(1.0, top_k=20, top_p=0.9, seed=3)
SAMPLINGS = [GREEDY, *SAMPLED]
CONCURRENCY, SLOTS = 3, 8
LONGEST, BUDGET, MARGIN = 30, 16, 9  # tokens of a prompt, of an answer, and of what a tree may hold after it


@dataclass(frozen=True)
class Case:
    """A prompt with its stop rule."""

    ids: Sequence[int]
    budget: int = BUDGET
    stops: frozenset[int] = frozenset()


@dataclass
class Bench:
    """An engine with everything needed to run a method on it, and what AR says there."""

    engine: Engine
    vocab: int
    outcome: dict[tuple[Sampling, tuple[int, ...]], list[int]] = field(default_factory=dict)

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        return models.prompt(length, self.vocab, seed)

    def ar(self, sampling: Sampling, ids: Sequence[int]) -> list[int]:
        """What the model says to a prompt and after the longest answer; no stop rule ends it."""
        self.ask(sampling, [ids])
        return self.outcome[sampling, tuple(ids)]

    def ask(self, sampling: Sampling, prompts: Iterable[Sequence[int]]) -> None:
        """Has the model answer prompts: one row of each of eight prompts a forward, which is faster than one by one."""
        self.engine.sampling = sampling
        unasked = [ids for ids in dict.fromkeys(map(tuple, prompts)) if (sampling, ids) not in self.outcome]
        for at in range(0, len(unasked), SLOTS):
            answers = dict[int, list[int]]()
            for ids in unasked[at : at + SLOTS]:
                slot = self.engine.alloc()
                answers[slot] = self.outcome[sampling, ids] = list(self.engine.prefill(slot, list(ids)).emitted)
            for _ in range(BUDGET + MARGIN - 1):
                found = self.engine.step({slot: TokenTree.chain([out[-1]]) for slot, out in answers.items()})
                for slot, out in answers.items():
                    out += found[slot].emitted
            for slot in answers:
                self.engine.free(slot)

    def expected(self, sampling: Sampling, case: Case) -> list[int]:
        """AR's answer, ended by the case's rule."""
        ids = self.ar(sampling, case.ids)[: case.budget]
        ends = [at for at, token in enumerate(ids) if token in case.stops]
        return ids[: ends[0] + 1] if ends else ids

    def run(
        self,
        method: Method,
        sampling: Sampling,
        cases: Sequence[Case],
        concurrency: int = 1,
        wrong: float | None = None,
    ) -> list[RequestRecord]:
        """Decodes the cases, and checks each answer."""
        self.ask(sampling, (case.ids for case in cases))
        answers = [self.expected(sampling, case) for case in cases]
        method = decoders.ready(method, self.engine)
        state = method.new_state()  # of all the cases: what one has learnt the next one drafts from

        def context(label: str, request: Request) -> Context:
            rng = random.Random(f"{sampling.seed}/{request.prompt_id}")
            if wrong is not None:
                rng = Foresight(len(request.ids), self.ar(sampling, request.ids), wrong)
            return Context(self.vocab, 0, rng, state=state)

        requests = [
            Request(str(number), 0, case.ids, StopRule(case.stops, (), case.budget, str))
            for number, case in enumerate(cases)
        ]
        found = list(Runner(self.engine, context, concurrency).segment(method, requests))
        records = sorted(found, key=lambda record: int(record.prompt_id))
        for case, answer, record in zip(cases, answers, records, strict=True):
            assert record.output_ids == answer, (sampling, case, concurrency)
            assert record.finish_reason == ("stop" if answer[-1] in case.stops else "length"), (sampling, case)
            assert 1 + sum(record.accepted_lengths) == record.output_tokens == len(answer)
        return records


class Foresight(random.Random):
    """Draws that are AR's own continuation but for a share of wrong ones: blocks are accepted whole or in part."""

    def __init__(self, length: int, answer: Sequence[int], wrong: float) -> None:
        super().__init__(0)
        self.length, self.answer, self.wrong = length, answer, wrong

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        at = len(population) - self.length
        known = [*self.answer[at : at + k], *[0] * k][:k]
        return [0 if self.random() < self.wrong else token for token in known]


class Scripted(Options):
    rows: int = 9


class Teller(decoding.Decoder):
    """Drafts what AR says, as branches of any shape mixed with wrong rows: paths of every length are accepted."""

    answers: dict[tuple[int, ...], list[int]] = {}  # noqa: RUF012 -- set by the tests

    def __init__(self, options: Scripted, context: Context) -> None:
        self.options, self.context = options, context
        self.answer: list[int] = []
        self.out: list[int] = []

    @staticmethod
    def max_rows(options: Scripted) -> int:
        return options.rows

    def begin(self, prompt: Sequence[int]) -> None:
        self.answer = self.answers[tuple(prompt)]

    def observe(self, result: StepResult) -> None:
        self.out += result.emitted

    def draft(self) -> TokenTree:
        rng, at = self.context.rng, len(self.out)
        tokens, parents, path = [self.out[-1]], [-1], [0]  # path: rows that hold the right answer so far
        while len(tokens) < self.options.rows:
            step = at + len(path) - 1
            if rng.random() < 0.7 and step < len(self.answer):
                parents.append(path[-1])
                tokens.append(self.answer[step])
                path.append(len(tokens) - 1)
            else:
                parents.append(rng.randrange(len(tokens)))
                tokens.append(rng.randrange(self.context.vocab_size))
        return TokenTree(tokens, parents)


SCRIPTED = Method("scripted", "scripted", Scripted(), True, Teller)


def tell(bench: Bench, sampling: Sampling, cases: Sequence[Case]) -> None:
    """Lets the teller know the answers to these, and what comes after them."""
    bench.ask(sampling, (case.ids for case in cases))
    Teller.answers = {tuple(case.ids): bench.ar(sampling, case.ids) for case in cases}


def parametrised(methods: dict[str, Method]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("method", [pytest.param(method, id=name) for name, method in methods.items()])


#: Steps with accepted drafts, after which some must have ended inside a block.
ENOUGH = 20

#: Or all of what a test goes through, and not the method's share of it.
in_full = pytest.mark.parametrize("in_full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["share", "full"])

EVERY = list(decoders.LOSSLESS.values())


def share(items: Sequence[Any], method: Method, one_in: int, in_full: bool) -> Sequence[Any]:
    """One in so many of the items, others for the next method; all of them in full, and for the teller."""
    # By pairs: of two neighbours `in_turn` takes one, always with the same parity.
    return items if in_full or method is SCRIPTED else items[EVERY.index(method) // 2 % one_in :: one_in]


defaults = parametrised(decoders.lossless(decoders.DEFAULTS) | {"scripted": SCRIPTED})


def in_turn(turn: int, **teller: Method) -> pytest.MarkDecorator:
    """Every other setting of the methods, and the teller; those of the other turn are slow."""
    return pytest.mark.parametrize(
        "method",
        [
            pytest.param(method, id=name, marks=[pytest.mark.slow] * (method is not SCRIPTED and (at + turn) % 2))
            for at, (name, method) in enumerate((decoders.LOSSLESS | teller).items())
        ],
    )


ROWS = max([SCRIPTED.max_rows, *(method.max_rows for method in decoders.LOSSLESS.values())])


def double(model: Any) -> Any:
    """A copy in float64."""
    baseline = copy.deepcopy(model).double()
    if hasattr(baseline.config, "num_local_experts"):
        baseline.set_experts_implementation("eager")  # the fused kernel takes no float64
    return baseline


def bench(model: Any) -> Iterator[Bench]:
    with models.attached(model, slots=SLOTS, capacity=LONGEST + BUDGET + MARGIN, max_rows=ROWS) as engine:
        yield Bench(engine, model.get_output_embeddings().weight.shape[0])


FAMILIES = [*models.SUPPORTED, *models.RECURRENT]


def crossed(turn: int) -> pytest.MarkDecorator:
    """Every method in a third of the families, the teller in all; the others are slow."""
    methods = decoders.lossless(decoders.DEFAULTS) | {"scripted": SCRIPTED}
    pairs = [
        pytest.param(family, method, id=f"{family}-{name}", marks=[pytest.mark.slow] * (name != "scripted" and slow))
        for at, family in enumerate(FAMILIES)
        for number, (name, method) in enumerate(methods.items())
        for slow in [(at + number + turn) % 3 or family in models.RECURRENT]
    ]
    return pytest.mark.parametrize(("family", "method"), pairs)


@pytest.fixture(scope="module")
def benches() -> Iterator[Callable[[str, bool], Bench]]:
    """Each family that the engine runs, in float64 or as it comes, made once."""
    with ExitStack() as open_ones:

        @cache
        def made(family: str, single: bool) -> Bench:
            recipe = {**models.SUPPORTED, **models.RECURRENT}[family]
            model = models.build(recipe)  # of its own: its engine stays open
            as_is = single or family in models.RECURRENT  # states are float32 whatever the weights are
            return open_ones.enter_context(contextmanager(bench)(model if as_is else double(model)))

        yield made


def own_samplings(family: str) -> list[Sampling]:
    """Greedy and two seeds; no two neighbours have the same ones, or the same one first."""
    at = FAMILIES.index(family)
    samplings = [GREEDY, SAMPLED[at % 3], SAMPLED[3 + (at + 1) % 3]]
    return [*samplings[at % 3 :], *samplings[: at % 3]]


@pytest.fixture(scope="module")
def llama() -> Iterator[Bench]:
    yield from bench(double(models.supported("llama")))


@pytest.fixture(scope="module")
def gemma3() -> Iterator[Bench]:
    """Layers with a sliding window shorter than the prompts, and layers without."""
    yield from bench(double(models.supported("gemma3")))


# ------------------------------------------------------------------ prompts of every kind


def cases(bench: Bench, sampling: Sampling) -> list[Case]:
    """Unlike prompts and rules: several at a time, they enter and leave at different steps."""
    a, b, c, d = bench.prompt(4, seed=1)
    stops = bench.prompt(6, seed=2)
    full_of_stops = [stops[at % 6] for at in range(17)]
    outcome = bench.ar(sampling, full_of_stops)
    # So that an answer to such a prompt also ends after its beginning.
    later = next((token for token in outcome[4:] if token not in outcome[:4]), outcome[4])
    return [
        Case([a]),
        Case([b] * LONGEST),
        Case(full_of_stops, stops=frozenset(stops)),
        Case([a, c, d] * 8),
        Case(full_of_stops, stops=frozenset([later, *(stop for stop in stops if stop not in outcome[:4])])),
        *(Case(bench.prompt(7 * budget - 5, seed=3), budget) for budget in (3, 1, 4, 2, 5)),
        Case([c], stops=frozenset([c])),
        Case(full_of_stops, stops=frozenset(range(bench.vocab))),  # the prefill's token is a stop
    ]


@crossed(0)
def test_every_method_in_every_family(benches: Any, family: str, method: Method) -> None:
    here: Bench = benches(family, False)
    longest = 0
    for sampling in share(own_samplings(family), method, 3, False):
        of_all_kinds = cases(here, sampling)
        tell(here, sampling, of_all_kinds)
        records = here.run(method, sampling, of_all_kinds, CONCURRENCY)
        longest = max([longest, *(kept for record in records for kept in record.accepted_lengths)])
        if method is SCRIPTED:  # AR's answers are those of each prompt alone
            ids = of_all_kinds[FAMILIES.index(family) % len(of_all_kinds)].ids
            assert here.ar(sampling, ids) == models.autoregressive(here.engine, list(ids), BUDGET + MARGIN)
    assert longest > (3 if method is SCRIPTED else -1)  # or no long path was ever committed


@in_full
@defaults
def test_every_method_at_every_sampling(llama: Bench, method: Method, in_full: bool) -> None:
    for sampling in (*share(SAMPLINGS, method, 3, in_full), FILTERED):
        of_all_kinds = cases(llama, sampling)
        tell(llama, sampling, of_all_kinds)
        llama.run(method, sampling, of_all_kinds, CONCURRENCY)


@in_full
@in_turn(0)
def test_every_option_set_alone_and_in_company(llama: Bench, method: Method, in_full: bool) -> None:
    for sampling in share([GREEDY, SAMPLED[EVERY.index(method) % len(SAMPLED)]], method, 2, in_full):
        some = share(cases(llama, sampling), method, 2, in_full)
        alone, together = (llama.run(method, sampling, some, at) for at in (1, CONCURRENCY))
        if method.stateful:
            continue  # what it has learnt when it drafts is what the company has said by then
        # Not the tokens only: drafts and their acceptance do not depend on the company either.
        for one, other in zip(alone, together, strict=True):
            assert (one.accepted_lengths, one.tree_rows, one.measures) == (
                other.accepted_lengths,
                other.tree_rows,
                other.measures,
            )


def test_the_cases_are_what_they_are_meant_to_be(llama: Bench) -> None:
    """Or the tests above would be the same one several times."""
    answers, ends = set(), set()
    for sampling in SAMPLINGS:
        all_of_them = cases(llama, sampling)
        answers.add(str([llama.ar(sampling, case.ids) for case in all_of_them]))
        lengths = [len(llama.expected(sampling, case)) for case in all_of_them]
        assert {1, 2, 3, 4, 5, BUDGET} <= set(lengths)
        ends.add(lengths[4])
    assert len(answers) == len(SAMPLINGS)
    assert any(1 < length < BUDGET for length in ends), "no prompt full of stop ids was answered for a while"


# ------------------------------------------------------------------ stops and budgets at every place of a block


@dataclass
class Language:
    """A language that can be guessed."""

    bench: Bench
    sampling: Sampling
    loops: bool

    @property
    def ids(self) -> list[int]:
        """A prompt; of a language of loops it holds one already, so that all stop ids are in the prompt as well."""
        ids = self.bench.prompt(5, seed=4)
        return [*ids, *self.bench.ar(self.sampling, ids)[: LONGEST - 5]] if self.loops else ids


@pytest.fixture(scope="module")
def languages() -> Iterator[dict[str, Language]]:
    made = {}
    open_benches = []
    for name, family_name, sampling in (
        ("by position, greedy", "gpt2", GREEDY),
        ("by position, sampled", "llama", Sampling(1.0, seed=4)),
        ("in loops, greedy", "llama", GREEDY),
        ("in loops, sampled", "qwen3", Sampling(0.7, seed=5)),
    ):
        model = double(models.supported(family_name))
        with torch.no_grad():
            if name == "by position, greedy":
                model.transformer.wpe.weight *= 4
            elif name == "by position, sampled":
                model.get_output_embeddings().weight *= 0.05
            else:
                for layer in model.model.layers:
                    layer.self_attn.o_proj.weight *= 0.02
                if sampling.temperature:
                    model.get_output_embeddings().weight *= 10
        open_benches.append(bench(model))
        made[name] = Language(next(open_benches[-1]), sampling, name.startswith("in loops"))
    yield made
    for one in open_benches:
        next(one, None)


def span(method: Method) -> int:
    """Two blocks and a bit of a method, or of its first eight rows: every place a stop can have in a block."""
    return min(BUDGET, 2 * min(method.max_rows, 8) + 3)


@in_full
@in_turn(0, scripted=SCRIPTED)
def test_a_stop_token_anywhere(languages: dict[str, Language], method: Method, in_full: bool) -> None:
    """Each token of the answer in turn is the stop token: inside a block, at its end, just after it, and as bonus."""
    inside = bonus = hits = 0
    for language in share([*languages.values()], method, 2, in_full):
        ar = language.bench.ar(language.sampling, language.ids)
        stops = [Case(language.ids, stops=frozenset([stop])) for stop in dict.fromkeys(ar[: span(method)])]
        tell(language.bench, language.sampling, stops)
        for record in language.bench.run(method, language.sampling, stops, SLOTS):
            hits += sum(length > 1 for length in record.accepted_lengths)
            inside += record.overshoot_tokens > 0
            # The bonus token of a step that accepted something.
            bonus += record.overshoot_tokens == 0 and record.accepted_lengths[-1:] > [1]
    # Blocks of one token guess nothing, and chains of an untrained head are hardly ever right.
    if method is SCRIPTED or (in_full and hits >= ENOUGH):
        assert inside, "no stop token had accepted tokens after it"
        assert bonus, "no stop token was a bonus"


@in_full
@in_turn(1, scripted=SCRIPTED)
def test_any_budget(languages: dict[str, Language], method: Method, in_full: bool) -> None:
    overshoot = hits = 0
    drafted = False
    for language in share([languages["by position, sampled"], languages["in loops, greedy"]], method, 2, in_full):
        budgets = [Case(language.ids, budget) for budget in range(1, span(method) + 1)]
        tell(language.bench, language.sampling, budgets)
        for record in language.bench.run(method, language.sampling, budgets, SLOTS):
            hits += sum(length > 1 for length in record.accepted_lengths)
            drafted |= record.tree_rows > record.target_forwards
            overshoot += record.overshoot_tokens
    assert drafted or not overshoot
    if method is SCRIPTED or (in_full and hits >= ENOUGH):
        assert overshoot, "no budget ended inside a block"


@in_full
@in_turn(1)
def test_stops_and_budgets_where_fresh_guesses_are_mostly_right(gemma3: Bench, method: Method, in_full: bool) -> None:
    ids = gemma3.prompt(11, seed=5)
    for sampling, wrong in share([(GREEDY, 0.0), (SAMPLED[-1], 0.2)], method, 2, in_full):
        ar = gemma3.ar(sampling, ids)
        ends = [Case(ids, at) for at in range(1, span(method) + 1)]
        ends += [Case(ids, stops=frozenset([stop])) for stop in dict.fromkeys(ar[: span(method)])]
        gemma3.run(method, sampling, share(ends, method, 2, in_full), SLOTS, wrong=wrong)


def test_drafts_that_are_right_save_forwards(gemma3: Bench) -> None:
    """The identity of this file must not hold because nothing is ever accepted."""
    jacobi = decoders.with_options("jacobi", {"n": 5})
    (free,) = gemma3.run(decoders.with_options("ar", {}), GREEDY, [Case(gemma3.prompt(6), 21)])
    (record,) = gemma3.run(jacobi, GREEDY, [Case(gemma3.prompt(6), 21)], wrong=0.0)
    assert free.target_forwards == 20
    assert record.accepted_lengths == [5, 5, 5, 5]  # after the prefill's token, four blocks


# ------------------------------------------------------------------ slots that hold different methods at once


class Asker(Teller):
    """Looks at more of the best tokens than any method asks for."""

    best = 1 + max(method.top_k for method in decoders.ALL.values())

    @staticmethod
    def top_k(options: Scripted) -> int:
        return Asker.best

    def observe(self, result: StepResult) -> None:
        assert result.top is not None
        assert result.top[1].shape == (len(result.next_tokens), self.best)
        assert result.top[1][:, 0].tolist() == result.next_tokens
        super().observe(result)


ASKER = Method("asker", "asker", Scripted(), True, Asker)


@dataclass
class Seat:
    """A request in a slot, with a decoder of its own method."""

    number: int
    method: Method
    decoder: decoding.Decoder
    output: Output
    trees: list[TokenTree] = field(default_factory=list)


def mixed(
    bench: Bench, sampling: Sampling, jobs: Sequence[tuple[Method, Case]], best: int = 0
) -> tuple[dict[int, Seat], list[set[str]]]:
    """Decodes jobs of unlike methods, each forward over all occupied slots."""
    engine = bench.engine
    engine.sampling = sampling
    waiting = list(enumerate(jobs))
    seats: dict[int, Seat] = {}
    done, shared = {}, []
    while waiting or seats:
        while waiting and len(seats) < CONCURRENCY:
            number, (method, case) = waiting[0]
            method = decoders.ready(method, engine)
            tapped = {seat.method.taps for seat in seats.values() if seat.method.taps}
            if method.taps and tapped - {method.taps}:
                break  # a step has the same taps for all
            del waiting[0]
            slot = engine.alloc()
            decoder = method.new(Context(bench.vocab, 0, random.Random(f"{sampling.seed}/0")))
            seat = Seat(number, method, decoder, Output(StopRule(case.stops, (), case.budget, str)))
            seats[slot] = seat
            top_k = max(best, *(one.method.top_k for one in seats.values()))
            first = engine.prefill(slot, case.ids, decoder.begin(case.ids), top_k=top_k, taps=method.taps)
            decoder.observe(first)
            seat.output.extend(first.emitted)
            if seat.output.reason:
                break
        going = {slot: seat for slot, seat in seats.items() if not seat.output.reason}
        if len(going) == len(seats):
            trees = {slot: seat.decoder.draft() for slot, seat in going.items()}
            taps = {seat.method.taps for seat in going.values() if seat.method.taps}
            results = engine.step(
                trees,
                top_k=max(best, *(seat.method.top_k for seat in going.values())),
                taps=taps.pop() if taps else (),
            )
            assert not taps, "methods with different taps cannot be distinguished here"
            shared.append({seat.method.name for seat in going.values()})
            for slot, seat in going.items():
                seat.decoder.observe(results[slot])
                seat.output.extend(results[slot].emitted)
                seat.trees.append(trees[slot])
        for slot in [slot for slot, seat in seats.items() if seat.output.reason]:
            seat = seats.pop(slot)
            done[seat.number] = seat
            seat.decoder.end()
            engine.free(slot)
    return done, shared


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1], SAMPLED[4]], ids=["greedy", "T=0.7", "T=1"])
def test_methods_next_to_each_other_are_as_alone(llama: Bench, sampling: Sampling) -> None:
    of_all_kinds = cases(llama, sampling)
    tell(llama, sampling, of_all_kinds)
    methods = [*decoders.LOSSLESS.values(), decoders.with_options("ar", {}), *[ASKER] * 8]
    random.Random(7).shuffle(methods)
    jobs = [(method, of_all_kinds[number % len(of_all_kinds)]) for number, method in enumerate(methods)]
    together, shared = mixed(llama, sampling, jobs)
    assert sum(len(names) == CONCURRENCY for names in shared) > len(shared) / 3  # or there was hardly any company
    for number, (method, case) in enumerate(jobs):
        assert together[number].output.ids == llama.expected(sampling, case), (method, case)


@defaults
def test_more_best_tokens_than_were_asked_for_change_nothing(llama: Bench, method: Method) -> None:
    """Another slot's method may have asked for them."""
    case = Case(llama.prompt(11, seed=8))
    tell(llama, GREEDY, [case])
    as_asked, more = (mixed(llama, GREEDY, [(method, case)], best)[0][0] for best in (0, method.top_k + 3))
    assert more.trees == as_asked.trees


# ------------------------------------------------------------------ float32


@crossed(1)
def test_every_method_in_float32(benches: Any, family: str, method: Method) -> None:
    """In the precision that is run. Where two scores are nearer than rounding, a flip is distinguished from a fault."""
    single: Bench = benches(family, True)
    for sampling in share([GREEDY, SAMPLED[0]], method, 2, False):
        prompts = {str(length): single.prompt(length, seed=6) for length in (1, LONGEST, 9, 4)}
        reference = {key: single.ar(sampling, ids)[:BUDGET] for key, ids in prompts.items()}
        Teller.answers = {tuple(ids): single.ar(sampling, ids) for ids in prompts.values()}
        single.engine.sampling = sampling
        runner = Runner(single.engine, lambda _, r: Context(single.vocab, 0, random.Random(r.prompt_id)), CONCURRENCY)
        rule = StopRule(frozenset(), (), BUDGET, str)
        method = decoders.ready(method, single.engine)
        records = runner.segment(method, [Request(key, 0, ids, rule) for key, ids in prompts.items()])
        outputs = {"it": {record.prompt_id: record.output_ids for record in records}}
        graded = lossless.grade_all(single.engine, method.max_rows, prompts, reference, outputs)["it"]
        assert graded["lossy"] == 0, graded
        assert graded["numeric_tie"] <= 1, graded
