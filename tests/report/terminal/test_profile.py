"""The table of a profile and its pictures, of a made-up GPU."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.runs import made_up_profile

from specbench.hardware.stored_profile import Profile
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.step_cost import milliseconds, profile_report


def shown(profile: Profile, columns: int = 80) -> str:
    console = Console(width=columns, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(render_terminal(profile_report(profile)))
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


def test_steps_left_out_are_listed_with_their_reason() -> None:
    left = [
        {"rows": rows, "context": 512, "slots": 1, "why": why} for rows, why in ((8, "time"), (4, "time"), (1, "model"))
    ]
    lines = shown(made_up_profile(left_out=left), 140).splitlines()
    assert "Left out for lack of time (--seconds): 4, 8 rows at context 512." in lines
    assert "Left out because the model has fewer positions: 1 row at context 512." in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2e-5, "0.012"), (1.23456e-3, "1.23"), (9.999e-3, "10.0"), (0.0123, "12.3"), (0.0999, "99.9"), (1.234, "1234")],
)
def test_milliseconds_have_three_digits(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
