"""Grades of planted differences: a wrong token, a tie of the model's own making, an answer that ends elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from support import models
from support.asserting import known

from specbench.decoding.tree import StepResult, TokenTree
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.runner.grades.lossless import Divergence, Grader, Noise, first_divergence, grade_all, tally

VOCAB, ROWS = 97, 16
PROMPT = models.prompt(9, VOCAB)


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [
        ([], [], None), ([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2, 3], [1, 2], 2), ([], [1], 0),
    ],
)  # fmt: skip
def test_first_divergence(one: list[int], other: list[int], at: int | None) -> None:
    assert first_divergence(one, other) == at
    assert first_divergence(other, one) == at


def baselines(model: Any, *tokens: int) -> Any:
    """The model with the same LM head row for all of ``tokens``: their scores tie everywhere."""
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head[list(tokens)] = head[tokens[0]].clone()
    return model


def engine_on(model: Any, **options: Any) -> Engine:
    """Without our own layers, which make no noise: their sums have one order, whatever the rows."""
    return Engine(model, capacity=64, max_rows=ROWS, **{"native": False, **options})


def untied(seed: int = 0) -> Any:
    return models.tiny_llama(VOCAB, seed, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[Engine, list[int]]]:
    """An engine without ties and AR's output on it."""
    engine = engine_on(untied())
    yield engine, models.autoregressive(engine, PROMPT, 24)
    engine.close()


@pytest.fixture(scope="module")
def tied() -> Iterator[tuple[Engine, list[int], int, int]]:
    """An engine whose token ``twin`` ties with the token AR chose at ``at``, and AR's output on it."""
    model = untied()
    with models.attached(model, capacity=64) as engine:
        before = models.autoregressive(engine, PROMPT, 24)
    at = 10
    baseline = next(token for token in range(VOCAB - 1, 0, -1) if token not in before + PROMPT)
    engine = engine_on(baselines(model, before[at], baseline))
    after = models.autoregressive(engine, PROMPT, 24)
    # The twins are equally good, so AR may now take either, and everything up to there is as before.
    first = next(i for i, token in enumerate(after) if token in (before[at], baseline))
    other = baseline if after[first] == before[at] else before[at]
    yield engine, after, first, other
    engine.close()


def changed(ids: Sequence[int], at: int, token: int) -> list[int]:
    return [*ids[:at], token, *ids[at + 1 :]]


def grader(engine: Engine, *outputs: Sequence[int]) -> Grader:
    made = Grader(engine, ROWS)
    for output in outputs:
        made.sample(PROMPT, output)
    return made


def test_equal_output_is_exact_and_measures_nothing(plain: tuple[Engine, list[int]]) -> None:
    engine, ar = plain
    found = grader(engine, ar)
    assert found.grade("p", PROMPT, ar, list(ar)) is None
    assert found._noise is None  # the noise floor costs forwards; a run without a difference pays none


@pytest.mark.parametrize(("length", "at"), [(9, 0), (9, 7), (9, 23), (1, 0)])
def test_a_wrong_token_is_lossy(plain: tuple[Engine, list[int]], length: int, at: int) -> None:
    engine, ar = plain
    found = grader(engine, ar)
    ar = models.autoregressive(engine, PROMPT[:length], 24)
    divergence = known(found.grade("p", PROMPT[:length], ar, changed(ar, at, (ar[at] + 1) % VOCAB)))
    assert (divergence.prompt_id, divergence.at, divergence.grade) == ("p", at, "lossy")
    assert divergence.gap is not None
    assert found.noise.floor < 1e-3 < divergence.gap  # in float32 the noise is far below the gap of two tokens


def test_the_other_of_two_tied_tokens_is_a_numeric_tie_and_a_third_one_lossy(
    tied: tuple[Engine, list[int], int, int],
) -> None:
    engine, ar, at, baseline = tied
    divergence = known(grader(engine, ar).grade("p", PROMPT, ar, changed(ar, at, baseline)))
    assert (divergence.at, divergence.grade) == (at, "numeric-tie")
    assert divergence.gap == pytest.approx(0, abs=1e-4)
    # The two best tie, but neither is what the method wrote: no rounding explains it.
    engine, ar, at, baseline = tied
    third = next(token for token in range(VOCAB) if token not in (ar[at], baseline))
    divergence = known(grader(engine, ar).grade("p", PROMPT, ar, changed(ar, at, third)))
    assert divergence.gap == pytest.approx(0, abs=1e-4)
    assert divergence.grade == "lossy"


def test_a_reference_that_is_no_contender_is_no_tie(plain: tuple[Engine, list[int]]) -> None:
    # Then it is AR's record that is wrong, and the method's token the best one.
    engine, ar = plain
    divergence = known(grader(engine, ar).grade("p", PROMPT, changed(ar, 7, (ar[7] + 1) % VOCAB), ar))
    assert divergence.grade == "lossy"


