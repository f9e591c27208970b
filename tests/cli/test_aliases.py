"""--model ALIAS: what it sets, what the user's own flags win over, and the line that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.models import loader, names
from specbench.runner.plan import Plan
from specbench.runner.resolving import Resolved, resolve

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
    (told,) = made.notes
    assert told == "toy sets --method ar,jf --set jf.block_size=8 --set jf.num_blocks=1 --set jf.recycling=false"
    words = told.removeprefix("toy sets ").split()
    typed = plan("config:tiny", words[1], *(word for word in words[2:] if word != "--set"))
    assert typed.methods == made.methods
    assert not [note for note in typed.notes if " sets " in note]


def test_every_row_of_the_method_gets_the_options(entry: dict[str, Any]) -> None:
    made = plan("toy", "jf,jacobi,jf", "jf#2.K=2")
    assert options(made, "jf") == JF
    assert options(made, "jf#2") == {**JF, "num_blocks": 2}
    assert [method.label for method in made.methods] == ["ar", "jf", "jacobi", "jf#2"]
    assert made.notes[0] == (
        "toy sets --set jf.block_size=8 --set jf.num_blocks=1 --set jf.recycling=false "
        "--set jf#2.block_size=8 --set jf#2.recycling=false"
    )


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


def test_a_preset_of_the_alias_is_told_by_its_options(entry: dict[str, Any]) -> None:
    entry.update(method="cllm", options={"preset": "sharegpt", "init": "pad"})
    made = plan()
    assert made.notes == ("toy sets --method ar,cllm --set cllm.block_size=32 --set cllm.init=pad",)
    assert made.methods[1].max_rows == 32
    assert plan("toy", None, "n=8").notes[0] == "toy sets --method ar,cllm --set cllm.init=pad"
    entry["options"] = {"preset": "sharegpt", "block_size": 24}
    assert plan().methods[1].max_rows == 24, "an option wins over the preset"


def test_what_suits_the_model_is_set_where_that_method_runs_and_a_setting_wins(entry: dict[str, Any]) -> None:
    entry["suits"] = {"lookahead": {"window_size": 3, "ngram_size": 4}}
    assert [method.label for method in plan().methods] == ["ar", "jf"]
    made = plan("toy", "lookahead,jacobi", "lookahead.N=2")
    assert made.notes[0] == "toy sets --set lookahead.window_size=3"
    (spec,) = (spec for spec in made.specs() if spec.label == "lookahead")
    assert (spec.options["window_size"], spec.options["ngram_size"]) == (3, 2)


def test_an_alias_without_a_method_gets_the_usual_ones_and_another_method_is_left_alone(entry: dict[str, Any]) -> None:
    for made in (plan("smollm2-135m"), plan("config:tiny"), plan("toy", "jacobi")):
        assert [method.label for method in made.methods] == ["ar", "jacobi"]
        assert made.notes == ()


def test_template_and_tokenizer_are_told(entry: dict[str, Any]) -> None:
    entry.update(template="vicuna", tokenizer="someone/target")
    assert plan("toy", "jacobi").notes == ("toy sets chat template vicuna, tokenizer of someone/target",)
    assert plan("toy", "jf", "jf.preset=M").notes == plan("toy", "jacobi").notes
    assert plan().notes[0].endswith("jf.recycling=false, chat template vicuna, tokenizer of someone/target")


@pytest.mark.parametrize(
    ("method", "setting", "says"),
    [
        ("jacobi", "jf.n=4", "(it must be in --method) 'jf'; known: ar, jacobi"),
        (None, "jf.blocksize=4", "unknown option of jf 'blocksize'; did you mean block_size"),
        (None, "jf.n=0", "option 'block_size' of jf: Input should be greater than or equal to 1"),
        (None, "jf.preset=MM", "unknown preset of jf 'MM'"),
        (None, "jf.n", "write METHOD.OPTION=VALUE"),
        ("jg", "jf.n=4", "unknown method 'jg'; did you mean jf?"),
    ],
)
def test_mistakes_are_said_as_without_one(entry: dict[str, Any], method: str | None, setting: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan("toy", method, setting)
    assert says in str(raised.value)


def test_a_setting_given_twice_is_still_a_mistake(entry: dict[str, Any]) -> None:
    for settings in (("jf.n=4", "jf.block_size=4"), ("jf.n=4", "jf.n=4")):
        with pytest.raises(UsageError, check=wording):
            plan("toy", None, *settings)


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
    said = cli.ok("run", *given, "--json")
    # A line longer than the terminal stays one, and what goes on is told after it.
    expected = line(checkpoint, "--method ar,jf --set jf.num_blocks=1 --set jf.recycling=false")
    assert len(expected) > 80
    assert said.err.splitlines()[:2] == [expected, "loading toy …"]
    (folder,) = (tmp_path / "out").iterdir()
    config = runs.config_on_disk(folder)
    assert config["model"]["template"] == "vicuna"
    assert [method["label"] for method in config["methods"]] == ["ar", "jf"]
    assert config["methods"][1]["options"]["block_size"] == 4
    assert config["methods"][1]["options"]["num_blocks"] == 1
    assert config["task"]["options"]["style"] == "chat"  # only the alias's template makes it one


def test_check_lossless_says_it_once(cli: Any, checkpoint: dict[str, Any]) -> None:
    said = cli.ok("check-lossless", "--model", "toy", "--limit", 1, "--max-new-tokens", 6, "--seeds", "0,1", "--json")
    expected = line(checkpoint, "--method ar,jf --set jf.block_size=8 --set jf.num_blocks=1 --set jf.recycling=false")
    assert said.err.splitlines().count(expected) == 1
    found = json.loads(said.out)
    assert (found["ok"], found["strict"]) == (True, True)
    assert {(row["method"], row["verdict"], row["exact"]) for row in found["rows"]} == {("jf", "exact", 1)}
    greedy, *sampled = [(row["temperature"], row["seed"]) for row in found["rows"]]
    assert greedy == (0, 0), "greedy has no seed"
    assert [seed for _, seed in sampled] == [0, 1] * (len(sampled) // 2) != []


def test_nothing_is_said_where_nothing_is_set_and_help_tells_both_defaults(cli: Any) -> None:
    given = ("--model", "config:tiny", "--limit", 1, "--max-new-tokens", 2, "--temperatures", 0)
    assert cli.ok("check-lossless", *given).err.splitlines()[0] == "loading config:tiny …"
    for command in ("run", "check-lossless"):
        assert wording(cli(command, "--help", columns=160).out)


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
