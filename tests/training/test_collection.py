"""Collecting: shards that do not depend on interruptions, filters that are counted, settings that do not mix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoders import loaded
from support.models import answered, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.engine.sampler import Sampling
from specbench.models.loaded_model import LoadedModel
from specbench.training.data.collection import Collecting, collect
from specbench.training.data.trajectory_folder import TIMES, Trajectory, hours, read, read_header, shard_path
from specbench.training.recipe import Text

HOW = Collecting(block_size=4, init="uniform", keep_circles=0, shard=2)
LENGTHS = [(7, 10), (3, 5), (12, 1), (5, 9), (4, 6)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(tiny_llama(128))


@pytest.fixture(scope="module")
def texts(model: LoadedModel) -> list[Text]:
    return answered(model, LENGTHS)


def collected(
    model: LoadedModel, texts: list[Text], folder: Path, how: Collecting = HOW, **more: Any
) -> dict[str, Any]:
    return collect(model, texts, Sampling(), how, folder, **{"rows": 32, **more})


def kept(folder: Path) -> list[Trajectory]:
    return list(read(folder))


def test_every_answer_is_kept_in_blocks(model: LoadedModel, texts: list[Text], tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    found = collected(model, texts, tmp_path, progress=lambda *at: calls.append(at))
    assert calls == [(0, 5), (2, 5), (4, 5), (5, 5)]
    made = kept(tmp_path)
    assert [(each.id, each.prompt, each.answer) for each in made] == [(t.id, t.prompt, t.answer) for t in texts]
    for each in made:
        for block, states in enumerate(each.blocks):
            right = each.answer[4 * block : 4 * block + 4]
            assert states[-1] == [*right, *[model.pad_id] * (4 - len(right))]
            for state in states:
                assert state[len(right) :] == states[-1][len(right) :]
                assert state[0] == right[0]
    blocks = [states for each in made for states in each.blocks]
    assert (found["answers"], found["tokens"], found["blocks"]) == (5, 31, len(blocks))
    assert found["states"] == sum(map(len, blocks))
    assert found["states_per_block"] == found["states"] / len(blocks)
    assert 4 / 3 <= found["fast_forwarded"] <= 4
    assert read_header(tmp_path).settings["sampling"]["temperature"] == 0


def test_killed_and_resumed_it_leaves_the_same(model: LoadedModel, texts: list[Text], tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        collected(model, texts, tmp_path / "cut", progress=kill)
    assert [shard_path(tmp_path / "cut", number).exists() for number in range(3)] == [True, True, False]
    with pytest.raises(UsageError, check=wording):
        read(tmp_path / "cut")
    shard_path(tmp_path / "cut", 0).unlink()
    resumed = collected(model, texts, tmp_path / "cut")
    assert resumed == collected(model, texts, tmp_path / "whole")
    lines = (tmp_path / "cut" / TIMES).read_text().splitlines()
    assert [json.loads(line)["shard"] for line in lines] == [0, 1, 0, 2]
    assert hours(tmp_path / "cut") == pytest.approx(sum(json.loads(line)["seconds"] for line in lines) / 3600)
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == files
    for name in files:
        if name == TIMES:
            continue
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_other_settings_are_refused(model: LoadedModel, texts: list[Text], tmp_path: Path) -> None:
    collected(model, texts[:4], tmp_path)
    others: Any = ({"block_size": 8}, {"seed": 1}, {"init": "pad", "shard": 3})
    for other in others:
        with pytest.raises(UsageError, check=wording):
            collected(model, texts[:4], tmp_path, replace(HOW, **other))
    with pytest.raises(UsageError, check=wording):
        collected(model, texts[:3], tmp_path)
    with pytest.raises(UsageError, check=wording):
        collected(model, [], tmp_path)


def test_artificial_states_need_no_forward(
    model: LoadedModel, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("specbench.training.data.jacobi_states.next_tokens")
    found = collected(model, texts, tmp_path, replace(HOW, states="artificial"))
    lengths = [[len(states) for states in each.blocks] for each in kept(tmp_path)]
    assert lengths == [[4, 4, 2], [4, 1], [1], [4, 4, 1], [4, 2]]
    assert (found["fast_forwarded"], found["stationary"]) == (None, None)


def test_augmentation_leaves_first_tokens_and_the_last_two_states_alone(
    model: LoadedModel, texts: list[Text], tmp_path: Path
) -> None:
    collected(model, texts, tmp_path / "plain", replace(HOW, block_size=8))
    collected(model, texts, tmp_path / "more", replace(HOW, block_size=8, augment="cllm"))
    plain, more = kept(tmp_path / "plain"), kept(tmp_path / "more")
    assert plain != more
    for one, other in zip(plain, more, strict=True):
        for mine, theirs in zip(one.blocks, other.blocks, strict=True):
            assert mine[-2:] == theirs[-2:]
            assert [state[0] for state in mine] == [state[0] for state in theirs]


def test_what_repeats_itself_is_left_out_and_counted(model: LoadedModel, tmp_path: Path) -> None:
    circle = Text("circle", [1], [5, *[6, 7] * 6])
    run = Text("run", [1], [1, 2, 3, 4, 5, 5, 5, 5, 6, 7])
    early = Text("early", [1], [9, 9, 9, 9, 1, 2])
    how = replace(HOW, states="artificial", keep_circles=2, max_run=4)
    found = collected(model, [circle, run, early], tmp_path, how)
    assert [(each.id, each.answer) for each in kept(tmp_path)] == [("circle", [5, 6, 7, 6, 7]), ("run", [1, 2, 3, 4])]
    assert (found["circles_cut"], found["answers_dropped_run"], found["blocks_dropped_run"]) == (1, 1, 4)
    assert (found["answers"], found["blocks"]) == (2, 3)


def test_blocks_that_are_no_fixed_points_are_given_up_and_counted(model: LoadedModel, tmp_path: Path) -> None:
    (text,) = answered(model, [(6, 4)])
    wrong = Text("set/0", text.prompt, [*text.answer[:3], (text.answer[3] + 1) % 128])
    found = collected(model, [wrong], tmp_path)
    assert (found["blocks"], found["blocks_dropped_tie"], found["ties"], found["states"]) == (0, 1, 1, 0)
    (only,) = kept(tmp_path)
    assert only.blocks == [[wrong.answer]]
