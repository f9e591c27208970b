"""The film of a race: its frames, and what ffmpeg makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from support import runs
from support.wording import wording

from specbench.common import EnvironmentRefused, UsageError
from specbench.report.pictures import film
from specbench.report.race import Race, race


@pytest.fixture
def found(tmp_path: Path) -> Race:
    read = runs.read_race(tmp_path)
    return race(read.config, read.records, ["ar", "pld"], "p/0")


def test_a_frame_has_more_ink_as_tokens_come(found: Race) -> None:
    ink = [
        sum(pixel > 60 for pixel in picture.convert("L").tobytes()) for picture in film.frames(found, [0, 2, 7.5], 1)
    ]
    assert ink[0] < ink[1] < ink[2]


def test_lines_break_where_the_answer_does_and_where_they_are_full(found: Race) -> None:
    tokens = [token for arrival in found.lanes[0].arrivals for token in arrival.tokens]
    lines = ["".join(letter for letter, _, _ in line) for line in film._lines(tokens, 12)]
    assert lines[:2] == ["One two thre", "e <b>four</b"]
    assert "five\\x1b[31m" in lines
    assert max(map(len, lines)) == 12


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


def test_what_hinders_a_film_is_one_sentence(found: Race, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, check=wording):
        film.write_film(found, tmp_path / "race.avi", 1)
    with pytest.raises(UsageError, check=wording):
        film.write_film(found, tmp_path / "race.mp4", 0.01)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentRefused, check=wording):
        film.write_film(found, tmp_path / "race.mp4", 1)
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\necho 'no such\nencoder' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentRefused, check=wording):
        film.write_film(found, tmp_path / "race.mp4", 1)
    assert not (tmp_path / "race.mp4").exists()
    assert not list(tmp_path.glob(".film-*"))


def test_what_its_watchers_have_to_know_is_in_every_frame(found: Race) -> None:
    (plain,), (noted,) = (film.frames(Race("p", found.lanes, notes), [0], 1) for notes in ([], ["simulated " * 40]))
    box = (0, 490, 960, 540)
    assert len(set(plain.crop(box).tobytes())) < len(set(noted.crop(box).tobytes()))
