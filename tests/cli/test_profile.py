"""``profile`` on dummy weights, the folder it leaves, and ``show`` on it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from specbench.hardware.profile import Profile, read_profile

ASKED = ("--model", "config:tiny", "--rows", "4,16", "--contexts", "100,300", "--slots", "2", "--seconds", 60)
FILES = {"profile.json", "steps.csv", "roofline.png", "steps.png"}


@dataclass(frozen=True)
class Profiled:
    """A profile, what the command printed, and the folder."""

    said: Any
    folder: Path

    @property
    def profile(self) -> Profile:
        return read_profile(self.folder)


@pytest.fixture(scope="module")
def profiled(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    out = tmp_path_factory.mktemp("out") / "profiles"
    said = cli("profile", *ASKED, "--out", out)
    assert said.code == 0, said.err
    (folder,) = out.iterdir()
    return Profiled(said, folder)


def test_the_folder_holds_its_files_and_is_named_after_what_was_measured(profiled: Profiled) -> None:
    assert {path.name for path in profiled.folder.iterdir()} == FILES
    assert profiled.folder.name.endswith(f"-profile-config-tiny-{profiled.profile.digest()[:8]}")
    for name in FILES:
        if name.endswith(".png"):
            assert imread(profiled.folder / name)[..., :3].std() > 0.05


def test_what_was_asked_for_was_measured(profiled: Profiled) -> None:
    profile = profiled.profile
    measured = {(p.rows, p.context, p.slots) for p in profile.points}
    asked = {(rows, context, 1) for rows in (1, 4, 16) for context in (100, 300)}
    assert measured == asked | {(rows, 300, 2) for rows in (1, 4, 16)}
    assert profile.left_out == []
    for free in profile.free_rows:
        curve = {p.rows: p.seconds for p in profile.curve(free.context).values()}
        assert free.rows == max(rows for rows in curve if curve[rows] <= 1.1 * curve[1])
        assert free.below == {1: 4, 4: 16, 16: None}[free.rows]
    assert [free.context for free in profile.free_rows] == [100, 300]
    assert profile.model.name == "config:tiny"
    assert profile.shape.parameters == profile.model.parameters
    assert profile.base_context == 300
    assert profile.gpu is None
    assert profile.datasheet is None
    assert profile.engine["attention"] == "reference"
    with (profiled.folder / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(profile.points)


def test_it_says_the_ceilings_the_budget_and_the_folder(profiled: Profiled) -> None:
    lines = profiled.said.out.splitlines()
    assert lines[-1] == f"profile: {profiled.folder}"
    assert max(map(len, lines[:-1])) <= 80
    assert any(line.startswith("matrix product, float32") for line in lines)
    assert any(line.startswith("Free rows: ") for line in lines)
    assert "measuring bandwidth" in profiled.said.err


@pytest.mark.parametrize("columns", [80, 140])
def test_show_prints_the_same_again(cli: Any, profiled: Profiled, columns: int) -> None:
    said = cli("show", profiled.folder, columns=columns)
    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= columns
    if columns == 80:
        assert said.out == profiled.said.out.rpartition("\nprofile: ")[0]


def test_show_needs_neither_torch_nor_matplotlib(profiled: Profiled) -> None:
    code = (
        "import sys; from specbench.cli.app import main; code = main(sys.argv[1:]); "
        "print(*(name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules), 'are loaded', "
        "file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "show", str(profiled.folder)], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "are loaded"
    assert "Free rows: " in done.stdout


def test_pictures_are_drawn_without_torch(profiled: Profiled, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specbench.hardware.profile import read_profile; "
        "from specbench.report.pictures.roofline import write_pictures; "
        "write_pictures(read_profile(Path(sys.argv[1])), Path(sys.argv[2])); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(profiled.folder), str(tmp_path)], check=True)
    for name in ("roofline.png", "steps.png"):
        assert (tmp_path / name).read_bytes() == (profiled.folder / name).read_bytes()


def test_show_as_json_is_the_profile(cli: Any, profiled: Profiled) -> None:
    said = cli("show", profiled.folder, "--json")
    assert json.loads(said.out) == json.loads((profiled.folder / "profile.json").read_text())


def test_json_names_the_folder(cli: Any, tmp_path: Path) -> None:
    said = cli(
        "profile", "--model", "config:tiny", "--rows", 1, "--contexts", 16, "--slots", 1, "--seconds", 1,
        "--out", tmp_path, "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    found = json.loads(said.out)
    folder = Path(found.pop("folder"))
    assert found == json.loads((folder / "profile.json").read_text())
    assert [(p["rows"], p["context"], p["slots"]) for p in found["points"]] == [(1, 16, 1)]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--rows", "0"), 2, "--rows 0: give whole numbers from 1 to 512, comma-separated, as --rows 1,16,64"),
        (("--rows", "1,513"), 2, "--rows 513: give whole numbers from 1 to 512"),
        (("--contexts", "2k"), 2, "--contexts 2k: give whole numbers from 1 up"),
        (("--slots", ","), 2, "--slots names nothing"),
        (("--attention", "trito"), 2, "unknown --attention value 'trito'; did you mean triton?"),
        (("--graphs", "maybe"), 2, "unknown --graphs value 'maybe'"),
        (("--graphs", "on"), 3, "CUDA graphs need a CUDA device"),
        (("--gpu", "h2000"), 2, "unknown GPU 'h2000'"),
        (("--gpu", "h200"), 3, "--gpu h200 but this machine has"),
        (("--model", "config:tinny"), 2, "unknown config 'tinny'; did you mean tiny?"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    cli: Any, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    out = tmp_path / "profiles"
    said = cli("profile", "--model", "config:tiny", *options, "--device", "cpu", "--out", out)
    assert (said.code, said.out) == (code, "")
    assert message in said.error
    assert "loading" not in said.err
    assert not out.exists()


def test_an_out_that_cannot_be_written_is_told_before_a_model_is_loaded(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    said = cli("profile", "--model", "config:tiny", "--out", file)
    assert said.code == 3
    assert f"cannot write {file}" in said.error
    assert "loading" not in said.err


def test_contexts_that_the_model_does_not_take_are_refused(cli: Any, tmp_path: Path) -> None:
    said = cli("profile", "--model", "config:tiny", "--rows", 8, "--contexts", 9000, "--out", tmp_path)
    assert said.code == 2
    assert "takes 8192 positions: with 8 rows, give --contexts of at most 8183" in said.error
    assert list(tmp_path.iterdir()) == []


def test_a_profile_has_no_requests(cli: Any, profiled: Profiled) -> None:
    said = cli("show", profiled.folder, "--requests")
    assert said.code == 2
    assert "is a profile, which has no requests" in said.error
