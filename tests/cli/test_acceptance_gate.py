"""``sweep --acceptance`` and ``compare --fail-under-acceptance``: equal files, what fails the gate, and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support import runs

from specbench.common import registry

Change = Callable[[dict[str, Any]], None]
SWEEP = ("sweep", "--acceptance", "1:3", "--method", "pld,lookahead", "--model", "config:tiny", "--max-new-tokens", 24)
CI = Path(__file__).parents[2] / "docs" / "guide" / "compare.md"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    file = tmp_path_factory.mktemp("data") / "mine.jsonl"
    rows = [json.dumps({"id": f"q{at}", "prompt": f"one two three one two {at} one two"}) for at in range(7)]
    file.write_text("\n".join(rows))
    return ("--task", "prompts", "--data-file", file)


@pytest.fixture(scope="module")
def folder(cli: Any, prompts: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(cli.made(tmp_path_factory.mktemp("first"), *SWEEP, *prompts))


def changed(folder: Path, to: Path, change: Change) -> Path:
    """A copy of a sweep's curves after a change to each row of pld."""
    found = json.loads((folder / "acceptance.json").read_text())
    for row in found["rows"]:
        if row["method"] == "pld":
            change(row)
    to.write_text(json.dumps(found))
    return to


def test_curves_are_those_of_the_raw_lines(folder: Path) -> None:
    lines = runs.requests_on_disk(folder / "c1")
    rows = {row["row"]: row for row in json.loads((folder / "acceptance.json").read_text())["rows"]}
    assert list(rows) == [f"{method} draft_length={k}" for method in ("pld", "lookahead") for k in (1, 2, 3)]
    for label, row in rows.items():
        mine = [line for line in lines if line["method"] == label]
        accepted = [sum(n * many for n, many in enumerate(line["acceptance_histogram"])) for line in mine]
        drafts = sum(sum(line["acceptance_histogram"]) for line in mine)
        assert row["acceptance"]["length"]["value"] == pytest.approx(1 + sum(accepted) / drafts)
        assert max(map(int, row["acceptance"]["histogram"])) <= row["draft_length"]
        kept = sum(len(line["output_ids"]) - 1 for line in mine)
        assert row["tokens_per_forward"] == pytest.approx(kept / sum(len(line["accepted_lengths"]) for line in mine))


