"""``--dry-run`` of ``run`` and ``sweep``: a table at once, without torch, and nothing made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runs import made_up_profile
from support.wording import wording

from specbench.common.files import write_json_atomic
from specbench.hardware.profile import PROFILE
from specbench.models import configured_shape, resolve

TINY = ("--model", "config:tiny", "--task", "humaneval", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_of_every_cell_and_nothing_made(cli: Any, tmp_path: Path) -> None:
    said = cli.ok("sweep", *TINY, "--method", "jf", "--grid", "n=8,256", "--grid", "pool=1,16", "--dry-run")
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "dry run: predicted, nothing was run · config:tiny float32 · this machine"
    assert lines[2].split() == ["cell", "rows", "weights", "cache", "step", "MiB", "ms", "×", "ar"]
    rows = {line.rpartition("pool=")[0] + line.rpartition("pool=")[2].split()[0]: line.split() for line in lines[5:9]}
    assert [words[3] for words in rows.values()] == ["16", "121", "512", "4,337"]
    assert all(words[-2:] == ["-", "-"] for words in rows.values())
    assert wording(" ".join(said.out.split()))
    assert list(tmp_path.iterdir()) == []


def test_json_of_a_run(cli: Any) -> None:
    said = cli.ok("run", *TINY, "--method", "lookahead,msn", "--concurrency", 4, "--dry-run", "--json")
    found = json.loads(said.out)
    assert [(cell["label"], cell["rows"], cell["concurrency"]) for cell in found["cells"]] == [
        ("ar", 1, 4), ("lookahead", 56, 4), ("msn", 69, 4),
    ]  # fmt: skip
    assert (found["capacity"], found["steps"]) == (520, "none")


def test_a_pair_is_as_wide_as_the_wider_one_and_what_makes_none_is_refused(cli: Any) -> None:
    rows = ("--method", "suffix,suffix,recycling")
    fallback, retrieve = (
        "suffix#2.fallback=recycling budget=9 warm=true",
        "recycling.retrieve=suffix k=99 tree=true factor=9",
    )
    said = cli.ok(
        "run", *TINY, *rows, "--set", fallback, "--set", retrieve, "--set", "recycling.B=20", "--dry-run", "--json"
    )
    assert {cell["label"]: cell["rows"] for cell in json.loads(said.out)["cells"]} == {
        "ar": 1, "suffix": 13, "suffix#2": 13, "recycling": 100,
    }  # fmt: skip
    for value, says in (
        ("recyclin", "did you mean recycling?"),
        ("recycling B=1", "'budget' of recycling"),
        ("msn", "msn cannot draft beside"),
    ):
        assert says in cli.refused(
            2, "run", *TINY, "--method", "suffix", "--set", f"suffix.fallback={value}", "--dry-run"
        )


def test_what_does_not_fit_is_marked(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.runner.room._memory", lambda plan: (2.0**29, 2.0**29))
    said = cli.ok(
        "sweep", *TINY, "--method", "jf", "--grid", "n=8,512", "--set", "pool=16", "--dry-run", columns=100
    )  # fmt: skip
    assert said.out.count("! 1,") == 1
    assert wording(" ".join(said.out.split()))


def test_a_gpu_that_is_not_here_is_predicted_for_and_an_unknown_one_refused(cli: Any) -> None:
    assert wording(cli.ok("run", *TINY, "--gpu", "h200", "--dry-run").out)
    said = cli("run", *TINY, "--gpu", "h2000", "--dry-run")
    assert (said.code, "h2000" in said.error) == (2, True)


def test_what_is_projected_says_so_and_has_bands(cli: Any, tmp_path: Path) -> None:
    spec = made_up_profile().model.model_copy(update={"name": "smollm2-135m", "dtype": "float32", "device": "cpu"})
    folder = tmp_path / "cpu"
    folder.mkdir()
    shape = configured_shape(resolve("smollm2-135m"), "float32")
    write_json_atomic(
        folder / PROFILE, made_up_profile(model=spec, shape=shape, gpu=None, datasheet=None).model_dump(mode="json")
    )
    said = cli.ok(
        "sweep", "--method", "jf", "--grid", "n=8,256", "--set", "pool=16", "--gpu", "b200", "--profile", folder,
        "--dry-run", columns=110,
    )  # fmt: skip
    ar, small, wide = said.out.splitlines()[4:7]
    assert re.fullmatch(r"ar +1 +257 +23 +0 +280 +[\d.]+ \([\d.]+-[\d.]+\) +1-1", ar)
    assert re.search(r" 121 .* [\d.]+ \([\d.]+-[\d.]+\) +[\d.]+-[\d.]+$", small)
    assert re.search(r" 4,337 .* ~[\d.]+ \([\d.]+-[\d.]+\) +[\d.,]+-[\d.,]+$", wide)
    text = " ".join(said.out.split())
    assert wording(text)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specbench.cli.app import main\n"
        "line = 'sweep --method jf --grid n=8,256 --grid pool=1,16 --dry-run --json --model'\n"
        "sys.exit(main([*line.split(), 'smollm2-135m']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [cell["rows"] for cell in json.loads(done.stdout)["cells"]] == [1, 16, 121, 512, 4337]
