"""Play a race in the terminal: answers side by side as their tokens arrived, in real time, faster or slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specbench.report.answers.generation import Token, escaped
from specbench.report.answers.race import Lane, Moment, Race
from specbench.results import BONUS, PREFILL

_A_SECOND = 20  # pictures
_AROUND = 8  # lines around the answer
_MOMENTS = 5  # rows of the table that replaces the animation when output is not a terminal
_LEAST, _MOST = 4, 24  # lines of the answer


class Standing:
    """The race at one time: a column per method, with a counter above the end of the answer so far."""

    def __init__(self, race: Race, at_s: float, speed: float = 1.0) -> None:
        """``at_s`` is seconds after the start of each request; ``speed`` of them pass per second of real time."""
        self._race, self._at_s, self._speed = race, at_s, speed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self._race.lanes)
        width = max(1, (options.max_width - 2 * (count - 1)) // count)
        height = min(_MOST, max(_LEAST, options.size.height - _AROUND))
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for _ in self._race.lanes:
            grid.add_column(width=width, vertical="top")
        for row in zip(*(self._lane(console, lane, width, height) for lane in self._race.lanes), strict=True):
            grid.add_row(*row)
        paced = "" if self._speed == 1 else f", {self._speed:g} times real speed"
        clock = f"{escaped(self._race.prompt)} · {min(self._at_s, self._race.end_s):.2f} s{paced}"
        yield Group(Text(clock, "bold", overflow="ellipsis", no_wrap=True), Text(), grid)

    def _lane(self, console: Console, lane: Lane, width: int, height: int) -> list[RenderableType]:
        """Name, counter, bar and answer, with the same heights in all lanes."""
        now = lane.at(self._at_s)
        bar = ProgressBar(total=lane.tokens, completed=now.tokens, width=width)
        wrapped = _prose(lane.end_of(now.arrivals, width * height)).wrap(console, width)[-height:]
        lines = [*wrapped, *[Text()] * (height - len(wrapped))]
        name = Text(escaped(lane.method), "bold", overflow="ellipsis", no_wrap=True)
        if now.done:
            name.append(" · done", "green")
        return [name, Text(counter(now), "dim", overflow="ellipsis", no_wrap=True), bar, Group(*lines)]


def counter(now: Moment) -> str:
    """Tokens, forwards and speed so far, short enough for a narrow column."""
    speed = f" · {now.tok_s:.1f} tok/s" if now.tok_s else ""
    return f"{now.tokens} tokens · {now.forwards} forwards{speed}"


def play_race(
    console: Console,
    race: Race,
    speed: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Play a race and show its result; if output is not a terminal, print a table of a few moments instead."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            begun, passed = clock(), 0.0
            while passed < race.end_s:
                live.update(Standing(race, passed, speed), refresh=True)
                sleep(1 / _A_SECOND)
                passed = (clock() - begun) * speed
            live.update(Standing(race, race.end_s, speed), refresh=True)
    else:
        console.print(_moments(race))
        console.print()
        console.print(Standing(race, race.end_s))
    for line in (race.result, *(f"{note[0].upper()}{note[1:]}." for note in race.notes)):
        if line:
            console.print(Text(escaped(line), "dim"))


def race_data(race: Race) -> dict[str, Any]:
    """A race as JSON-ready data; texts are not escaped."""
    lanes = [
        {
            "method": lane.method,
            "tokens": lane.tokens,
            "end_s": lane.end_s,
            "arrivals": [
                {"at_s": arrival.at_s, "tokens": [{"text": t.text, "origin": t.origin} for t in arrival.tokens]}
                for arrival in lane.arrivals
            ],
        }
        for lane in race.lanes
    ]
    return {"prompt": race.prompt, "lanes": lanes, "notes": list(race.notes)}


def _moments(race: Race) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("after", justify="right", no_wrap=True)
    for lane in race.lanes:
        table.add_column(Text(escaped(lane.method)), overflow="fold")
    for number in range(1, _MOMENTS + 1):
        at_s = race.end_s * number / _MOMENTS
        table.add_row(f"{at_s:.2f} s", *(counter(lane.at(at_s)) for lane in race.lanes))
    return table


def _prose(tokens: list[Token]) -> Text:
    """An answer with its own line breaks; drafted tokens are coloured, tokens after the end are faint."""
    made = Text(overflow="fold")
    for token in tokens:
        piece = "\n".join(escaped(line) for line in token.text.split("\n"))
        own = token.origin in (BONUS, PREFILL)
        made.append(piece, "dim" if token.beyond else "default" if own else "green")
    return made
