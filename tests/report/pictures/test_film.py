"""The film of a race: its frames, and what ffmpeg makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from support import runs

from specbench.report.answers.race import Race, race
from specbench.report.charts import film


@pytest.fixture
def found(tmp_path: Path) -> Race:
    read = runs.read_race(tmp_path)
    return race(read.config, read.records, ["ar", "pld"], "p/0")


def test_a_frame_has_more_ink_as_tokens_come(found: Race) -> None:
    ink = [
        sum(pixel > 60 for pixel in picture.convert("L").tobytes()) for picture in film.frames(found, [0, 2, 7.5], 1)
    ]
    assert ink[0] < ink[1] < ink[2]


@pytest.mark.parametrize("suffix", film.SUFFIXES)
def test_it_lasts_as_long_as_the_race_and_stands_at_its_end(found: Race, tmp_path: Path, suffix: str) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("no ffmpeg is installed")
    path = film.write_film(found, tmp_path / f"race{suffix}", 5.0)
    probe = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", str(path)]
    (stream,) = json.loads(subprocess.run(probe, capture_output=True, check=True).stdout)["streams"]
    rate = film._A_SECOND[suffix]
    assert int(stream["nb_read_frames"]) == pytest.approx((7.5 / 5 + 2) * rate, abs=1)
    assert (stream["width"], stream["height"]) == (960, 540)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [path.name]
    if suffix == ".gif":
        with Image.open(path) as made:
            assert made.n_frames > 30
