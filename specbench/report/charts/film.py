"""Write a race as an animated GIF or MP4 with ffmpeg.

Frames are drawn with Pillow in matplotlib's font, so that a film looks the same on every machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from specbench.common import EnvironmentRefused, UsageError, check_writable, write_failed
from specbench.report.answers.generation import Token, escaped
from specbench.report.answers.race import Lane, Race
from specbench.report.answers.race_view import counter
from specbench.results import BONUS, PREFILL

SUFFIXES = (".gif", ".mp4")

_WIDTH, _HEIGHT, _EDGE = 960, 540, 24
_A_SECOND = {".gif": 12, ".mp4": 25}  # frames
_LONGEST = 3000  # frames: two minutes of MP4
_LAST_S = 2.0  # seconds at the end of the film that show the result
_TEXT, _LINE, _HEAD = 15, 21, 20  # pixels
_GROUND, _INK, _FAINT, _RULE = "#161616", "#ececea", "#a0a09c", "#343433"
_DRAFTED, _BAR, _DONE = "#173a56", "#56b4e9", "#6fd3ae"
_GIF = "split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"


def write_film(race: Race, path: Path, speed: float) -> Path:
    """Write the film atomically to ``path``, which ends in one of :data:`SUFFIXES`.

    Raises UsageError for another suffix or more than :data:`_LONGEST` frames, and EnvironmentRefused if ffmpeg is
    missing or fails.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write a film to '{path.name}': it must end in .gif or .mp4")
    rate = _A_SECOND[suffix]
    moving = math.ceil(race.end_s / speed * rate)
    if moving > _LONGEST:
        least = math.ceil(100 * race.end_s * rate / _LONGEST) / 100
        raise UsageError(f"cannot write a film of {moving} frames: at most {_LONGEST}; use --speed {least:g} or more")
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise EnvironmentRefused("cannot write a film: ffmpeg is not installed; install it, or write the race as .html")
    check_writable(path.parent)
    times = [min(race.end_s, frame * speed / rate) for frame in range(moving)]
    times += [race.end_s] * math.ceil(_LAST_S * rate)
    coded = ["-vf", _GIF] if suffix == ".gif" else ["-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".film-") as scratch:
            draft = Path(scratch, f"film{suffix}")
            command = [
                ffmpeg, "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{_WIDTH}x{_HEIGHT}",
                "-r", str(rate), "-i", "-", *coded, str(draft),
            ]  # fmt: skip
            _encode(command, frames(race, times, speed))
            os.replace(draft, path)
    except OSError as error:
        raise write_failed(error, path) from error
    return path


def _encode(command: Sequence[str], pictures: Iterator[Image.Image]) -> None:
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr)
        assert process.stdin is not None
        try:
            for picture in pictures:
                process.stdin.write(picture.tobytes())
        except BrokenPipeError:
            pass  # ffmpeg reports the reason on stderr
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
        if code:
            stderr.seek(0)
            why = " ".join(stderr.read(2000).decode(errors="replace").split()) or f"exit code {code}"
            raise EnvironmentRefused(f"cannot write the film: ffmpeg failed ({why}); write the race as .html instead")


def frames(race: Race, times: Sequence[float], speed: float) -> Iterator[Image.Image]:
    """Pictures of the race at these times, in seconds after the start of each request."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    plain = ImageFont.truetype(folder / "DejaVuSansMono.ttf", _TEXT)
    head = ImageFont.truetype(folder / "DejaVuSansMono-Bold.ttf", _HEAD)
    lanes = [_Drawn(lane, at, len(race.lanes), plain, head) for at, lane in enumerate(race.lanes)]
    paced = "" if speed == 1 else f"   × {speed:g}"
    across = int((_WIDTH - 2 * _EDGE) / plain.getlength("m"))
    below = textwrap.wrap(escaped("; ".join(race.notes)), across, max_lines=2, placeholder=" …")
    for at_s in times:
        picture = Image.new("RGB", (_WIDTH, _HEIGHT), _GROUND)
        draw = ImageDraw.Draw(picture)
        draw.text((_EDGE, 14), f"{escaped(race.prompt)[:60]}   {at_s:6.2f} s{paced}", _FAINT, plain)
        for row, line in enumerate(below):
            draw.text((_EDGE, _HEIGHT - 46 + row * _LINE), line, _FAINT, plain)
        for lane in lanes:
            lane.draw(draw, at_s)
        yield picture


class _Drawn:
    """The position of a lane and of its characters in the picture."""

    def __init__(
        self, lane: Lane, at: int, count: int, plain: ImageFont.FreeTypeFont, head: ImageFont.FreeTypeFont
    ) -> None:
        self._lane, self._plain, self._head = lane, plain, head
        self._width = (_WIDTH - _EDGE * (count + 1)) // count
        self._left = _EDGE + at * (self._width + _EDGE)
        self._letter = plain.getlength("m")
        self._columns = max(8, int(self._width / self._letter))
        self._lines = (_HEIGHT - 174) // _LINE

    def draw(self, draw: ImageDraw.ImageDraw, at_s: float) -> None:
        now, left, right = self._lane.at(at_s), self._left, self._left + self._width
        name = escaped(self._lane.method)[: int(self._width / self._head.getlength("m"))]
        draw.text((left, 46), name, _DONE if now.done else _INK, self._head)
        draw.text((left, 76), counter(now)[: self._columns], _FAINT, self._plain)
        draw.rectangle((left, 102, right, 108), _RULE)
        draw.rectangle((left, 102, left + self._width * now.tokens / self._lane.tokens, 108), _BAR)
        tokens = self._lane.end_of(now.arrivals, self._columns * self._lines)
        for row, line in enumerate(_lines(tokens, self._columns)[-self._lines :]):
            for column, (letter, drafted, faint) in enumerate(line):
                x, y = left + column * self._letter, 120 + row * _LINE
                if drafted:
                    draw.rectangle((x, y, x + self._letter, y + _LINE - 3), _DRAFTED)
                draw.text((x, y), letter, _FAINT if faint else _INK, self._plain)


def _lines(tokens: Sequence[Token], columns: int) -> list[list[tuple[str, bool, bool]]]:
    """The answer in lines of ``columns`` characters: (character, drafted?, after the end of the answer?)."""
    lines: list[list[tuple[str, bool, bool]]] = [[]]
    for token in tokens:
        drafted = token.origin not in (BONUS, PREFILL)
        for number, part in enumerate(token.text.split("\n")):
            if number:
                lines.append([])
            for letter in escaped(part):
                if len(lines[-1]) == columns:
                    lines.append([])
                lines[-1].append((letter, drafted, token.beyond))
    return lines
