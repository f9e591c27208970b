"""The option ``stop``: when a row drafts, what that costs at worst, and that texts stay AR's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support import decoders, models

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding import DRAFTED
from specbench.engine import Sampling, graphs
from specbench.planning.methods import plan_methods
from specbench.runner import loop
from specbench.runner.checked_decoder import CheckedDecoder
from specbench.runner.governor import Governor
from specbench.runner.record import Request
from specbench.runner.session import Kernels, Session
from specbench.runner.stop import StopRule

Cost = Callable[[int, bool], tuple[float, float]]  # (step, drafts) -> tokens per request, seconds


def play(cost: Cost, steps: int, active: int = 4) -> tuple[float, list[bool]]:
    """Tokens per second and request, and which steps drafted."""
    governor, seconds, tokens = Governor(), 0.0, 0.0
    drafted: list[bool] = []
    for step in range(steps):
        drafts = governor.drafts(active)
        some, taken = cost(step, drafts)
        governor.saw(active, drafts, round(some * active), taken)
        seconds, tokens = seconds + taken, tokens + some
        drafted.append(drafts)
    return tokens / seconds, drafted


def costs(accepted: float, slower: float, noise: float = 0.0, seed: int = 0) -> Cost:
    """Steps of a plain time of 1 with this much noise; a drafting step is ``slower`` and emits 1 + ``accepted``."""
    rng = random.Random(seed)

    def cost(step: int, drafts: bool) -> tuple[float, float]:
        taken = (slower if drafts else 1.0) * (1 + abs(rng.gauss(0, noise)))
        return (1 + accepted if drafts else 1.0), taken

    return cost


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(("accepted", "slower"), [(0.5, 2.5), (0.0, 1.5), (1.0, 4.0), (0.25, 1.3)])
def test_where_drafting_loses_a_row_is_hardly_slower_than_plain_steps(
    accepted: float, slower: float, noise: float
) -> None:
    plain = 1 / (1 + noise * 0.8)  # mean of the noise
    speed, drafted = play(costs(accepted, slower, noise), 2000)
    assert speed > 0.97 * plain
    assert sum(drafted) < 100


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(("accepted", "slower"), [(1.5, 1.5), (1.0, 1.2), (3.0, 2.0)])
def test_where_drafting_wins_a_row_hardly_stops(accepted: float, slower: float, noise: float) -> None:
    always = (1 + accepted) / slower / (1 + noise * 0.8)
    speed, drafted = play(costs(accepted, slower, noise), 2000)
    assert speed > 0.97 * always
    assert sum(drafted) > 1900


def test_it_notices_that_text_became_easier_or_harder() -> None:
    easy, hard = costs(2.0, 1.5), costs(0.1, 1.5)
    _, drafted = play(lambda step, drafts: (easy if 300 <= step < 900 else hard)(step, drafts), 1500)
    assert sum(drafted[100:300]) < 20
    assert all(drafted[830:880])  # at the latest after the longest wait and a probe
    assert sum(drafted[950:1200]) < 40


def test_each_load_has_a_choice_of_its_own() -> None:
    governor = Governor()

    def run(active: int, slower: float) -> list[bool]:
        found = []
        for _ in range(100):
            drafts = governor.drafts(active)
            governor.saw(active, drafts, 2 * active if drafts else active, slower if drafts else 1.0)
            found.append(drafts)
        return found[20:]

    assert sum(run(1, 1.2)) > 70
    assert sum(run(8, 3.0)) < 12
    assert sum(run(1, 1.2)) > 70
    assert governor.drafts(7) == governor.drafts(8)


def test_a_step_that_also_reads_missed_text_is_not_timed() -> None:
    governor = Governor()
    was = True
    for _ in range(200):
        drafts = governor.drafts(1)
        resumed = drafts and not was
        governor.saw(1, drafts, 3 if drafts else 1, 50.0 if resumed else 1.2 if drafts else 1.0)
        was = drafts
    assert governor.drafts(1)


# ------------------------------------------------------------------ in a run

VOCAB = 61
SMALL = {
    "jetspec": "head=random budget=8 width=4",
    "eagle3": "head=random budget=8 depth=3 width=2",
    "suffix": "",
    "recycling": "budget=8",
    "sps": "draft=config:tiny draft_tokens=3",
}


class Scripted(Governor):
    """Drafts in random steps, for stops and resumptions of every length."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = random.Random(0)

    def drafts(self, active: int) -> bool:
        return self._rng.random() < 0.4


# Sampled steps are not recorded: on a CPU the noise of a position is made on the host. Each method takes one way, in
# turn; the others are slow.
@pytest.mark.parametrize(
    ("name", "sampling", "captured"),
    [
        pytest.param(name, *way, id=f"{name}-{how}", marks=[pytest.mark.slow] * ((at + turn) % 3 > 0))
        for at, name in enumerate(SMALL)
        for turn, (how, *way) in enumerate(
            [("greedy", Sampling(), False), ("captured", Sampling(), True), ("sampled", Sampling(1.0, seed=5), False)]
        )
    ],
)
def test_texts_and_drafts_are_those_of_a_row_that_never_stops(
    name: str, captured: bool, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts after a stop are those that would have been made without it: nothing of the text is missing."""
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    monkeypatch.setattr(loop, "Governor", Scripted)
    text = dict[Any, list[int]]()
    model = decoders.loaded(models.tiny_llama(VOCAB).double(), name="config:tiny")
    draft = decoders.loaded(models.tiny_llama(VOCAB, seed=0).double())
    settings = [f"{row}.{each}" for row in (name, f"{name}#2") for each in SMALL[name].split()]
    methods = plan_methods([name, name], [*settings, f"{name}#2.stop=true"])
    rule = StopRule(frozenset(), (), 60, str)
    requests = [Request(str(n), 0, models.prompt(5 + 6 * n, VOCAB, n), rule) for n in range(4)]
    draw, see, begin = (getattr(CheckedDecoder, each) for each in ("draft", "observe", "begin"))

    def watched(self: CheckedDecoder, root: int) -> Any:
        tree = draw(self, root)
        compared.append((tuple(text[self]), tree))
        return tree

    def seen(self: CheckedDecoder, result: Any) -> None:
        see(self, result)
        text[self] += result.emitted

    def begun(self: CheckedDecoder, ids: Any) -> Any:
        text[self] = [*ids]
        return begin(self, ids)

    for what, work in (("draft", watched), ("observe", seen), ("begin", begun)):
        monkeypatch.setattr(CheckedDecoder, what, work)
    found = []
    with Session(
        model, methods, sampling, capacity=110, slots=3, kernels=Kernels(graphs=captured or None),
        drafts=lambda _: draft,
    ) as session:  # fmt: skip
        for method in session.methods:
            compared: list[tuple[tuple[int, ...], Any]] = []
            records = sorted(session.decode(method, requests, together=3), key=lambda record: record.prompt_id)
            found.append((records, dict(compared)))
    (base, _), (always, drawn), (stopping, again) = found
    assert [each.output_ids for each in stopping] == [each.output_ids for each in base]
    assert [each.output_ids for each in always] == [each.output_ids for each in base]
    shares = [each.measures[DRAFTED] for each in stopping]
    assert all(0 < share < 1 for share in shares)
    both = drawn.keys() & again.keys()
    assert len(both) > 10
    if name != "recycling":  # its drafts come from the rows of all forwards, of which a plain step has fewer
        assert all(drawn[text] == again[text] for text in both)
    for record in stopping:
        assert sum(record.accepted_lengths) + 1 == len(record.output_ids)
        assert {branch.step for branch in record.branches or ()} <= {*range(record.target_forwards)}
