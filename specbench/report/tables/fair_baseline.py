"""Other engines in a run's table: what they are, which of them failed, and our AR over theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.tables.figures import lossless, number, percent, plain, speedup
from specbench.results import RunConfig
from specbench.results.baseline import OverEngine, over_engines, where
from specbench.results.engines import EngineFacts
from specbench.results.schema import BASELINE
from specbench.results.summary_schema import MethodSummary, RunSummary


def engines(run: Mapping[str, Any], summary: RunSummary) -> list[RenderableType]:
    """The tables of a run's other engines, and which rows failed, ours too; none where it has neither."""
    rows = [row for row in summary.rows if row.other]
    failed = [row for row in summary.rows if row.failed]
    if not rows:
        return [Group(*map(_failed, failed))] if failed else []
    config = RunConfig.model_validate({name: run[name] for name in RunConfig.model_fields if name in run})
    found: list[RenderableType] = []
    if against := over_engines(config, summary):
        found.append(_fair(summary, against))
    if any(row.other and row.other.over_own_ar for row in rows):
        found.append(_over_own(rows))
    said = [Text(f"{row.method}: {described(row.other.facts)}", "dim") for row in rows if row.other and row.other.facts]
    return [*found, Group(*said, *map(_failed, failed))]


def _fair(summary: RunSummary, against: Sequence[OverEngine]) -> RenderableType:
    """Our AR over theirs."""
    ours = next(row for row in summary.rows if row.method == BASELINE)
    table = plain(["is our ar fair?", "our ar over it", "TTFT", "tok/s", f"{BASELINE}", "reads", f"{BASELINE} "])
    for each in against:
        table.add_row(
            each.row.method,
            ratio_of(each),
            number(each.ttft_ratio, 2),
            number(each.row.decode_tok_s, 1),
            number(ours.decode_tok_s, 1),
            number(each.row.bandwidth_share, 2),
            number(ours.bandwidth_share, 2),
        )
    said = [fairness(summary, against), "reads: share of the memory bandwidth. TTFT: their seconds divided by ours."]
    return Group(table, *(Text(line, style="dim") for line in said))


def ratio_of(each: OverEngine) -> str:
    """Our AR's speed over theirs, with its interval."""
    if each.low is None or each.high is None:
        return f"{each.ratio:.2f} (too few)"
    return f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"


def fairness(summary: RunSummary, against: Sequence[OverEngine]) -> str:
    """Whether our AR is a fair baseline, in words: within 5 % of the fastest other engine's, or where the time goes."""
    fastest = against[0]
    if summary.unsure:
        return f"Unsure, as this run was disturbed: {BASELINE} over {fastest.row.method} {ratio_of(fastest)}."
    if fastest.fair:
        return (
            f"Within 5% of the fastest other engine's plain decoding, or faster: {BASELINE} over "
            f"{fastest.row.method} {ratio_of(fastest)}."
        )
    because = where(summary.rows, fastest)
    return f"{BASELINE} is slower than {fastest.row.method}, {ratio_of(fastest)}{f': {because}' if because else ''}."


def _over_own(rows: Sequence[MethodSummary]) -> RenderableType:
    """Their speculation over their own plain decoding."""
    table = plain(["over its own ar", "of", "speedup", "lossless"], left=("of", "lossless"))
    for row in rows:
        if row.other and (own := row.other.over_own_ar):
            table.add_row(row.method, own.of, speedup(own.speedup), lossless(own.lossless))
    return table


def _failed(row: MethodSummary) -> Text:
    return Text(f"{row.method} failed after {row.requests} requests: {row.failed}", "red")


def described(facts: EngineFacts) -> str:
    """An engine in a line: version, where from, how it ran, with which weights and flags."""
    weights = facts.weights
    same = "the run's weights" if weights.verified else "weights unverified"
    digest = f", sha256 {weights.sha256[:12]}" if weights.sha256 else ""
    parts = [
        f"{facts.engine} {facts.version}" + (f" ({facts.package})" if facts.package else ""),
        facts.how,
        f"{facts.dtype}, {same}{digest}",
        *([] if facts.ids else ["sends and receives text, tokenised again"]),
        *({"forwards": [], "total": ["forwards counted in all"], "nothing": ["forwards not counted"]}[facts.counts]),
        *([" ".join(facts.command)] if facts.command else []),
    ]
    if facts.memory_bytes is not None:
        parts.append(f"{facts.memory_bytes / 1e6:.0f} MB")
    if facts.cores is not None:
        parts.append(f"{facts.cores:.1f} cores busy")
    if facts.idle_share is not None:
        idle = f"{percent(facts.idle_share)} of a core while other rows were timed"
        parts.append(f"stopped by signal, {idle}" if facts.stopped else idle)
    return " · ".join(parts)