def test_the_same_command_gives_equal_files(cli: Any, folder: Path, prompts: Any, tmp_path: Path) -> None:
    again = cli.made(tmp_path, *SWEEP, *prompts)
    for name in ("acceptance.json", "acceptance.csv"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    result = cli.ok("compare", folder, again / "acceptance.json", "--fail-under-acceptance", 1, "--json")
    assert [row["failed"] for row in json.loads(result.out)["B"]["rows"]] == [[]] * 6


def test_a_wider_range_keeps_what_is_measured(cli: Any, folder: Path, prompts: Any, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    wider = [*SWEEP]
    wider[2] = "3:4"
    before = runs.requests_on_disk(copy / "c1")
    result = cli.ok(*wider, *prompts, "--out", tmp_path, "--json")
    found = json.loads(result.out)["acceptance"]["rows"]
    assert [row["draft_length"] for row in found] == [1, 2, 3, 1, 2, 3, 4, 4]
    assert runs.requests_on_disk(copy / "c1")[: len(before)] == before


def shorter(row: dict[str, Any]) -> None:
    row["acceptance"]["length"]["value"] *= 0.97


def fewer(row: dict[str, Any]) -> None:
    row["tokens_per_forward"] *= 0.97


def at_first(row: dict[str, Any]) -> None:
    row["acceptance"]["positions"]["1"] *= 0.3


@pytest.mark.parametrize(
    ("change", "failed"),
    [(shorter, "accepted length"), (fewer, "tokens per forward"), (at_first, "acceptance at position 1")],
)
def test_a_fall_of_any_figure_exits_5(cli: Any, folder: Path, tmp_path: Path, change: Change, failed: str) -> None:
    other = changed(folder, tmp_path / "other.json", change)
    result = cli("compare", folder, other, "--fail-under-acceptance", 0.98, "--json")
    assert result.code == 5
    rows = json.loads(result.out)["B"]["rows"]
    assert {row["row"].split()[0]: row["failed"] for row in rows} == {"pld": [failed], "lookahead": []}
    assert failed in result.error
    assert cli("compare", other, folder, "--fail-under-acceptance", 0.98).code == 0, "a rise is no regression"


def test_a_position_of_few_drafts_is_not_judged(cli: Any, folder: Path, tmp_path: Path) -> None:
    def lost_two(row: dict[str, Any]) -> None:
        found = row["acceptance"]
        found["positions"]["1"] -= 2 / found["drafts"]

    other = changed(folder, tmp_path / "other.json", lost_two)
    assert cli("compare", folder, other, "--fail-under-acceptance", 0.999).code == 0


def test_runs_are_judged_by_their_summaries(cli: Any, prompts: Any, tmp_path: Path) -> None:
    run = ("run", "--method", "pld", "--model", "config:tiny", "--max-new-tokens", 24, *prompts)
    before, after = (cli.made(tmp_path / name, *run) for name in ("before", "after"))
    for left in ("requests.jsonl", "verdicts.jsonl"):  # a committed baseline needs run.json and summary.json only
        (before / left).unlink(missing_ok=True)
    assert cli("compare", before, after, "--fail-under-acceptance", 1).code == 0
    summary = json.loads((after / "summary.json").read_text())
    shorter(summary["rows"][1])
    (after / "summary.json").write_text(json.dumps(summary))
    assert cli("compare", before, after, "--fail-under-acceptance", 0.98).code == 5


@pytest.mark.slow
def test_a_head_with_a_perturbed_tensor_fails(cli: Any, tmp_path: Path) -> None:
    """The shipped EAGLE-3 head, 1% of whose output weights are replaced by random ones of the same spread."""
    head = Path(registry.method("eagle3").folder) / "heads" / "smollm2-135m"
    worse = tmp_path / "worse"
    shutil.copytree(head, worse)
    held = {file: load_file(file) for file in worse.glob("*.safetensors")}
    (file,) = [file for file, tensors in held.items() if "lm_head.weight" in tensors]
    weight = held[file]["lm_head.weight"].float()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(weight.shape, generator=generator)
    chosen = torch.rand(weight.shape, generator=generator) < 0.01
    weight[chosen] = weight.mean() + noise[chosen] * weight.std()
    save_file({**held[file], "lm_head.weight": weight.to(held[file]["lm_head.weight"].dtype)}, file)
    task = ("--task", "humaneval", "--limit", 6, "--max-new-tokens", 32)
    asked = ("sweep", "--acceptance", "4", "--method", "eagle3", *task)
    sound = cli.made(tmp_path / "sound", *asked)
    perturbed = cli.made(tmp_path / "perturbed", *asked, "--head", worse)
    result = cli("compare", sound, perturbed, "--fail-under-acceptance", 0.98, "--json")
    (row,) = json.loads(result.out)["B"]["rows"]
    assert (result.code, row["failed"][0]) == (5, "accepted length")
    assert row["accepted_length"][1] < 0.9 * row["accepted_length"][0]


def test_what_cannot_be_compared_is_refused(cli: Any, folder: Path, tmp_path: Path) -> None:
    curves = json.loads((folder / "acceptance.json").read_text())

    def refused(named: str, **change: Any) -> None:
        (tmp_path / "other.json").write_text(json.dumps({**curves, **change}))
        assert named in cli.refused(2, "compare", folder, tmp_path / "other.json", "--fail-under-acceptance", 0.98)

    refused("prompts", prompts_sha256="0" * 64)
    refused("max new tokens", max_new_tokens=25)
    refused("temperature", temperature=1.0)
    refused("simulated", simulated=True)
    refused("pld draft_length=1", rows=curves["rows"][1:])
    refused("newer", schema_version=99)
    assert "--fail-under" in cli.refused(2, "compare", folder, folder, "--fail-under-acceptance", 1, "--fail-under", 1)
    assert "baseline" in cli.refused(2, "compare", folder, "--fail-under-acceptance", 1)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--method", "recycling"), "recycling"),
        (("--method", "ar"), "ar"),
        (("--grid", "k=1,2"), "--grid"),
        (("--temperature", "0.5"), "--temperature"),
        (("--set", "pld.k=3"), "draft_length of pld"),
        (("--set", "pld.stop=true"), "pld.stop"),
        (("--acceptance", "0:3"), "--acceptance"),
        (("--acceptance", "3:1"), "--acceptance"),
        (("--acceptance", "1,1"), "--acceptance"),
        (("--tune",), "--acceptance"),
    ],
)
def test_what_acceptance_has_no_use_for_is_refused(
    cli: Any, prompts: Any, tmp_path: Path, more: tuple[str, ...], named: str
) -> None:
    plain = ("sweep", "--acceptance", "1:3", "--method", "pld", "--model", "config:tiny")
    kept = [part for part in plain if not (set(more) & {"--acceptance"} and part in ("--acceptance", "1:3"))]
    kept = [part for part in kept if not (set(more) & {"--method"} and part in ("--method", "pld"))]
    assert named in cli.refused(2, *kept, *more, *prompts, "--out", tmp_path)


def test_methods_keep_their_declared_draft_length() -> None:
    """The options of each method's table exist, and its trees have at most k tokens on a path of chains."""
    for card in registry.methods().values():
        rule = card.info.get("draft_length", {})
        for k in (1, 4, 8):
            chosen = {option: {"k": k, "k+1": k + 1}.get(str(value), value) for option, value in rule.items()}
            made = card.load().Options.model_validate(chosen)
            if rule.get("tree") == "chain" or card.name in ("pld", "sam", "sps", "jacobi", "cllm"):
                assert card.load().Decoder.max_rows(made) == k + 1, card.name


def test_the_workflow_in_the_guide_has_the_gate() -> None:
    blocks = [part.partition("```")[0] for part in CI.read_text().split('```yaml title=".github/workflows/')[1:]]
    found = {block.partition('"')[0]: yaml.safe_load(block.partition("\n")[2]) for block in blocks}
    steps = found["acceptance.yml"]["jobs"]["acceptance"]["steps"]
    commands = " ".join(step.get("run", "") for step in steps)
    assert "specbench sweep --acceptance" in commands
    assert "--fail-under-acceptance" in commands
