"""End to end: what a reader waits for, first token and whole answer, and the memory that a method decodes in."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.tables.figures import name, number, speedup
from specbench.results.summary_schema import Memory, MethodSummary

_SAID = (
    "TTFT: time to the first token. latency: time to the last token. Both are medians over requests; × are AR's "
    "seconds over "
    "the method's, pooled over all requests, with their 95% intervals."
)


def end_to_end(rows: Sequence[MethodSummary]) -> RenderableType:
    """The table of a run's methods."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("end to end", min_width=6, overflow="fold")
    table.add_column("TTFT ms", justify="right", no_wrap=True)
    table.add_column("× TTFT", no_wrap=True)
    table.add_column("latency s", justify="right", no_wrap=True)
    table.add_column("× latency", no_wrap=True)
    known = [row.memory for row in rows if row.memory]
    if known:
        table.add_column("MB", justify="right", no_wrap=True)
    for row in rows:
        of_memory = [_megabytes(row.memory)] if known else []
        table.add_row(
            name(row),
            number(row.ttft_median_s and 1e3 * row.ttft_median_s, 1),
            "1" if row.baseline else speedup(row.ttft_speedup),
            number(row.latency_median_s, 2),
            "1" if row.baseline else speedup(row.e2e_speedup),
            *of_memory,
        )
    said = [_SAID, memory_line(known)] if known else [_SAID]
    return Group(table, *(Text(line, style="dim") for line in said))


def memory_line(known: Sequence[Memory]) -> str:
    """What the memory of a run's methods is made of."""
    weights, cache = known[0].weight_bytes, known[0].cache_bytes
    return (
        f"MB: what a method decodes in, {weights / 1e6:.0f} of weights, {cache / 1e6:.0f} of KV cache for all "
        "sequences, and of its draft model or head."
    )


def _megabytes(memory: Memory | None) -> str:
    return "–" if memory is None else f"{memory.total / 1e6:.0f}"
