"""Jacobi trajectories: what the decoder goes through, up to what AR writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.decoders import loaded
from support.models import answered, attached, autoregressive, replayed, tiny_llama, written

from specbench.common.prompt import Prompt
from specbench.engine.sampler import Sampling
from specbench.models.loaded_model import LoadedModel
from specbench.training.data.collection import Collecting, collect
from specbench.training.data.jacobi_states import Blocks, Jacobi, Run
from specbench.training.data.trajectory_folder import Trajectory, read
from specbench.training.recipe import Text

VOCAB, N = 128, 5
LENGTHS = [(7, 23), (3, 5), (12, 1), (30, 40), (4, 6), (9, 10)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(tiny_llama(VOCAB))


@pytest.fixture(scope="module")
def texts(model: LoadedModel) -> list[Text]:
    return answered(model, LENGTHS)


def run(
    model: LoadedModel, texts: Sequence[Text], rows: int = 30, n: int = N, sampling: Sampling | None = None
) -> dict[str, Run]:
    blocks = [Blocks(text, n, "uniform", VOCAB, 0, 0) for text in texts]
    with closing(Jacobi(model, sampling or Sampling(), texts, rows)) as jacobi:
        found = {each.blocks.text.id: each for each in jacobi.run(blocks)}
    assert found.keys() == {text.id for text in texts}
    return found


def trajectory(found: Run) -> Trajectory:
    text = found.blocks.text
    states = [states for states in found.states if states is not None]
    assert len(states) == len(found.states)
    return Trajectory(text.id, text.prompt, text.answer, found.blocks.size, 0, states)


def test_the_decoder_goes_through_the_same_states(model: LoadedModel, texts: list[Text]) -> None:
    for n in (1, 2, 5, 16, 64):
        found = run(model, texts, n=n)
        with attached(model.model, capacity=140, max_rows=64) as engine:
            for each in found.values():
                assert replayed(engine, trajectory(each)) == each.states
                assert [token for states in each.states for token in (states or [[]])[-1]] == each.blocks.text.answer


def test_so_it_does_for_sampled_answers(model: LoadedModel) -> None:
    sampling = Sampling(temperature=1.0, seed=4)
    texts = answered(model, LENGTHS, sampling=sampling)
    assert texts != answered(model, LENGTHS)
    found = run(model, texts, sampling=sampling)
    assert not any(each.ties for each in found.values())
    with attached(model.model, capacity=140, max_rows=64, sampling=sampling) as engine:
        for each in found.values():
            assert replayed(engine, trajectory(each)) == each.states


def test_the_initial_state_is_kept(model: LoadedModel, texts: list[Text]) -> None:
    for each in run(model, texts).values():
        for block, states in enumerate(each.states):
            assert states is not None
            assert states[0] == each.blocks.initial(block)
            assert len(states[0]) == 1 or states[0] != states[-1]
            assert len({id(state) for state in states}) == len(states)
            assert {state[0] for state in states} == {each.blocks.fixed(block)[0]}


def test_what_shares_a_forward_changes_nothing(model: LoadedModel, texts: list[Text]) -> None:
    expected = {name: each.states for name, each in run(model, texts).items()}
    for rows in (1, 8, 1000):
        assert {name: each.states for name, each in run(model, texts[::-1], rows).items()} == expected


def test_an_answer_that_is_not_the_targets_loses_the_blocks_where_it_is_not(model: LoadedModel) -> None:
    # As a numeric tie would have it: place 7 holds another token, and the target's own follow it.
    (text,) = answered(model, [(7, 8)])
    before = [*text.answer[:7], (text.answer[7] + 1) % VOCAB]
    with attached(model.model, capacity=60, max_rows=8) as engine:
        rest = autoregressive(engine, [*text.prompt, *before], 12)
    given = Text("a", text.prompt, [*before, *rest])
    found = run(model, [given])["a"]
    assert found.ties == [7]
    assert [states is None for states in found.states] == [False, True, False, False]
    # The first token of a block is given to it, whatever the target says before it.
    shifted = Text("a", [*given.prompt, *given.answer[:2]], given.answer[2:])
    found = run(model, [shifted])["a"]
    assert found.ties == [5]
    assert None not in found.states


@pytest.mark.slow  # of 40 forwards
def test_smollm2_goes_through_the_same_states(smollm2: LoadedModel, tmp_path: Path) -> None:
    asked = [smollm2.encode(Prompt("p", text, True)) for text in ("What is 3 + 4?", "Name two colours.")]
    with attached(smollm2.model, capacity=80, max_rows=8) as engine:
        texts = [Text(f"set/{at}", ids, autoregressive(engine, ids, 18)) for at, ids in enumerate(asked)]
        engine.detach()
        found = collect(smollm2, texts, Sampling(), Collecting(block_size=8, keep_circles=0), tmp_path, rows=64)
        engine.attach()
        assert (found["answers"], found["blocks_dropped_tie"]) == (2, 0)
        made = list(read(tmp_path, model=smollm2.spec.fingerprint, block_size=8))
        for each, text in zip(made, texts, strict=True):
            assert (each.id, each.prompt, each.answer) == (text.id, text.prompt, text.answer)
            assert replayed(engine, each) == written(each)
            assert [token for states in written(each) for token in states[-1]] == each.answer
            assert all(states[0] != states[-1] for states in written(each) if len(states[0]) > 1)
