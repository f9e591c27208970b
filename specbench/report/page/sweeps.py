"""Report sections of sweeps and profiles: tables, notes and charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from specbench.report.charts import style
from specbench.report.charts.acceptance import acceptance_chart
from specbench.report.charts.roofline import roofline, steps
from specbench.report.charts.sweep_cells import drawn_cells
from specbench.report.charts.sweep_charts import Picture, called_for
from specbench.report.document import Block, Figure, Section, Source, Words
from specbench.report.tables.acceptance import curves_table
from specbench.report.tables.run_title import sweep_title
from specbench.report.tables.step_cost import profile_title, sentences, step_times
from specbench.report.tables.sweep import SWEPT, sweep_blocks
from specbench.sweeps import acceptance_curves

if TYPE_CHECKING:
    from specbench.hardware import Profile
    from specbench.sweeps import ReadSweep


#: Most charts of one sweep in a report; each takes about 0.1 MB.
_PICTURES = 12


def sweep_section(name: str, sweep: ReadSweep) -> Section:
    """Section of a sweep: the fastest configurations at each concurrency, notes, and charts."""
    first = next(iter(sweep.runs.values()))
    title = sweep_title({**first.config.model_dump(), "environment": first.run.get("environment")})
    blocks: list[Block] = []
    if not sweep.finished:
        blocks.append(Words(["NOT COMPLETE: this sweep was interrupted; figures cover the finished part."], "notes"))
    if sweep.head.get("acceptance"):
        curves = acceptance_curves(sweep)
        table = curves_table(curves, name)
        says = "Accepted length over the draft length; the table has the figures."
        drawn = style.png(acceptance_chart(curves, title.caption))
        picture = Figure(f"{name}-acceptance", table.title, drawn, says, table.source, wide=True)
        return Section(f"sweep-{name}", name, [*blocks, table, picture], under=f"{title.task} · {title.line}")
    blocks += [
        *sweep_blocks(name, sweep.cells, first.config.task.model_dump()),
        *_drawn(name, sweep.cells, title.caption),
    ]
    return Section(f"sweep-{name}", name, blocks, under=f"{title.task} · {title.line}")


def _drawn(name: str, table: pd.DataFrame, caption: str) -> Iterator[Block]:
    called = called_for(drawn_cells(table), caption)
    for picture in called[:_PICTURES]:
        yield _picture(name, picture)
    if len(called) > _PICTURES:
        yield Words([f"{len(called) - _PICTURES} more charts are in the sweep's folder."], "notes")


_TITLES = {
    "contour": "Over the options", "pareto": "Speed against right answers", "crossing": "Over concurrency",
    "users": "At equal user experience", "over": "Speed and right answers over an option",
}  # fmt: skip


def _picture(name: str, picture: Picture) -> Figure:
    kind = picture.name.partition("-")[0]
    says = f"{_TITLES[kind]}: the figures of the table above as a chart."
    content, source = style.png(picture.draw()), Source([name], SWEPT)
    title = f"{_TITLES[kind]}: {picture.name}"
    return Figure(f"{name}-{picture.name}", title, content, says, source, wide=True)


def profile_section(name: str, profile: Profile) -> Section:
    """Section of a profile: findings, step times and roofline."""
    source = Source(
        [name],
        "Medians of measured steps. Bound: the larger of bytes / bandwidth and FLOPs / peak, at the measured ceilings. "
        "Counted are weights, KV cache and matrix products, each byte once; activations are left out.",
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
    title = profile_title(profile)
    blocks: list[Block] = [Words(sentences(profile)), step_times(profile, profile.contexts, source), *figures]
    return Section(f"profile-{name}", name, blocks, under=f"{title.model} · {title.device}")