@pytest.mark.parametrize("longer", ["ar", "other"])
def test_an_answer_that_ends_elsewhere_is_lossy_even_at_a_tie(
    tied: tuple[Engine, list[int], int, int], longer: str
) -> None:
    engine, ar, at, _ = tied
    pair = (ar, ar[:at]) if longer == "ar" else (ar[:at], ar)
    divergence = known(grader(engine, ar).grade("p", PROMPT, *pair))
    assert (divergence.at, divergence.grade) == (at, "lossy")


def test_sampled_output_is_graded_by_the_perturbed_scores() -> None:
    # At T > 0 the token follows from logits and noise together; their gap is the one that rounding can bridge.
    engine = engine_on(untied(), sampling=Sampling(temperature=1.0, seed=3))
    try:
        ar = models.autoregressive(engine, PROMPT, 16)
        found = grader(engine, ar)
        slot = engine.alloc()
        top = engine.prefill(slot, PROMPT + ar[:4], top_k=2).top
        engine.free(slot)
        assert top is not None
        divergence = found.grade("p", PROMPT, ar, changed(ar, 4, int(top[1][0, 1])))
    finally:
        engine.close()
    assert divergence is not None
    assert divergence.gap == pytest.approx(float(top[0][0, 0] - top[0][0, 1]), rel=1e-3)
    assert divergence.grade == "lossy"


def test_a_filter_that_leaves_one_token_has_no_gap() -> None:
    engine = engine_on(untied(), sampling=Sampling(temperature=1.0, top_k=1))
    try:
        ar = models.autoregressive(engine, PROMPT, 8)
        divergence = grader(engine, ar).grade("p", PROMPT, ar, changed(ar, 4, (ar[4] + 1) % VOCAB))
    finally:
        engine.close()
    assert divergence == Divergence("p", 4, None, "lossy")  # None and not inf: it goes into a JSON file


class Scripted:
    """An engine whose best two scores after every token are ``single`` in one-row steps and ``many`` in wider ones."""

    def __init__(self, single: Sequence[float], many: Sequence[float]) -> None:
        self.single, self.many = single, many

    device = torch.device("cpu")
    model = torch.zeros(1, dtype=torch.bfloat16)  # has a dtype

    def report(self) -> dict[str, str]:
        return {"attention": "scripted"}

    def alloc(self) -> int:
        return 0

    def free(self, slot: int) -> None: ...

    def prefill(self, slot: int, ids: Sequence[int]) -> None: ...

    def step(self, trees: Mapping[int, TokenTree], top_k: int) -> dict[int, StepResult]:
        tree = trees[0]
        scores = self.single if len(tree) == 1 else self.many
        top = torch.tensor([scores] * len(tree)), torch.tensor([[5, 6]] * len(tree))
        return {0: StepResult([5] * len(tree), list(range(len(tree))), [5] * len(tree), top)}


@pytest.mark.parametrize(
    ("single", "many", "floor"),
    [
        pytest.param([2.0, 1.0], [2.0, 1.0], 0.0, id="no noise"),
        pytest.param([2.0, 1.0], [2.0, 1.25], 0.5, id="twice the largest change"),
        # The runner-up is at the edge of top-p: inside in one forward, outside in the other. An infinite floor would
        # call every difference of the run a tie.
        pytest.param([2.0, 1.0], [2.0, -math.inf], 0.0, id="runner-up filtered in one of the two"),
        pytest.param([2.0, -math.inf], [2.0, -math.inf], 0.0, id="runner-up filtered in both"),
    ],
)
def test_noise_floor(single: list[float], many: list[float], floor: float) -> None:
    found = Grader(Scripted(single, many), ROWS)  # type: ignore[arg-type]
    found.sample([1, 2], [5] * 9)
    assert found.noise == Noise(floor, floor / 2, 8, 0, ROWS, "cpu", "bfloat16", "scripted")


class Forgetful(Scripted):
    """Accepts two rows of a wide step at most."""

    def step(self, trees: Mapping[int, TokenTree], top_k: int) -> dict[int, StepResult]:
        result = super().step(trees, top_k)[0]
        return {0: StepResult(result.emitted[:2], result.path[:2], result.next_tokens, result.top)}


def test_flips_are_counted_and_every_position_is_compared_once() -> None:
    found = Grader(Forgetful([2.0, 1.0], [2.0, 1.25]), ROWS)  # type: ignore[arg-type]
    found.sample([1, 2], [5] * 9)
    assert (found.noise.positions, found.noise.flips, found.noise.floor) == (8, 3, 0.5)


