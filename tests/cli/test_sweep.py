"""``sweep`` on dummy weights: its files, its table, what it refuses, and that killing it changes no count."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import asserting, runs
from support.wording import wording

from specbench.sweeps import worker

TINY = ("--model", "config:tiny", "--max-new-tokens", 8)
CELLS = ["jacobi n=2", "jacobi n=4", "jacobi n=8"]
GRID = ("--method", "jacobi", "--grid", "n=2,4,8")
COUNTS = [
    "cell", "label", "method", "concurrency", "set", "prompts", "requests", "tokens", "target_forwards",
    "tokens_per_forward", "rows_per_step", "stopped",
]  # fmt: skip


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """A file of ten prompts, three of them with two turns, as arguments."""
    return ("--task", "prompts", "--data-file", written(tmp_path_factory.mktemp("data") / "mine.jsonl", 10))


def written(path: Path, count: int) -> Path:
    rows = [
        {"turns": [f"Name {at} colours.", "And another."]} if at % 4 == 1 else {"prompt": f"Once upon a time, {at} men"}
        for at in range(count)
    ]
    path.write_text("".join(f"{json.dumps({'id': f'q{at}', **row})}\n" for at, row in enumerate(rows)))
    return path


def lines(folder: Path, concurrency: int = 1) -> list[dict[str, Any]]:
    return runs.requests_on_disk(folder / f"c{concurrency}")


def only(out: Path) -> Path:
    (folder,) = out.glob("[!.]*")
    return folder


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "cells.csv", keep_default_na=True)


def test_a_sweep_end_to_end(cli: Any, tmp_path: Path, prompts: Any) -> None:
    result = cli.ok("sweep", *TINY, *prompts, *GRID, "--limit", 7, "--held-out", 3, "--out", tmp_path, columns=140)
    folder = only(tmp_path)
    assert {path.name for path in folder.iterdir()} >= {"sweep.json", "cells.csv", "c1"}
    assert wording.sentences(result.err)
    assert result.out.splitlines()[-1] == f"sweep: {folder}"
    assert wording.sentences(result.out)

    cells = table(folder)
    assert list(cells.columns[:6]) == ["cell", "label", "method", "block_size", "concurrency", "set"]
    assert {*cells.columns} >= {*COUNTS, "decode_tok_s", "speedup", "speedup_low", "speedup_high", "step_ms", "best"}
    tuning = cells[cells["set"] == "tuning"]
    assert list(tuning["label"]) == ["ar", *CELLS]
    assert list(tuning["block_size"])[1:] == [2, 4, 8]
    assert (tuning["prompts"] == 7).all()
    assert tuning["requests"].nunique() == 1
    assert (tuning["tokens_per_forward"].iloc[0], tuning["rows_per_step"].iloc[0]) == (1, 1)
    assert ((tuning["rows_per_step"] > 1) & (tuning["rows_per_step"] <= tuning["block_size"]))[1:].all()
    assert (tuning["speedup_low"][1:] <= tuning["speedup"][1:]).all()
    assert (tuning["speedup"][1:] <= tuning["speedup_high"][1:]).all()
    assert (folder / "contour-jacobi-block_size.png").read_bytes().startswith(b"\x89PNG")
    (best,) = tuning[tuning["best"]]["label"]
    assert list(cells[cells["set"] == "held-out"]["label"]) == ["ar", best]
    assert tuning.set_index("label")["speedup"][1:].idxmax() == best

    found = lines(folder)
    head = json.loads((folder / "sweep.json").read_text())
    assert not set(head["tuning"]) & set(head["held_out"])
    assert {line["prompt_id"] for line in found} == {*head["tuning"], *head["held_out"]}
    assert len({line["segment"] for line in found}) == len(found)
    by_key = {line["request_id"]: line["output_ids"] for line in found}
    for key, ids in by_key.items():
        label, _, rest = key.partition("|")
        assert ids == by_key[f"ar|{rest}"], f"{label} is not lossless on {rest}"
    assert all(row["lossless"] for row in runs.rows_on_disk(folder / "c1").values())

    shown = cli("show", folder, columns=140)
    assert (shown.code, shown.out) == (0, result.out)
    reported = cli("show", folder, "--json")
    again = cli("sweep", *TINY, *prompts, *GRID, "--limit", 7, "--held-out", 3, "--out", tmp_path, "--json")
    assert reported.code == again.code == 0, again.err
    assert json.loads(reported.out) == json.loads(again.out)
    document = json.loads(reported.out)
    assert document["folder"] == str(folder)
    assert document["sweep"] == head
    assert [cell["label"] for cell in document["cells"]] == list(cells["label"])
    assert document["cells"][0]["speedup"] is None
    assert lines(folder) == found


def test_halving_on_two_concurrencies_with_a_cell_that_is_too_large(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine of 8 GiB: two trees of 33,217 rows would take twice that for their masks alone.
    monkeypatch.setattr("specbench.planning.memory_check._memory", lambda plan: (8.0 * 2**30, 8.0 * 2**30))
    prompts = ("--task", "prompts", "--data-file", written(tmp_path / "mine.jsonl", 16))
    result = cli.ok(
        "sweep", *TINY, *prompts, "--method", "jf", "--grid", "n=2,4,8,512", "--grid", "concurrency=1,2",
        "--set", "jf.pool=64", "--no-score", "--max-new-tokens", 4, "--search", "halving", "--limit", 12,
        "--held-out", 2, "--out", tmp_path / "out", columns=100,
    )  # fmt: skip
    assert result.out.count("too large: jf n=512.") == 2
    assert result.out.index("Concurrency 1") < result.out.index("Concurrency 2")
    cells = table(only(tmp_path / "out"))
    for count in (1, 2):
        at = cells[(cells["concurrency"] == count) & (cells["set"] == "tuning")]
        # Twelve blocks are what halving takes to drop a cell: 12 prompts one by one, but 96 two by two.
        assert sorted(at["prompts"].dropna()) == ([6, 12, 12, 12] if count == 1 else [12] * 4)
        assert Counter(at["stopped"].dropna()) == ({"halved": 1, "too large": 1} if count == 1 else {"too large": 1})
        assert len(cells[(cells["concurrency"] == count) & (cells["set"] == "held-out")]) == 2
    ids = [
        {line["request_id"]: line["output_ids"] for line in lines(only(tmp_path / "out"), count)} for count in (1, 2)
    ]
    both = ids[0].keys() & ids[1].keys()
    assert sum(key.startswith("ar|") for key in both) >= 10
    assert all(ids[0][key] == ids[1][key] for key in both)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["--method", "jf"], id="no grid"),
        pytest.param([*GRID, "--search", "halfing"], id="search"),
        pytest.param([*GRID, "--executor", "lokal"], id="executor"),
        pytest.param([*GRID, "--until-ci", "two"], id="share"),
        pytest.param([*GRID, "--task", "gsm8k,mbbp"], id="two tasks"),
        pytest.param([*GRID, "--workers", "1000"], id="too many workers"),
        pytest.param([*GRID, "--simulate-acceptance", "3"], id="simulated beyond a cell"),
    ],
)
def test_refused_before_a_model_is_loaded(cli: Any, tmp_path: Path, monkeypatch: Any, argv: list[str]) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(worker, "load_models", load)
    result = cli("sweep", "--model", "config:tiny", *argv, "--out", tmp_path / "out")
    assert wording(result.error)
    assert result.code == (1 if "--workers" in argv else 2)
    assert result.out == ""
    assert not (tmp_path / "out").exists()


def test_held_out_prompts_stay_when_the_limit_grows_and_others_are_another_sweep(
    cli: Any, tmp_path: Path, prompts: Any
) -> None:
    only_drawn = ("--model", "config:tiny", "--max-new-tokens", 1, "--no-score")
    command = ("sweep", *only_drawn, *prompts, "--method", "jacobi", "--grid", "n=2", "--held-out", 2)
    heads = []
    asked = ("--limit 3", "--limit 5", "--limit 3 --prompt-seed 1", "--limit 3 --seed 1", "--limit 3 --first")
    for at, more in enumerate(map(str.split, asked)):
        result = cli.ok(*command, *more, "--out", tmp_path)
        assert "are done already" not in result.err
        assert len([*tmp_path.glob("[!.]*")]) == at + 1, "a folder of its own"
        heads.append(json.loads((Path(result.out.splitlines()[-1].removeprefix("sweep: ")) / "sweep.json").read_text()))
    three, five, other, sampled, first = heads
    assert five["held_out"] == three["held_out"]
    assert five["tuning"][:3] == three["tuning"]
    assert not {*five["tuning"]} & {*five["held_out"]}
    assert other["tuning"] != three["tuning"]
    assert (sampled["tuning"], sampled["held_out"]) == (three["tuning"], three["held_out"]), "the seed of sampling"
    assert (first["tuning"], first["held_out"]) == (["q0", "q1", "q2"], ["q9", "q8"])

    assert cli("run", *TINY, *prompts, "--method", "ar", "--limit", 3, "--out", tmp_path / "run").code == 0
    found = (only(tmp_path / "run") / "requests.jsonl").read_text().splitlines()
    assert {json.loads(line)["prompt_id"] for line in found} == {*three["tuning"]}


def test_a_killed_sweep_ends_with_the_counts_of_an_unbroken_one(cli: Any, tmp_path: Path, prompts: Any) -> None:
    command = (
        "sweep", "--model", "config:tiny", "--max-new-tokens", 8, *prompts, "--limit", 5, *GRID, "--temperature", 0.7,
        "--seed", 3, "--no-score",
    )  # fmt: skip
    unbroken, out = tmp_path / "unbroken", tmp_path / "out"
    assert cli(*command, "--out", unbroken).code == 0
    total = len(lines(only(unbroken)))
    assert total >= 4 * 5

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    requests = rng.randrange(total - 10)  # with time left to be killed in
    asserting.killed(
        tmp_path / "output", *command, "--out", out,
        when=lambda: any(len(lines(folder)) >= requests for folder in out.glob("[!.]*")),
        delay=rng.uniform(0, 0.03),
    )  # fmt: skip
    kept = len(lines(only(out)))
    assert not (only(out) / "c1" / "DONE").exists()
    reported = f"seed {seed}: killed with {kept} of {total} requests on disk"
    assert cli("show", only(out)).code == 0 or not kept, reported  # it may have died before there was a run

    last = cli(*command, "--out", out)
    assert last.code == 0, reported
    assert f"{kept}" in last.err
    assert len(lines(only(out))) == total, reported
    assert (only(out) / "c1" / "DONE").exists(), reported
    pd.testing.assert_frame_equal(table(only(out))[COUNTS], table(only(unbroken))[COUNTS], obj=reported)
    answers = [
        {line["request_id"]: (line["output_ids"], line["accepted_lengths"]) for line in lines(only(path))}
        for path in (out, unbroken)
    ]
    assert answers[0] == answers[1], reported


def test_verdicts_that_a_finished_sweep_was_without(cli: Any, tmp_path: Path) -> None:
    command = ("sweep", *TINY, "--method", "jacobi", "--grid", "n=2", "--limit", 1, "--out", tmp_path)
    found = []
    for more in (["--no-score"], []):
        cli.ok(*command, *more)
        found.append(runs.summary_on_disk(only(tmp_path) / "c1"))
    assert [[row["accuracy"] is None for row in each["rows"]] for each in found] == [[True, True], [False, False]]
    assert found[0]["sweep"] == found[1]["sweep"], "what the sweep found stays"
