"""Write a race as one self-contained HTML page: answers side by side as their tokens arrived.

The page allows only the script with the hash that it names, so that model text can never run. Without scripts, it shows
the whole answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from specbench.common import UsageError, check_writable, write_text_atomic
from specbench.report.answers.race import Lane, Race
from specbench.report.document import printable
from specbench.report.render.html import asset, template
from specbench.report.tables.run_title import Measured, run_title
from specbench.results import BONUS, PREFILL

PAGES = (".html", ".htm")
_SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # choices on the page


def write_race(race: Race, run: Measured, path: Path, speed: float = 1.0) -> Path:
    """Write a race as .html page or as .gif or .mp4 film, chosen by the suffix, at ``speed`` times real time."""
    if path.suffix.lower() not in PAGES:
        from specbench.report.charts.film import SUFFIXES, write_film

        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"cannot write a race to '{path.name}': --out must end in .html, {' or '.join(SUFFIXES)}")
        return write_film(race, path, speed)
    check_writable(path.parent)
    write_text_atomic(path, race_page(race, run, speed))
    return path


def race_page(race: Race, run: Measured, speed: float = 1.0) -> str:
    """The page of a race as text; equal races give equal bytes."""
    script = asset("race.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = template("race.html.jinja").render(
        race=race,
        under=run_title(run).line,
        speed=speed,
        speeds=sorted({*_SPEEDS, speed}),
        answers=["".join(t.text for arrival in lane.arrivals for t in arrival.tokens) for lane in race.lanes],
        style=asset("page.css", "race.css"),
        script=script,
        digest=digest,
        data=_data(race),
    )
    return printable(page)


def _data(race: Race) -> Markup:
    """The script's input as JSON, escaped so that it contains no tags."""
    found = {"end_s": round(race.end_s, 4), "lanes": [_lane(lane) for lane in race.lanes]}
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _lane(lane: Lane) -> dict[str, Any]:
    """Arrivals as [time, [[text, kind], …]]; kinds: 0 the target's own, 1 drafted, 2 after the answer's end."""
    arrivals = []
    for arrival in lane.arrivals:
        pieces = [
            [printable(token.text), 2 if token.beyond else int(token.origin not in (BONUS, PREFILL))]
            for token in arrival.tokens
        ]
        arrivals.append([round(arrival.at_s, 4), pieces])
    return {"arrivals": arrivals, "tokens": lane.tokens}
