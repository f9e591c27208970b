"""The runs that are committed: ``results/README.md`` has a line for each, and git ignores what else lies there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.runs import COMMITTED, CURATED, RESULTS

from specbench.results.request_schema import RequestRecord
from specbench.results.schema import RunConfig

ROOT = RESULTS.parent

#: Since then a configuration, and since then a request, is written as it is today.
DIGESTS = [folder for folder in COMMITTED if folder.name >= "20261121T2254"]
LINES = [folder for folder in COMMITTED if folder.name >= "20261123T0415"]

#: What pages may quote: every run, and the runs of every sweep.
QUOTED = [*COMMITTED, *sorted(part.parent for folder in CURATED for part in folder.glob("c*/summary.json"))]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except OSError:
        pytest.skip("no git")
    if done.returncode > 1:
        pytest.skip("not a git checkout")
    return done


def test_every_tracked_folder_has_its_line_and_every_line_its_folder() -> None:
    names = git("ls-files", "-z", "results").stdout.split("\0")
    tracked = {name.split("/")[1] for name in names if name.count("/") > 1}
    records = {name for name in tracked if name.startswith("gpu-check")}  # of another program, quoted as files
    pages = "".join(page.read_text() for page in ROOT.glob("docs/**/*.md"))
    assert [name for name in records if f"file=results/{name}/" not in pages] == []
    tracked -= records
    assert sorted(path.name for path in CURATED) == sorted(tracked)


@pytest.mark.parametrize("folder", QUOTED, ids=lambda folder: f"{folder.parent.name[:9]}-{folder.name[:16]}")
def test_nothing_disturbed_what_pages_quote(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["disturbed"]["reasons"] == []
    assert not json.loads((folder / "run.json").read_text())["environment"]["git_dirty"]


@pytest.mark.parametrize("folder", QUOTED, ids=lambda folder: f"{folder.parent.name[:9]}-{folder.name[:16]}")
def test_the_machine_was_watched_and_its_memory_probed_next_to_what_pages_quote(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["disturbed"]["watched_s"] > 0
    run = json.loads((folder / "run.json").read_text())
    if not run["model"]["device"].startswith("cpu"):
        return  # for a GPU, clocks are watched but memory bandwidth is not probed
    probed = json.loads((folder / "bandwidth.json").read_text())
    assert len(probed["readings"]) >= 2, "readings before and after"
    shares = [row["bandwidth_share"] for row in summary["rows"] if ":" not in row["method"]]
    assert run["concurrency"] > 1 or all(0 < share < 1.2 for share in shares)


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name[:16])
def test_a_line_says_what_run_json_says(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    (line,) = [line for line in (RESULTS / "README.md").read_text().splitlines() if f"]({folder.name})" in line]
    expected = [f"--task {run['task']['name']} "]
    expected += [f"--limit {run['task']['prompts']} "] if "taken" in run["task"] else []  # else it is the whole task
    assert ("--limit" in line) == ("taken" in run["task"])
    expected += [
        f"--max-new-tokens {run['max_new_tokens']}",
        f"{run['created_utc'][:10]}, `{run['environment']['device']['name']}`",
    ]
    repeats = run["repeats"] // len((run.get("load") or {"points": [1]})["points"])  # under load a rate is a repeat
    expected += [f"--repeats {repeats}"] if repeats > 1 else []
    model = run["model"]["name"]
    assert model == "smollm2-135m" or re.search(rf"--model (\S+/)?{re.escape(model)} ", line)
    assert [words for words in expected if words not in line] == []
    methods = line.partition("--method ")[2].split()[0].split(",")
    assert {spec["name"] for spec in run["methods"]} == {*methods} - {"…"}


@pytest.mark.parametrize("folder", DIGESTS, ids=lambda folder: folder.name[:16])
def test_a_digest_is_what_it_was(folder: Path) -> None:
    """Whatever fields have come since: an unfinished run of then is found, and goes on."""
    content = json.loads((folder / "run.json").read_text())
    found = {name: content[name] for name in RunConfig.model_fields if name in content}
    assert RunConfig.model_validate(found).digest() == content["digest"]


@pytest.mark.parametrize("folder", LINES, ids=lambda folder: folder.name[:16])
def test_a_request_is_written_again_as_it_was(folder: Path) -> None:
    lines = (folder / "requests.jsonl").read_text().splitlines()
    assert len(lines) > 10
    for line in lines[:10]:
        written = RequestRecord.model_validate_json(line).model_dump(mode="json")
        assert json.dumps(written, separators=(",", ":")) == line
