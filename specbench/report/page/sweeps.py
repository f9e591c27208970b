"""Sweeps and profiles in the report: their tables, their sentences, and the pictures that they call for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from specbench.report.charts import style
from specbench.report.charts.roofline import roofline, steps
from specbench.report.charts.sweep_charts import Picture, called_for, drawn_cells
from specbench.report.document import Block, Cell, Column, Figure, Row, Section, Source, Table, Words
from specbench.report.page import cells
from specbench.report.tables.step_cost import milliseconds, sentences
from specbench.report.tables.sweep import SHOWN, found, interval, ranked
from specbench.report.tables.sweep import sentences as said_of_cells
from specbench.results import BASELINE
from specbench.results.run_file import device_name

if TYPE_CHECKING:
    from specbench.hardware import Profile
    from specbench.sweeps import ReadSweep


#: Pictures of one sweep that are shown: each is a tenth of a megabyte, and nobody looks at the fortieth.
_PICTURES = 12

_SWEPT = (
    "tok/s and TPF as for runs; speedup over AR at the same concurrency on the same prompts, 95% paired bootstrap over "
    "prompts, or over blocks of prompts that were stepped together. best: the highest speedup; within noise: multiple "
    "comparisons with the best do not rule it out."
)


def sweep_section(name: str, sweep: ReadSweep) -> Section:
    """A sweep: its fastest cells at each concurrency, what can be said of them, and its pictures."""
    first = next(iter(sweep.runs.values()))
    caption = f"{first.config.model.name} {first.config.model.dtype} · {first.config.task.name}"
    caption += f" · {device_name(first.run)}"
    task = first.config.task
    under = " · ".join([caption, *([task.said] if task.taken else []), *([task.unverified] if task.unverified else [])])
    blocks: list[Block] = []
    if not sweep.finished:
        blocks.append(Words(["NOT COMPLETE: this sweep was broken off; its figures are of what there is."], "notes"))
    for _, at in sweep.cells.groupby("concurrency"):
        blocks.append(_table(name, at, int(at["concurrency"].iloc[0])))
        more = len(ranked(at)) - SHOWN
        lines = said_of_cells(at) + ([f"{more} slower cells are in the sweep's cells.csv."] if more > 0 else [])
        blocks += [Words(lines, "notes")] if lines else []
    blocks += _drawn(name, sweep.cells, caption)
    return Section(f"sweep-{name}", name, blocks, under=under)


def _table(name: str, at: pd.DataFrame, concurrency: int) -> Table:
    columns = [
        Column("cell", "cell", words=True), Column("set", "prompts of", words=True), Column("prompts", "prompts"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s"),
        Column("speedup", "speedup"), Column("rows_per_step", "rows"),
        Column("accuracy", "accuracy"), Column("found", "", words=True),
    ]  # fmt: skip
    plain, held_out = at[at["method"] == BASELINE], at[(at["set"] != "tuning") & (at["method"] != BASELINE)]
    body = [_row(name, row) for row in pd.concat([plain, ranked(at).head(SHOWN), held_out]).to_dict("records")]
    return Table(f"sweep c{concurrency}", f"Concurrency {concurrency}", columns, body, Source([name], _SWEPT))


def _row(name: str, row: Mapping[Any, Any]) -> Row:
    plain = row["method"] == BASELINE
    figures = [
        _figure(row, "tokens_per_forward", 2),
        _figure(row, "decode_tok_s", 1),
        Cell("1", 1.0) if plain else _with_interval(row, "speedup"),
        _figure(row, "rows_per_step", 0),
        Cell(f"{row['accuracy']:.0%}", row["accuracy"]) if pd.notna(row["accuracy"]) else cells.NOTHING,
        Cell(found(row)),
    ]
    head = [Cell(str(row["label"])), Cell(str(row["set"])), cells.count(int(row["prompts"]))]
    return Row([*head, *figures], name, str(row["label"]), strong=plain, key=f"{row['label']} / {row['set']}")


def _figure(row: Mapping[Any, Any], column: str, digits: int) -> Cell:
    return cells.figure(None if pd.isna(row[column]) else float(row[column]), digits)


def _with_interval(row: Mapping[Any, Any], column: str) -> Cell:
    if pd.isna(row[column]):
        return cells.NOTHING
    low, high = (None if pd.isna(row[f"{column}_{end}"]) else float(row[f"{column}_{end}"]) for end in ("low", "high"))
    return Cell(interval(row, column), float(row[column]), low, high)


def _drawn(name: str, table: pd.DataFrame, caption: str) -> Iterator[Block]:
    called = called_for(drawn_cells(table), caption)
    for picture in called[:_PICTURES]:
        yield _picture(name, picture)
    if len(called) > _PICTURES:
        yield Words([f"{len(called) - _PICTURES} further pictures lie in the sweep's folder."], "notes")


_TITLES = {"contour": "Over the options", "pareto": "Speed against right answers", "crossing": "Over concurrency"}


def _picture(name: str, picture: Picture) -> Figure:
    kind = picture.name.partition("-")[0]
    says = f"{_TITLES[kind]}: the figures of the table above, as a picture."
    content, source = style.png(picture.draw()), Source([name], _SWEPT)
    title = f"{_TITLES[kind]}: {picture.name}"
    return Figure(f"{name}-{picture.name}", title, content, says, source, wide=True)


def profile_section(name: str, profile: Profile) -> Section:
    """A profile: what it says, its step times, the roofline."""
    source = Source(
        [name],
        "Medians of measured steps. Bound: the longer of bytes over bandwidth and FLOPs over arithmetic, at the "
        "measured ceilings; weights, KV cache and matrix products, each byte once, no activations.",
    )
    with style.styled():
        drawn = {"roofline": style.png(roofline(profile)), "steps": style.png(steps(profile))}
    titles = {"roofline": "Roofline of a decoding step", "steps": "Step time over rows"}
    figures = [
        Figure(
            f"{name}-{kind}", titles[kind], content, f"{titles[kind]}; the table has the figures.", source, wide=True
        )
        for kind, content in drawn.items()
    ]
    device = device_name({"environment": profile.environment})
    under = f"{profile.model.name} {profile.model.dtype}{' (dummy weights)' if profile.model.dummy else ''} · {device}"
    blocks: list[Block] = [Words(sentences(profile)), _steps(name, profile, source), *figures]
    return Section(f"profile-{name}", name, blocks, under=under)


def _steps(name: str, profile: Profile, source: Source) -> Table:
    contexts = profile.contexts
    curves = {context: profile.curve(context) for context in contexts}
    columns = [Column("rows", "rows"), *(Column(f"step_ms_context_{context}", f"{context}") for context in contexts)]

    def took(rows: int, context: int) -> Cell:
        point = curves[context].get(rows)
        return Cell(milliseconds(point.seconds), 1e3 * point.seconds) if point else cells.NOTHING

    body = [
        Row([cells.count(rows), *(took(rows, context) for context in contexts)], name, key=f"{rows} rows")
        for rows in sorted({rows for curve in curves.values() for rows in curve})
    ]
    return Table("profile", "Milliseconds of a step, by rows and cached tokens", columns, body, source)
