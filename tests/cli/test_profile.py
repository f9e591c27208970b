"""``profile`` on dummy weights, the folder it leaves, and ``show`` on it."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from support.wording import wording

from specbench.hardware.stored_profile import MeasuredCeilings, Profile, read_profile

ASKED = ("--model", "config:tiny", "--rows", "4,16", "--contexts", "100,300", "--slots", "2", "--seconds", 60)
FILES = {"profile.json", "steps.csv", "roofline.png", "steps.png"}


@dataclass(frozen=True)
class Profiled:
    """A profile, what the command printed, and the folder."""

    result: Any
    folder: Path

    @property
    def profile(self) -> Profile:
        return read_profile(self.folder)


@pytest.fixture(scope="module")
def profiled(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    out = tmp_path_factory.mktemp("out") / "profiles"
    result = cli.ok("profile", *ASKED, "--out", out)
    (folder,) = out.iterdir()
    return Profiled(result, folder)


def test_the_folder_holds_its_files_and_is_named_after_what_was_measured(profiled: Profiled) -> None:
    assert {path.name for path in profiled.folder.iterdir()} == FILES
    assert profiled.folder.name.endswith(f"-profile-config-tiny-{profiled.profile.digest()[:8]}")
    for name in FILES:
        if name.endswith(".png"):
            assert imread(profiled.folder / name)[..., :3].std() > 0.05


def test_a_datasheet_needs_no_gpu_and_says_so(cli: Any, tmp_path: Path) -> None:
    result = cli.ok("profile", "--model", "config:qwen2.5-7b", "--gpu", "b200", "--datasheet", "--out", tmp_path)
    (picture,) = tmp_path.iterdir()
    assert picture.name == "roofline-config-qwen2.5-7b-b200-datasheet.png"
    assert imread(picture)[..., :3].std() > 0.05
    # 2 FLOPs per weight and row against 2 bytes per weight: the cache aside, the ridge in FLOPs per byte is the rows.
    (rows,) = map(int, re.findall(r"after 512 cached tokens: (\d+) rows", result.out))
    assert rows == pytest.approx(2250e12 / 8000e9, rel=0.03)
    assert result.out.count("not measured") == 2


@pytest.mark.parametrize(
    "given",
    [("--model", "config:tiny"), ("--model", "config:tiny", "--gpu", "gb10"), ("--model", "a/b", "--gpu", "b200")],
    ids=["no GPU", "no peak", "no shape"],
)
def test_a_datasheet_that_cannot_be_drawn_is_refused(cli: Any, tmp_path: Path, given: tuple[str, ...]) -> None:
    result = cli("profile", *given, "--datasheet", "--out", tmp_path / "out")
    assert (result.code, (tmp_path / "out").exists()) == (2, False)
    assert wording(result.err)


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


def test_ceilings_are_the_best_of_before_and_after_the_steps(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour that reads memory in one of the two measurements is not this device's bound."""

    def made(copy: float, read: float, flops: float) -> MeasuredCeilings:
        rates = {"copy_bytes_per_s": copy, "read_bytes_per_s": read, "flops_per_s": flops}
        return MeasuredCeilings(**rates, buffer_bytes=1, matmul_size=1, repeats=3)

    left = [made(3e10, 2e10, 9e11), made(4e10, 6e10, 5e11)]
    monkeypatch.setattr("specbench.profiling.machine_profile.measure_ceilings", lambda *_: left.pop(0))
    few = ("--rows", "1", "--contexts", "100", "--slots", "1", "--seconds", 1)
    cli.ok("profile", "--model", "config:tiny", *few, "--out", tmp_path)
    assert not left
    (folder,) = tmp_path.iterdir()
    profile = read_profile(folder)
    assert profile.measured == made(4e10, 6e10, 9e11).model_copy(update={"repeats": 6})
    assert profile.knee is not None
    assert profile.knee.intensity == pytest.approx(9e11 / 6e10)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--rows 0", 2, "--rows 0: give integers from 1 to 65536"),
        ("--seconds 1e999", 2, "--seconds inf: give a number"),
        ("--contexts 2k", 2, "--contexts 2k: give integers from 1 up"),
        ("--slots ,", 2, "--slots is empty"),
        ("--graphs on", 3, "CUDA graphs need a CUDA device"),
        ("--gpu h200", 3, "cannot use --gpu h200: this machine has"),
        ("--out {file}", 3, "cannot write {file}"),
    ],
)
def test_mistakes_are_reported_before_the_loading(
    cli: Any, tmp_path: Path, options: str, code: int, message: str
) -> None:
    out, file = tmp_path / "profiles", tmp_path / "file"
    file.touch()
    argv = ("profile", "--model", "config:tiny", "--device", "cpu", "--out", out)
    result = cli(*argv, *options.format(file=file).split())
    assert (result.code, result.out) == (code, "")
    assert message.format(file=file) in result.error
    assert "loading" not in result.err
    assert not out.exists()
