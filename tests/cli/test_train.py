"""``specbench train``: from prompts to a head that ``run`` takes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import runs
from support.wording import wording

from specbench.common.files import sole_use
from specbench.training import running

SMALL = ("--set", "layers=1", "--set", "block_size=4", "--set", "steps=2", "--set", "batch=2", "--set", "bf16=false")


def train(cli: Any, prompts: Path, out: Path, *more: Any) -> Any:
    base = ("train", "jetspec", "--model", "config:tiny", "--prompts", prompts, "--out", out, *SMALL)
    return cli(*base, "--held-out", 2, "--max-new-tokens", 12, *more)


def exact(run: Path, method: str) -> bool:
    """Whether a method's row is graded so; that AR's is says nothing."""
    return bool(runs.rows_on_disk(run)[method]["lossless"]["verdict"] == "exact")


def test_what_comes_of_it_drafts(cli: Any, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained"
    result = train(cli, prompts, out, "--limit", 5)
    assert result.code == 0, result.err
    assert "5/5 answers" in result.err
    card = json.loads((out / "card.json").read_text())
    assert (card["method"], card["texts"], card["held_out_texts"], card["steps"]) == ("jetspec", 3, 2, 2)
    assert card["options"]["block_size"] == 4
    asked = ("--task", "prompts", "--data-file", prompts, "--max-new-tokens", 8)
    made = cli.made(
        tmp_path / "runs", "run", "--model", "config:tiny", "--method", "jetspec", "--head", out / "head", *asked
    )
    assert exact(made, "jetspec")
    for columns in (80, 140):
        lines = cli.ok("show", made, columns=columns).out.splitlines()
        assert max(len(line) for line in lines if not line.startswith("Next: ")) <= columns


def test_the_options_of_a_training_are_listed(cli: Any) -> None:
    rows = json.loads(cli.ok("list", "jetspec", "--training", "--json").out)
    defaults = {row["option"]: row["default"] for row in rows}
    assert {"layers", "block_size", "steps", "batch", "bf16"} <= defaults.keys()
    assert all(row["what it is"] for row in rows)
    assert cli("list", "pld", "--training").code == 2, "it has no recipe"


def test_prompts_that_are_all_held_out_are_not_decoded(cli: Any, prompts: Path, tmp_path: Path) -> None:
    result = train(cli, prompts, tmp_path / "trained", "--limit", 2)
    assert result.code == 2
    assert wording(result.err)


def test_a_finished_training_takes_no_further_step(cli: Any, prompts: Path, tmp_path: Path) -> None:
    """Also where it ends within a visit to its texts: two steps of these are one."""
    out, found = tmp_path / "trained", []
    three = ["steps=3" if part == "steps=2" else part for part in SMALL]
    base = ("train", "jetspec", "--model", "config:tiny", "--prompts", prompts, "--out", out, *three)
    for _ in range(3):
        result = cli(*base, "--held-out", 2, "--max-new-tokens", 12, "--limit", 5)
        assert result.code == 0, result.err
        found.append((out / "head" / "model.safetensors").read_bytes())
        card = json.loads((out / "card.json").read_text())
        assert (card["steps"], card["options"]["steps"]) == (3, 3)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("row", [{"prompt": "x", "answer": "y"}, {"instruction": "x", "output": "y"}])
def test_answers_in_a_file_of_prompts_are_not_passed_over(row: dict[str, str], cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(row) + "\n")
    result = train(cli, file, tmp_path / "out")
    assert result.code == 2
    assert f"{file}" in result.error
    assert "loading" not in result.err


def test_two_calls_never_train_in_one_folder(cli: Any, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained"
    out.mkdir()
    with sole_use(out):
        result = train(cli, prompts, out)
        other = cli("train", "--collect", "--model", "config:tiny", "--prompts", prompts, "--out", out)
    assert (result.code, other.code) == (3, 3)
    assert result.error == other.error
    assert f"{out}" in result.error
    assert not any(out.iterdir())


def test_an_adapter_learnt_from_trajectories_is_a_model(cli: Any, prompts: Path, tmp_path: Path) -> None:
    states = ("train", "--collect", "--model", "config:tiny", "--prompts", prompts, "--out", tmp_path / "t")
    cli.ok(*states, "--max-new-tokens", 12, "--block-size", 4)
    small = ("--set", "steps=2", "--set", "lora_rank=2", "--set", "lr=0.1", "--set", "warmup=0", "--set", "bf16=false")
    learnt = ("--trajectories", tmp_path / "t", "--held-out", 2, *small)
    result = cli.ok("train", "jf", "--model", "config:tiny", *learnt, "--out", tmp_path / "jf", "--set", "log_every=1")
    for words in ("held out before training, all 2: ", "step 1/2  loss ", "tok/s", "held out, all 2: "):
        assert words in result.err
    adapter = tmp_path / "jf" / "adapter"
    card = json.loads((adapter / "card.json").read_text())
    assert (card["prompts"], card["trajectories"]["block_size"]) == (["mine"], 4)
    assert card["decoding"] == {"preset": "vanilla", "block_size": 4}
    asked = ("--task", "prompts", "--data-file", prompts, "--max-new-tokens", 8, "--limit", 2)
    made = cli.made(tmp_path / "runs", "run", "--model", adapter, "--method", "jf", *asked)
    assert exact(made, "jf")
    model = runs.config_on_disk(made)["model"]
    assert (model["name"], model["base"]) == ("adapter", "config:tiny")
    other = cli.refused(2, "train", "jf", "--model", "smollm2-135m", *learnt, "--out", tmp_path / "other")
    assert wording(other)


def test_given_answers_are_learnt_and_card_and_readme_say_whose_they_are(cli: Any, tmp_path: Path) -> None:
    file, out = tmp_path / "lima.jsonl", tmp_path / "out"
    talks = [{"conversations": [f"What is {n} times {n}?", f"It is {n * n}."]} for n in range(6)]
    file.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    learnt = ("train", "msn", "--model", "config:tiny", "--prompts", file, "--given", "--out", out, "--held-out", 2)
    small = ("--set", "steps=2", "--set", "lora_rank=2", "--set", "bf16=false", "--set", "log_every=1")
    result = cli.ok(*learnt, *small)
    assert "answers  " not in result.err  # none was made
    assert not list(out.glob("answers*"))
    assert "as before training" not in result.err
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for folder in (out, out / "adapter"):
        assert json.loads((folder / "card.json").read_text())["given"] == {"lima.jsonl": digest}
    readme = (out / "adapter" / "README.md").read_text()
    assert f"{digest}" in readme
    assert wording.sentences(readme)
    assert "own answers" not in readme
    file.write_text('{"conversations": ["q"]}\n')
    result = cli("train", "jetspec", "--model", "config:tiny", "--prompts", file, "--given", "--out", tmp_path / "j",
               "--set", "layers=1")  # fmt: skip
    assert (result.code, f"{file} line 1 is damaged" in result.error) == (2, True)


@pytest.mark.parametrize("method", ["jetspec", "eagle3"])
def test_a_head_deeper_than_its_target_makes_no_answers(cli: Any, prompts: Path, tmp_path: Path, method: str) -> None:
    asked = ("--model", "config:tiny", "--prompts", prompts, "--out", tmp_path / "out", "--set", "layers=9")
    result = cli.refused(2, "train", method, *asked)
    assert "layers=" in result
    assert not list((tmp_path / "out").rglob("answers.jsonl"))


def test_denormals_are_zero_during_training_only(
    cli: Any, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small() -> float:
        return float(torch.full([64], 1e-30).mul(1e-12).sum())

    seen: list[float] = []
    trained = running._trained

    def watched(*given: Any) -> Any:
        seen.append(small())
        return trained(*given)

    monkeypatch.setattr(running, "_trained", watched)
    assert train(cli, prompts, tmp_path / "trained", "--limit", 5).code == 0
    assert seen == [0.0]
    assert small() > 0
