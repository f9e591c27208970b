"""Tables of a profile: ceilings, step times, and the number of nearly free rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specbench.analysis import engine_line
from specbench.hardware import FreeRows, LeftOut, Profile, StepPoint, step_rows
from specbench.report.document import NOTHING, Block, Cell, Column, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.run_title import RunTitle, model_name

_A_TABLE = 5  # contexts per table, which fit 80 columns
_WHY = {
    "time": "for lack of time (--seconds)",
    "memory": "for lack of memory",
    "model": "because the model has fewer positions",
}


_LEGEND = (
    "of bound: the least time that the measured ceilings allow, divided by the step's time. It counts weights, KV "
    "cache and matrix products, but no activations."
)


def profile_report(profile: Profile) -> list[Block]:
    """The tables and sentences of a profile, for a terminal of 80 columns."""
    blocks: list[Block] = [profile_title(profile).over_tables(), _ceilings(profile)]
    contexts = profile.contexts
    blocks += [step_times(profile, contexts[at : at + _A_TABLE]) for at in range(0, len(contexts), _A_TABLE)]
    if any(point.slots > 1 for point in profile.points):
        blocks.append(_slots(profile))
    blocks.append(Words(sentences(profile)))
    left = [*_left_out(profile.left_out)]
    return [*blocks, Words(left, "notes")] if left else blocks


def profile_title(profile: Profile) -> RunTitle:
    """Title of a profile: model, device and engine."""
    device, engine = profile.environment["device"], profile.engine
    name = device["name"] if device["kind"] != "cpu" else f"cpu ({profile.environment['cpu']['model'].strip()})"
    eager = f"; eager ({engine['why_eager']})" if engine.get("why_eager") else ""
    ran = f"{engine_line(engine)}; linears: {engine['linears']}{eager}"
    return RunTitle("step cost", model_name(profile.model.model_dump()), name, machine=[ran])


def sentences(profile: Profile) -> list[str]:
    """Sentences of a profile: the knee of the roofline, and how many rows are nearly free."""
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
                f"Free rows: up to {free.rows} rows cost at most {free.tolerance:.0%} more than one ({at}: "
                f"{most} ms, one row {one} ms{more})."
                if free.rows > 1
                else f"Free rows: none. Every measured step of more than one row costs over {free.tolerance:.0%} more "
                f"than a step of one row ({at}: {one} ms{more})."
            )
    return lines


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three digits: "0.123", "1.23", "12.3" or "1234"."""
    ms = 1e3 * seconds
    digits = next((digits for digits, most in ((3, 0.9995), (2, 9.995), (1, 99.95)) if ms < most), 0)
    return f"{ms:.{digits}f}"


def _ceilings(profile: Profile) -> Table:
    measured, sheet = profile.measured, profile.datasheet
    columns = [
        Column("ceiling", "ceiling", words=True), Column("measured", "measured"), Column("datasheet", "datasheet"),
        Column("reached", "reached"),
    ]  # fmt: skip
    bandwidth, peak = (sheet.bytes_per_s, sheet.flops_per_s) if sheet else (None, None)
    ceilings = (
        ("copy, read + write", measured.copy_bytes_per_s, bandwidth, "B"),
        ("read", measured.read_bytes_per_s, bandwidth, "B"),
        (f"matrix product, {profile.model.dtype}", measured.flops_per_s, peak, "FLOP"),
    )
    body = [
        Row([Cell(name), Cell(_rate(value, unit)), Cell(_rate(of, unit)), cell.share(value / of if of else None)])
        for name, value, of, unit in ceilings
    ]
    return Table("ceilings", "", columns, body)


def step_times(profile: Profile, contexts: Sequence[int], source: Source | None = None) -> Table:
    """Milliseconds by rows and context; at the base context also the cost relative to one row and to the bound."""
    base = profile.base_context
    curves = {context: profile.curve(context) for context in contexts}
    shares = {
        row["rows"]: row["share_of_bound"]
        for row in step_rows(profile)
        if (row["context_tokens"], row["slots"]) == (base, 1)
    }
    columns = [Column("rows", "rows"), *(Column(f"step_ms_context_{at}", f"{at}") for at in contexts)]
    if base in curves:
        over = f"over one: a step's time divided by that of one row; this and 'of bound' are at {base} cached tokens."
        columns.append(Column("over_one", "over one", only="terminal", note=over))
        columns.append(Column("share_of_bound", "of bound", only="terminal", note=_LEGEND))
    source = source or Source()
    name = "".join(source.runs)
    body = []
    for rows in sorted({rows for curve in curves.values() for rows in curve}):
        cells = [_ms(curve.get(rows)) for curve in curves.values()]
        if base in curves:
            point, one = curves[base].get(rows), curves[base].get(1)
            cells.append(cell.figure(point.seconds / one.seconds if point and one else None, 2))
            cells.append(cell.share(shares.get(rows)))
        body.append(Row([cell.count(rows), *cells], name, key=f"{rows} rows"))
    free = {found.context: Cell(_between(found)) for found in profile.free_rows}
    last = [Cell("free"), *(free.get(context, NOTHING) for context in contexts)]
    body.append(Row([*last, *[Cell("")] * (len(columns) - len(last))], only="terminal", strong=True))
    return Table("profile", "Milliseconds per step, by rows and cached tokens", columns, body, source)


def _slots(profile: Profile) -> Table:
    base = profile.base_context
    counts = sorted({point.slots for point in profile.points if point.context == base})
    curves = {slots: profile.curve(base, slots) for slots in counts}
    columns = [Column("rows", "rows"), *(Column(f"slots_{slots}", f"{slots}") for slots in counts)]
    title = f"Milliseconds per step, by number of sequences; {base} cached tokens each"
    body = [
        Row([cell.count(rows), *(_ms(curve.get(rows)) for curve in curves.values())])
        for rows in sorted({rows for slots, curve in curves.items() if slots > 1 for rows in curve})
    ]
    return Table("slots", title, columns, body)


def _left_out(cells: Sequence[LeftOut]) -> Iterator[str]:
    """What was not measured, one line per reason, grouped by context."""
    for why, text in _WHY.items():
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for each in cells:
            if each.why == why:
                groups[each.context, each.slots].append(each.rows)
        named = [
            f"{', '.join(map(str, sorted(rows)))} {'row' if rows == [1] else 'rows'} at context {context}"
            + (f" of {slots} sequences" if slots > 1 else "")
            for (context, slots), rows in sorted(groups.items())
        ]
        if named:
            yield f"Left out {text}: {'; '.join(named)}."


def _between(free: FreeRows) -> str:
    """From the largest row count measured as free to just below the smallest measured as not free, as "4–7"."""
    if free.below is None:
        return f"{free.rows}+"
    return f"{free.rows}–{free.below - 1}" if free.below > free.rows + 1 else f"{free.rows}"


def _ms(point: StepPoint | None) -> Cell:
    return Cell(milliseconds(point.seconds), 1e3 * point.seconds) if point else NOTHING


def _rate(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    prefix, factor = ("T", 1e12) if value >= 1e12 else ("G", 1e9)
    return f"{value / factor:.{1 if value < 100 * factor else 0}f} {prefix}{unit}/s"
