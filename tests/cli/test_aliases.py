"""--model ALIAS: what it sets, what the user's own flags win over, and the line that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.common import write_json_atomic
from specbench.common.errors import UsageError
from specbench.models import CARD, loader, names
from specbench.planning.plan import Plan
from specbench.planning.resolving import Resolved, resolve

JF = {"block_size": 8, "num_blocks": 1, "recycling": False}


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The alias ``toy``, a checkpoint of jf; every other alias stays."""
    made: dict[str, Any] = {"title": "a toy", "hub": "someone/toy", "method": "jf", "options": dict(JF)}
    entries = {**names.aliases(), "toy": made}
    monkeypatch.setattr(names, "aliases", lambda: entries)
    return made


def plan(model: str = "toy", method: str | None = None, *settings: str) -> Resolved:
    return resolve(Plan(method=method, task="humaneval", model=model, settings=settings))


def options(made: Resolved, label: str) -> dict[str, Any]:
    (found,) = (spec.options for spec in made.specs() if spec.label == label)
    return {name: found[name] for name in JF}


def test_it_sets_the_method_and_its_options_as_the_line_that_says_so_does(entry: dict[str, Any]) -> None:
    made = plan()
    assert [method.label for method in made.methods] == ["ar", "jf"]
    assert options(made, "jf") == JF
    (reported,) = made.notes
    assert reported == "toy sets --method ar,jf --set jf.block_size=8 --set jf.num_blocks=1 --set jf.recycling=false"
    words = reported.removeprefix("toy sets ").split()
    typed = plan("config:tiny", words[1], *(word for word in words[2:] if word != "--set"))
    assert typed.methods == made.methods
    assert not [note for note in typed.notes if " sets " in note]


@pytest.mark.parametrize("setting", ["jf.block_size=4", "jf.n=4", "n=4", "jf.block-size=4"])
def test_a_setting_wins_by_any_of_its_names(entry: dict[str, Any], setting: str) -> None:
    made = plan("toy", None, setting)
    assert options(made, "jf") == {**JF, "block_size": 4}
    assert made.notes == ("toy sets --method ar,jf --set jf.num_blocks=1 --set jf.recycling=false",)


def test_a_preset_of_the_user_replaces_the_options(entry: dict[str, Any]) -> None:
    made = plan("toy", "jf,jf", "jf.preset=MR", "jf.K=3")
    assert options(made, "jf") == {"block_size": 64, "num_blocks": 3, "recycling": True}
    assert options(made, "jf#2") == JF
    assert "jf." not in "".join(made.notes)


def test_an_alias_without_a_method_gets_the_usual_ones_and_another_method_is_left_alone(entry: dict[str, Any]) -> None:
    for made in (plan("smollm2-135m"), plan("config:tiny"), plan("toy", "jacobi")):
        assert [method.label for method in made.methods] == ["ar", "jacobi"]
        assert made.notes == ()


def test_a_trained_folder_brings_the_method_and_options_of_its_card(tmp_path: Path) -> None:
    folder = save(tmp_path / "trained")
    write_json_atomic(folder / CARD, {"method": "fast-dllm", "decoding": {"block_size": 8, "mask": 6}})
    baseline, row = plan(str(folder)).specs()
    assert (baseline.label, row.label) == ("ar", "fast-dllm")
    assert (row.options["block_size"], row.options["mask"]) == (8, 6)
    *_, chosen = plan(str(folder), "fast-dllm", "fast-dllm.mask=9").specs()
    assert (chosen.options["block_size"], chosen.options["mask"]) == (8, 9)
    assert [method.label for method in plan(str(folder), "jacobi").methods] == ["ar", "jacobi"]


def test_a_trained_folder_keeps_its_methods_inventions(tmp_path: Path) -> None:
    folder = save(tmp_path / "trained")
    write_json_atomic(folder / CARD, {"method": "jf", "decoding": {"preset": "vanilla", "block_size": 8}})
    _, row = plan(str(folder)).specs()
    assert (row.options["block_size"], row.options["multiblock"], row.options["recycling"]) == (8, True, True)


@pytest.mark.parametrize(
    "card",
    [{}, {"method": "of-a-plug-in", "decoding": {"n": 2}}, {"method": "jf", "decoding": 3}, {"method": ["jf"]}, []],
)
def test_a_card_without_a_known_method_sets_nothing(tmp_path: Path, card: Any) -> None:
    folder = save(tmp_path / "trained")
    write_json_atomic(folder / CARD, card)
    made = plan(str(folder))
    assert [method.label for method in made.methods] == ["ar", "jacobi"]
    assert made.notes == ()


@pytest.fixture
def checkpoint(entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same alias, with a local folder for its hub id and two more for tokenizer and template."""
    byte_tokenizer().save_pretrained(tmp_path / "target")
    entry.update(hub=str(save(tmp_path / "toy")), tokenizer=str(tmp_path / "target"), template="vicuna")
    monkeypatch.setattr(loader, "hub_in_reach", lambda: False)
    return entry


def line(entry: dict[str, Any], flags: str) -> str:
    return f"toy sets {flags}, chat template vicuna, tokenizer of {entry['tokenizer']}"


def test_run_says_what_is_set_and_records_it(cli: Any, checkpoint: dict[str, Any], tmp_path: Path) -> None:
    given = ("--model", "toy", "--set", "jf.n=4", "--limit", 1, "--max-new-tokens", 6, "--out", tmp_path / "out")
    result = cli.ok("run", *given, "--json", "--verbose")
    expected = line(checkpoint, "--method ar,jf --set jf.num_blocks=1 --set jf.recycling=false")
    assert len(expected) > 80
    assert result.err.splitlines()[:2] == [expected, "loading toy …"]
    (folder,) = (tmp_path / "out").iterdir()
    config = runs.config_on_disk(folder)
    assert config["model"]["template"] == "vicuna"
    assert [method["label"] for method in config["methods"]] == ["ar", "jf"]
    assert config["methods"][1]["options"]["block_size"] == 4
    assert config["methods"][1]["options"]["num_blocks"] == 1
    assert config["task"]["options"]["style"] == "chat"  # only the alias's template makes it one


def test_head_is_the_option_of_that_name_in_every_row_that_has_it_and_wins_over_the_alias() -> None:
    def heads(model: str, method: str | None, *settings: str) -> dict[str, Any]:
        made = resolve(Plan(method=method, task="humaneval", model=model, settings=settings, head="a/b"))
        return {spec.label: spec.options["head"] for spec in made.specs() if "head" in spec.options}

    assert heads("config:tiny", "jetspec,jacobi,jetspec") == {"jetspec": "a/b", "jetspec#2": "a/b"}
    assert heads("jetspec-qwen3-8b", None) == {"jetspec": "a/b"}
    assert heads("jetspec-qwen3-8b", None, "jetspec.budget=9") == {"jetspec": "a/b"}
    with pytest.raises(UsageError, check=wording):
        heads("config:tiny", "ar,jacobi")
    with pytest.raises(UsageError, check=wording):
        heads("config:tiny", "jetspec", "jetspec.head=c/d")
