"""Which cell decodes which prompts: the rounds of a grid, of halving, and of cells that stop at an interval."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from support.asserting import known
from support.runs import record

from specbench.analysis.blocks import FILLINGS, blocks_of
from specbench.analysis.stats import minimum_clusters
from specbench.sweeps.measured import Measured
from specbench.sweeps.search import LOOK_EVERY, Round, Search

CELLS = [f"toy n={2**at}" for at in range(1, 9)]
PROMPTS = [f"p{at:02d}" for at in range(24)]
HELD = [f"h{at}" for at in range(5)]

Cost = Callable[[str, str], float]  # (label, prompt) -> seconds


def run(search: Search, cost: Cost, measured: Measured | None = None, most: int = 10**6) -> list[Round]:
    """Walks the rounds; what is decoded costs as ``cost`` says, and plain decoding a second."""
    made = measured or Measured(shared=False)
    rounds = []
    for step in search.rounds(made):
        rounds.append(step)
        for block in step.blocks:
            for prompt in block:
                for label in step.labels:
                    made.add(record(label, prompt, decode_s=1.0 if label == "ar" else cost(label, prompt)))
        if len(rounds) == most:
            break
    return rounds


def decoded(rounds: Sequence[Round]) -> Counter[tuple[str, str]]:
    return Counter(
        (label, prompt) for step in rounds for label in step.labels for block in step.blocks for prompt in block
    )


def by_size(label: str, prompt: str) -> float:
    """The fifth cell is the fastest, the further from it the slower."""
    return 0.2 + 0.1 * abs(CELLS.index(label) - 4)


def test_a_grid_is_one_round_of_all_cells_on_all_prompts_in_blocks() -> None:
    search = Search(CELLS, PROMPTS)
    (only,) = run(search, by_size)
    assert only.labels == ("ar", *CELLS)
    assert only.blocks == tuple((prompt,) for prompt in PROMPTS)
    assert search.stopped == {}
    (only,) = run(Search(CELLS, PROMPTS, concurrency=2), by_size)
    assert [len(block) for block in only.blocks] == [8, 8, 8]
    assert [prompt for block in only.blocks for prompt in block] == PROMPTS
    search = Search(CELLS, PROMPTS)
    assert search.best(Measured(shared=False)) is None
    assert search.found(Measured(shared=False)).as_good == ()


@pytest.mark.parametrize("kind", ["grid", "halving"])
def test_held_out_prompts_are_decoded_by_the_best_cell_alone_and_choose_nothing(kind: str) -> None:
    # On the held-out prompts another cell would be best by far.
    def cost(label: str, prompt: str) -> float:
        return by_size(label, prompt) if prompt in PROMPTS else 0.01 * (1 + CELLS.index(label))

    measured = Measured(shared=False)
    search = Search(CELLS, PROMPTS, HELD, kind=kind)  # type: ignore[arg-type]
    *tuning, last = run(search, cost, measured)
    assert last.labels == ("ar", CELLS[4])
    assert [prompt for block in last.blocks for prompt in block] == HELD
    assert not {prompt for _, prompt in decoded(tuning)} & set(HELD)
    assert search.best(measured) == CELLS[4]


def test_halving_drops_the_slower_half_and_doubles_the_prompts() -> None:
    search = Search(CELLS, PROMPTS, kind="halving")
    rounds = run(search, by_size)
    #            8 cells on 6 prompts, 4 on 6 more, 2 on the last 12
    assert [len(step.labels) - 1 for step in rounds] == [8, 4, 2]
    ends = [0, 6, 12, 24]
    assert [[p for b in step.blocks for p in b] for step in rounds] == [PROMPTS[a:b] for a, b in pairwise(ends)]
    # Costs: .6 .5 .4 .3 .2 .3 .4 .5; of equal ones the earlier stays.
    assert set(rounds[1].labels) == {"ar", CELLS[3], CELLS[4], CELLS[5], CELLS[2]}
    assert set(rounds[2].labels) == {"ar", CELLS[4], CELLS[3]}
    assert search.stopped == dict.fromkeys([c for c in CELLS if c not in CELLS[3:5]], "halved")
    assert search.finalists() == CELLS[3:5]


@pytest.mark.parametrize(
    ("cells", "left"), [(1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (5, [5, 3, 2]), (6, [6, 3, 2]), (7, [7, 4, 2])]
)
def test_of_an_odd_number_of_cells_the_middle_one_stays(cells: int, left: list[int]) -> None:
    rounds = run(Search(CELLS[:cells], PROMPTS, kind="halving"), by_size)
    assert [len(step.labels) - 1 for step in rounds] == left


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@pytest.mark.parametrize("prompts", [1, 6, 11, 12, 23, 24, 100, 193, 384])
def test_no_cell_is_dropped_on_less_than_an_interval_takes(concurrency: int, prompts: int) -> None:
    names = [f"p{at:03d}" for at in range(prompts)]
    search = Search(CELLS, names, kind="halving", concurrency=concurrency)
    rounds = run(search, by_size)
    assert [prompt for step in rounds for block in step.blocks for prompt in block] == names
    if len(rounds) > 1:
        assert len(rounds[0].blocks) >= minimum_clusters()
        fewest = minimum_clusters() if concurrency == 1 else minimum_clusters() * FILLINGS * concurrency
        assert sum(map(len, rounds[0].blocks)) >= fewest
    assert (len(rounds) > 1) == (len(blocks_of(names, concurrency)) >= 2 * minimum_clusters())


def test_halving_ranks_on_the_prompts_so_far_and_on_no_others() -> None:
    def cost(label: str, prompt: str) -> float:  # the last cell is the best on the first rung and bad from there on
        return 0.1 if label == CELLS[7] and prompt in PROMPTS[:6] else 10.0 if label == CELLS[7] else by_size(label, "")

    full = Measured(shared=False)  # as an earlier command left it that decoded everything
    run(Search(CELLS, PROMPTS), cost, full)
    fresh, known = Search(CELLS, PROMPTS, kind="halving"), Search(CELLS, PROMPTS, kind="halving")
    first = run(fresh, cost)
    assert CELLS[7] in first[1].labels
    assert CELLS[7] not in first[2].labels
    assert [step.labels for step in known.rounds(full)] == [step.labels for step in first]
    assert known.stopped == fresh.stopped


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("prompts", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("kind", ["grid", "halving"])
@pytest.mark.parametrize("until", [None, 0.05])
def test_no_prompt_is_decoded_twice_and_the_last_cell_gets_them_all(
    cells: int, prompts: int, kind: str, until: float | None
) -> None:
    rng = random.Random(f"{cells}/{prompts}")
    search = Search(CELLS[:cells], PROMPTS[:prompts], HELD, kind=kind, until=until)  # type: ignore[arg-type]
    measured = Measured(shared=False)
    found = decoded(run(search, lambda label, prompt: rng.uniform(0.5, 1), measured))
    assert set(found.values()) == {1}
    best = known(search.best(measured))
    for label in CELLS[:cells]:
        mine = [prompt for prompt in PROMPTS if found[label, prompt]]
        assert mine == PROMPTS[: len(mine)], "the prompts are used in their order"
        assert len(mine) == prompts or label in search.stopped
    assert [prompt for prompt in HELD if found[best, prompt]] == HELD
    assert sum(prompt in HELD for _, prompt in found) == 2 * len(HELD)
    assert search.stopped.get(best) != "halved"


def noisy(label: str, prompt: str) -> float:
    """The larger the cell, the noisier; the smallest one has hardly any."""
    at = CELLS.index(label)
    return (0.5 + 0.02 * at) * random.Random(f"{label}/{prompt}").uniform(1 - 0.04 * at - 0.001, 1 + 0.04 * at + 0.001)


def lengths(rounds: Sequence[Round]) -> Mapping[str, int]:
    return Counter(label for label, _ in decoded(rounds))


def test_a_cell_stops_at_the_first_look_at_which_its_interval_is_narrow() -> None:
    search = Search(CELLS, PROMPTS, until=0.02)
    measured = Measured(shared=False)
    rounds = run(search, noisy, measured)
    found = lengths(rounds)
    assert set(search.stopped.values()) == {"interval"}
    assert found["ar"] == max(found[label] for label in CELLS)  # next to whatever runs, and no longer
    for label in CELLS:
        looks = range(LOOK_EVERY, len(PROMPTS) + 1, LOOK_EVERY)
        narrow = []
        for end in looks:
            ratio = known(measured.speedup(label, prompts=PROMPTS[: min(end, found[label])]))
            half = (ratio.interval.high - ratio.interval.low) / 2 if ratio.interval else float("inf")
            narrow.append(half <= 0.02 * ratio.value)
        end = looks[narrow.index(True)] if True in narrow else len(PROMPTS)
        assert found[label] == end
        assert (label in search.stopped) == (True in narrow)
    assert 8 == found[CELLS[0]] < found[CELLS[7]], "eight prompts are the first look at which there is an interval"


@pytest.mark.parametrize("kind", ["grid", "halving"])
@pytest.mark.parametrize("further", [1, 2, 3, 30])
def test_a_cell_stops_at_the_same_prompt_whatever_was_measured_further_on(kind: str, further: int) -> None:
    straight = Search(CELLS, PROMPTS, kind=kind, until=0.02)  # type: ignore[arg-type]
    expected = run(straight, noisy)
    # A command that was killed in the middle of a round with many workers, or one without --until-ci, has left records
    # of prompts that are not due yet.
    left = Measured(shared=False)
    for label in ["ar", *CELLS]:
        for prompt in PROMPTS[: LOOK_EVERY + further]:
            left.add(record(label, prompt, decode_s=1.0 if label == "ar" else noisy(label, prompt)))
    again = Search(CELLS, PROMPTS, kind=kind, until=0.02)  # type: ignore[arg-type]
    rounds = []
    known = {(label, prompt) for label in ["ar", *CELLS] for prompt in PROMPTS[: LOOK_EVERY + further]}
    for step in again.rounds(left):
        rounds.append(step)
        for label in step.labels:
            for prompt in [prompt for block in step.blocks for prompt in block]:
                if (label, prompt) not in known:
                    left.add(record(label, prompt, decode_s=1.0 if label == "ar" else noisy(label, prompt)))
    assert rounds == expected
    assert again.stopped == straight.stopped
