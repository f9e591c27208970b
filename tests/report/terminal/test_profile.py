"""The table of a profile and its pictures, of a made-up GPU."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console
from support.runs import made_up_profile
from support.wording import wording

from specbench.hardware.profile import Profile
from specbench.report.pictures.roofline import roofline, steps, write_pictures
from specbench.report.terminal.profile import milliseconds, profile_report, sentences


def shown(profile: Profile, columns: int = 80) -> str:
    console = Console(width=columns, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(profile_report(profile))
    return captured.get()


@pytest.mark.parametrize("columns", [80, 140])
def test_it_fits_and_nothing_is_cut(columns: int) -> None:
    text = shown(made_up_profile(contexts=(128, 512, 2048, 8192, 32768, 65536, 131072)), columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    for context in (128, 512, 2048, 8192, 32768, 65536, 131072):
        assert f" {context} " in text.replace("\n", " \n")


def test_ceilings_and_every_step_are_in_the_table() -> None:
    lines = [line.split() for line in shown(made_up_profile()).splitlines()]
    assert ["read", "4.2", "TB/s", "4.8", "TB/s", "88%"] in lines
    assert ["matrix", "product,", "bfloat16", "710", "TFLOP/s", "990", "TFLOP/s", "72%"] in lines
    without = [line.split() for line in shown(made_up_profile(gpu=None, datasheet=None)).splitlines()]
    assert ["read", "4.2", "TB/s", "–", "–"] in without
    profile = made_up_profile()
    lines = [line.split() for line in shown(profile).splitlines()]
    for rows, point in profile.curve(512).items():
        (line,) = [line for line in lines if line[:1] == [str(rows)] and len(line) == 8]
        assert line[2] == milliseconds(point.seconds)
        assert line[6] == f"{point.seconds / profile.curve(512)[1].seconds:.2f}"
    several = [line for line in lines if line[:1] == ["16"] and len(line) == 6]
    expected = [milliseconds(profile.curve(512, slots)[16].seconds) for slots in (1, 2, 4, 8, 16)]
    assert several == [["16", *expected]]


def test_the_budget_is_a_sentence_and_a_range_in_the_table() -> None:
    profile = made_up_profile()
    knee, free = sentences(profile)
    assert knee == f"Knee: 169 FLOPs per byte, which a step reaches with {profile.knee.rows} rows (context 512)."
    one, most = (milliseconds(profile.curve(512)[rows].seconds) for rows in (1, 96))
    assert free == (
        f"Free rows: up to 96 rows cost at most 10% over one (context 512: {most} ms, one row {one} ms; 128 cost more)."
    )
    none = made_up_profile(free_rows=[{"context": 512, "rows": 1, "below": 2, "tolerance": 0.1}])
    assert sentences(none)[1].startswith("Free rows: none. Every step of more rows that was measured costs over 10%")
    assert wording(sentences(made_up_profile(knee={"intensity": 169.0, "rows": None}))[0])
    found = [(128, 1, 2), (512, 96, 128), (2048, 512, None)]
    ranges = [{"context": c, "rows": rows, "below": below, "tolerance": 0.1} for c, rows, below in found]
    (line,) = [
        line.split() for line in shown(made_up_profile(free_rows=ranges)).splitlines() if line.startswith("free")
    ]
    assert line == ["free", "1", "96–127", "512+", "–", "–"]


def test_what_was_left_out_is_named_with_its_reason() -> None:
    left = [(64, 8192, 1, "time"), (16, 8192, 1, "time"), (1, 512, 16, "memory"), (512, 512, 1, "model")]
    names = ("rows", "context", "slots", "why")
    text = " ".join(shown(made_up_profile(left_out=[dict(zip(names, one, strict=True)) for one in left])).split())
    assert wording(text)
    assert "Left out" not in shown(made_up_profile())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2e-5, "0.012"), (1.23456e-3, "1.23"), (9.999e-3, "10.0"), (0.0123, "12.3"), (0.0999, "99.9"), (1.234, "1234")],
)
def test_milliseconds_have_three_digits(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def texts(figure: Any) -> list[str]:
    (axes,) = figure.axes
    legend = axes.get_legend()
    return [text.get_text() for text in (*axes.texts, *(legend.get_texts() if legend else ()))]


def test_pictures_show_ceilings_knee_contexts_and_budget() -> None:
    profile = made_up_profile()
    figure = roofline(profile)
    said = texts(figure)
    assert f"{profile.knee.rows}" in said
    assert {"1 row", "2", "16", "512"} <= set(said)
    assert wording("\n".join(said))
    (axes,) = figure.axes
    base = next(line for line in axes.lines if line.get_label() == "rows of one sequence, 512 cached tokens")
    assert np.size(base.get_xdata()) == len(profile.curve(512))
    ceiling = next(line for line in axes.lines if str(line.get_label()).startswith("measured ceilings"))
    # No step can lie above its ceilings: here each takes a tenth more than its bound.
    under = np.interp(np.log(base.get_xdata()), np.log(ceiling.get_xdata()), np.log(ceiling.get_ydata()))
    assert (np.log(base.get_ydata()) < under).all()
    assert not any("datasheet" in text for text in texts(roofline(made_up_profile(gpu=None, datasheet=None))))
    profile = made_up_profile()
    figure = steps(profile)
    said = texts(figure)
    assert said[: len(profile.contexts)] == [f"{context} cached tokens" for context in profile.contexts]
    (axes,) = figure.axes
    assert sum(line.get_linestyle() == "--" and np.size(line.get_xdata()) > 0 for line in axes.lines) == 5


def test_no_tick_is_in_powers_of_ten_and_one_point_can_be_drawn(tmp_path: Path) -> None:
    for figure in (roofline(made_up_profile()), steps(made_up_profile())):
        figure.canvas.draw()
        (axes,) = figure.axes
        said = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        assert "1 P" in said or "20" in said
        assert not any("e" in text or "$" in text for text in said)
    profile = made_up_profile(contexts=(512,), slots=())
    write_pictures(made_up_profile(contexts=(512,), slots=(), points=profile.points[:1], free_rows=[]), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"roofline.png", "steps.png"}


def test_pictures_have_something_on_them_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    for folder in (once, again):
        folder.mkdir()
        write_pictures(made_up_profile(), folder)
    for name in ("roofline.png", "steps.png"):
        assert (once / name).read_bytes() == (again / name).read_bytes()
        image = imread(once / name)
        assert image.shape[0] > 500
        assert image.shape[1] > 1000
        assert image[..., :3].std() > 0.05