def test_the_noise_floor_is_that_of_the_arithmetic_and_survives_flips() -> None:
    floors = []
    for dtype in (torch.float32, torch.bfloat16):
        engine = engine_on(untied().to(dtype))
        try:
            floors.append(grader(engine, models.autoregressive(engine, PROMPT, 40)).noise.floor)
        finally:
            engine.close()
    assert 0 <= floors[0] < 1e-3 < floors[1]
    # The output offered is not what the engine would write: wide steps accept only part of it and must go on there.
    engine = engine_on(untied())
    try:
        foreign = models.prompt(20, VOCAB, seed=5)
        assert grader(engine, foreign).noise.floor < 1e-3
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_our_own_make_no_noise_at_all(dtype: torch.dtype) -> None:
    engine = engine_on(untied().to(dtype), native=True)
    try:
        assert grader(engine, models.autoregressive(engine, PROMPT, 40)).noise.largest == 0
    finally:
        engine.close()


NOISE = Noise(0.1, 0.05, 100, 1, ROWS, "cuda", "bfloat16", "triton")


def test_the_noise_of_reduced_precision_is_recorded_though_nothing_parted() -> None:
    engine = engine_on(untied().to(torch.bfloat16))
    try:
        ar = models.autoregressive(engine, PROMPT, 12)
        graded = grade_all(engine, ROWS, {"a": PROMPT}, {"a": ar}, {"same": {"a": ar}})["same"]
    finally:
        engine.close()
    measured = graded["noise"]
    assert (measured["device"], measured["dtype"], measured["attention"]) == ("cpu", "bfloat16", "reference")
    assert (measured["rows"], measured["positions"]) == (ROWS, 11)
    assert graded["noise_floor"] == measured["floor"] == 2 * measured["largest"] > 0


def test_tally_is_the_worst_grade() -> None:
    tie, lossy = Divergence("p1", 3, 0.0, "numeric-tie"), Divergence("p2", 5, 0.7, "lossy")
    assert tally([None, None], None) == {
        "verdict": "exact", "exact": 2, "numeric_tie": 0, "lossy": 0, "noise_floor": None, "noise": None,
        "divergences": [],
    }  # fmt: skip
    assert tally([None, tie], NOISE)["verdict"] == "numeric-tie"
    both = tally([None, tie, lossy], NOISE)
    assert (both["verdict"], both["exact"], both["numeric_tie"], both["lossy"]) == ("lossy", 1, 1, 1)
    assert both["divergences"][1] == {"prompt": "p2", "at": 5, "gap": 0.7, "grade": "lossy"}


def test_grade_all(tied: tuple[Engine, list[int], int, int]) -> None:
    engine, ar, at, baseline = tied
    graded = grade_all(
        engine, ROWS, {"a": PROMPT, "b": PROMPT}, {"a": ar, "b": ar},
        {
            "same": {"a": ar, "b": ar},
            "flips": {"a": ar, "b": changed(ar, at, baseline)},
            "wrong": {"a": changed(ar, 0, (ar[0] + 1) % VOCAB), "b": changed(ar, at, baseline)},
        },
    )  # fmt: skip
    assert {label: counts["verdict"] for label, counts in graded.items()} == {
        "same": "exact", "flips": "numeric-tie", "wrong": "lossy",
    }  # fmt: skip
    assert graded["same"]["noise_floor"] is None
    assert graded["flips"]["noise_floor"] is not None
    assert [d["prompt"] for d in graded["wrong"]["divergences"]] == ["a", "b"]
    assert engine.alloc() == 0  # every slot was given back
    engine.free(0)


def test_for_another_engine_the_noise_is_that_of_transformers_own_forward_too(plain: tuple[Engine, list[int]]) -> None:
    engine, ar = plain
    ours, theirs = grader(engine, ar), Grader(engine, ROWS, elsewhere=True)
    theirs.sample(PROMPT, ar)
    assert theirs.noise.largest >= ours.noise.largest
    assert 0 < theirs.noise.largest < 1e-3, "the same weights in float32, added up in another order"
    assert engine.model.config._attn_implementation != engine.code.native_attention, "it is given back"


def test_in_low_precision_another_engines_rounding_is_noise_though_ours_makes_none() -> None:
    """Our own layers add up in one order, whatever the rows: by them no flip of another engine would be a tie."""
    with models.attached(untied().to(torch.bfloat16), capacity=64, max_rows=ROWS) as engine:
        ar = models.autoregressive(engine, PROMPT, 24)
        ours, theirs = grader(engine, ar), Grader(engine, ROWS, elsewhere=True)
        theirs.sample(PROMPT, ar)
        assert theirs.noise.largest > max(ours.noise.largest, 1e-3)
