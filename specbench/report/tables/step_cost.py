"""A profile for the terminal: ceilings, step times, and the budget of rows that cost next to nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.hardware import Profile
from specbench.hardware.profile import FreeRows, LeftOut, step_rows
from specbench.hardware.roofline import StepPoint
from specbench.results.engine_line import engine_line

_A_TABLE = 5  # contexts beside each other in 80 columns
_WHY = {"time": "for time (--seconds)", "memory": "for memory", "model": "because the model takes fewer positions"}


def profile_report(profile: Profile) -> RenderableType:
    """All of a profile that fits a terminal of 80 columns."""
    model, device = profile.model, profile.environment["device"]
    name = device["name"] if device["kind"] != "cpu" else f"cpu ({profile.environment['cpu']['model'].strip()})"
    title = Text()
    title.append("step cost", style="bold")
    title.append(f" · {model.name} {model.dtype}{' (dummy weights)' if model.dummy else ''} · {name}\n")
    title.append(_engine(profile), style="dim")
    parts: list[RenderableType] = [title, Text(), _ceilings(profile), Text()]
    contexts = profile.contexts
    for at in range(0, len(contexts), _A_TABLE):
        parts += [*_steps(profile, contexts[at : at + _A_TABLE]), Text()]
    if any(point.slots > 1 for point in profile.points):
        parts += [*_slots(profile), Text()]
    parts += [Text(line) for line in sentences(profile)]
    parts += [Text(line, style="dim") for line in (*_left_out(profile.left_out), _LEGEND)]
    return Group(*parts)


_LEGEND = (
    "of bound: the least time that the measured ceilings allow, over the step's. It counts weights, cache and matrix "
    "products, no activations."
)


def sentences(profile: Profile) -> list[str]:
    """What a profile says in words: where the knee is, and how many rows are nearly free."""
    base = profile.base_context
    at = f"context {base}"
    knee = profile.knee
    reach = f"{knee.rows} rows" if knee.rows else "no number of rows"
    lines = [f"Knee: {knee.intensity:.3g} FLOPs per byte, which a step reaches with {reach} ({at})."]
    for free in profile.free_rows:
        if free.context == base:
            curve = profile.curve(base)
            most, one = milliseconds(curve[free.rows].seconds), milliseconds(curve[1].seconds)
            more = f"; {free.below} cost more" if free.below else ""
            lines.append(
                f"Free rows: up to {free.rows} rows cost at most {free.tolerance:.0%} over one ({at}: "
                f"{most} ms, one row {one} ms{more})."
                if free.rows > 1
                else f"Free rows: none. Every step of more rows that was measured costs over {free.tolerance:.0%} more "
                f"than one of one row ({at}: {one} ms{more})."
            )
    return lines


def milliseconds(seconds: float) -> str:
    """Three digits, as "0.123", "1.23", "12.3" or "1234"."""
    ms = 1e3 * seconds
    digits = next((digits for digits, most in ((3, 0.9995), (2, 9.995), (1, 99.95)) if ms < most), 0)
    return f"{ms:.{digits}f}"


def _engine(profile: Profile) -> str:
    why = profile.engine.get("why_eager")
    eager = f"; eager ({why})" if why else ""
    return f"{engine_line(profile.engine)}; linears: {profile.engine['linears']}{eager}"


def _ceilings(profile: Profile) -> Table:
    table = _plain("ceiling", "measured", "datasheet", "reached")
    measured, sheet = profile.measured, profile.datasheet
    for name, value in (("copy, read + write", measured.copy_bytes_per_s), ("read", measured.read_bytes_per_s)):
        stated = sheet.bytes_per_s if sheet else None
        table.add_row(name, _rate(value, "B"), _rate(stated, "B"), _percent(value, stated))
    stated = sheet.flops_per_s if sheet else None
    product = f"matrix product, {profile.model.dtype}"
    table.add_row(
        product, _rate(measured.flops_per_s, "FLOP"), _rate(stated, "FLOP"), _percent(measured.flops_per_s, stated)
    )
    return table


def _steps(profile: Profile, contexts: Sequence[int]) -> Sequence[RenderableType]:
    """Milliseconds by rows and context; at the base context also what a step costs beside one row and its bound."""
    base = profile.base_context
    curves = {context: profile.curve(context) for context in contexts}
    with_base = base in curves
    table = _plain("rows", *(f"{context}" for context in contexts), *(("over one", "of bound") if with_base else ()))
    title = "milliseconds a step, by cached tokens" + (f"; over one row and of bound: at {base}" if with_base else "")
    shares = {row["rows"]: row["share_of_bound"] for row in _of(profile, base)}
    for rows in sorted({rows for curve in curves.values() for rows in curve}):
        cells = [_ms(curve.get(rows)) for curve in curves.values()]
        if with_base:
            point, one = curves[base].get(rows), curves[base].get(1)
            cells += [f"{point.seconds / one.seconds:.2f}" if point and one else "–"]
            cells += [f"{shares[rows]:.0%}" if rows in shares else "–"]
        table.add_row(str(rows), *cells)
    free = {found.context: _between(found) for found in profile.free_rows}
    table.add_section()
    table.add_row("free", *(free.get(context, "–") for context in contexts), *(("", "") if with_base else ()))
    return Text(title, style="dim"), table


def _slots(profile: Profile) -> Sequence[RenderableType]:
    base = profile.base_context
    counts = sorted({point.slots for point in profile.points if point.context == base})
    curves = {slots: profile.curve(base, slots) for slots in counts}
    table = _plain("rows", *(f"{slots}" for slots in counts))
    title = f"milliseconds a step, by sequences stepped together; {base} cached tokens each"
    for rows in sorted({rows for slots, curve in curves.items() if slots > 1 for rows in curve}):
        table.add_row(str(rows), *(_ms(curve.get(rows)) for curve in curves.values()))
    return Text(title, style="dim"), table


def _left_out(cells: Sequence[LeftOut]) -> Iterator[str]:
    """What was not measured, a line for each reason; the rows of a context together."""
    for why, text in _WHY.items():
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for cell in cells:
            if cell.why == why:
                groups[cell.context, cell.slots].append(cell.rows)
        named = [
            f"{', '.join(map(str, sorted(rows)))} {'row' if rows == [1] else 'rows'} at context {context}"
            + (f" of {slots} sequences" if slots > 1 else "")
            for (context, slots), rows in sorted(groups.items())
        ]
        if named:
            yield f"Left out {text}: {'; '.join(named)}."


def _of(profile: Profile, context: int) -> list[dict[str, float]]:
    return [row for row in step_rows(profile) if (row["context_tokens"], row["slots"]) == (context, 1)]


def _between(free: FreeRows) -> str:
    """From what is known to be free to what may be, as "4–7": the next count that was measured is not."""
    if free.below is None:
        return f"{free.rows}+"
    return f"{free.rows}–{free.below - 1}" if free.below > free.rows + 1 else f"{free.rows}"


def _ms(point: StepPoint | None) -> str:
    return milliseconds(point.seconds) if point else "–"


def _rate(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    prefix, factor = ("T", 1e12) if value >= 1e12 else ("G", 1e9)
    return f"{value / factor:.{1 if value < 100 * factor else 0}f} {prefix}{unit}/s"


def _percent(value: float, of: float | None) -> str:
    return "–" if of is None else f"{value / of:.0%}"


def _plain(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
