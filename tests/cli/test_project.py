"""``run --project``: a projection next to a run, never in its figures; shown again from the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.hardware import roofline
from specbench.hardware.stored_profile import read_profile

RUN = ("run", "--model", "config:tiny", "--task", "humaneval", "--limit", 2, "--max-new-tokens", 12, "--no-score")


@pytest.fixture(scope="module")
def profile(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small profile of the dummy model."""
    out = tmp_path_factory.mktemp("profiles")
    small = ("--model", "config:tiny", "--rows", "1,16", "--contexts", "128", "--slots", "1", "--seconds", "5")
    found = json.loads(cli.ok("profile", *small, "--json", "--out", out).out)
    (folder,) = out.iterdir()
    assert found == {"folder": str(folder), **json.loads((folder / "profile.json").read_text())}
    return folder


def test_a_run_is_projected_and_shown_again(cli: Any, profile: Path, tmp_path: Path) -> None:
    result = cli.ok(*RUN, "--method", "jacobi", "--out", tmp_path, "--project", "b200", "--profile", profile)
    assert wording.sentences(result.out)
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "projection-b200.json").read_text())
    assert set(content["rows"]) == {"ar", "jacobi"}
    steps = json.loads((profile / "profile.json").read_text())
    assert content["ceilings_here"]["flops_per_s"] == steps["measured"]["flops_per_s"]
    row = content["rows"]["ar"]["decode_tok_s"]
    shape = roofline.ModelShape.model_validate(steps["shape"])
    most = 1 / roofline.bound_s(
        roofline.step_cost(shape, 1, content["context"]), roofline.Ceilings.model_validate(content["ceilings_there"])
    )
    assert 0 < row["low"] <= row["value"] <= row["high"] <= most * 1.5
    again = cli("show", folder)
    assert wording.sentences(again.out)
    assert max(len(line) for line in again.out.splitlines() if not line.startswith("Next: ")) <= 80
    assert json.loads(cli("show", folder, "--json").out)["projections"] == [content]
    # The run itself is what it is without a projection, and another one is added to what is done.
    assert "projection" not in (folder / "summary.json").read_text()
    more = cli.ok(*RUN, "--method", "jacobi", "--out", tmp_path, "--project", "h100", "--profile", profile)
    assert wording.sentences(more.err)
    assert len([*folder.glob("projection-*.json")]) == 2


def test_a_sweep_is_predicted_with_a_profile(cli: Any, profile: Path, tmp_path: Path) -> None:
    grid = ("--method", "jacobi", "--grid", "n=2,8", "--grid", "concurrency=1,2", "--profile", profile)
    result = cli.ok("sweep", *RUN[1:], *grid, "--out", tmp_path, "--json")
    document = json.loads(result.out)
    steps = read_profile(profile)
    times = roofline.StepTimes(steps.shape, steps.ceilings, steps.points)
    records = [json.loads(line) for line in (Path(document["folder"]) / "c2" / "requests.jsonl").open()]
    assert {(cell["method"], cell["concurrency"]) for cell in document["cells"]} == {
        (method, count) for method in ("ar", "jacobi") for count in (1, 2)
    }
    for cell in (cell for cell in document["cells"] if cell["concurrency"] == 2):
        mine = [record for record in records if record["method"] == cell["label"]]
        context = sum(record["prompt_tokens"] + record["output_tokens"] / 2 for record in mine) / len(mine)
        seconds = times.seconds(round(cell["rows_per_step"]), round(context), 2)
        assert cell["predicted_decode_tok_s"] == pytest.approx(2 * cell["tokens_per_forward"] / seconds)
    assert wording.sentences(cli("show", document["folder"]).out)


def test_a_profile_of_another_model_is_refused_and_the_run_is_kept(cli: Any, profile: Path, tmp_path: Path) -> None:
    content = json.loads((profile / "profile.json").read_text())
    content["model"]["fingerprint"] = "0" * 64
    (tmp_path / "profile.json").write_text(json.dumps(content))
    argv = (*RUN, "--method", "ar", "--out", tmp_path / "runs")
    assert wording(cli.refused(2, *argv, "--project", "h200", "--profile", tmp_path))
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "DONE").exists()
    (folder / "projection-h200.json").write_text("{}")  # a damaged one is named
    assert "projection-h200.json" in cli.refused(2, "show", folder)
