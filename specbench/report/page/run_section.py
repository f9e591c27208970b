"""The section of one run: what its speed is made of, in tables and charts, and its answers as coloured tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specbench.analysis import check_run, disturbance_line
from specbench.report.charts import cards, style
from specbench.report.charts.rates import over_rates
from specbench.report.document import Block, Cell, Column, Figure, Row, Section, Source, Table, Words
from specbench.report.page.trajectories import rounds, traces, trajectories
from specbench.report.tables import cell
from specbench.report.tables.cell import name as named
from specbench.report.tables.columns import METHOD, PROMPTS, SPEEDUP, STEP_RATIO, TPF
from specbench.report.tables.contexts import context_table, session_turns
from specbench.report.tables.fair_baseline import engine_blocks
from specbench.report.tables.latency import load_sentences, load_table
from specbench.report.tables.notes import notes
from specbench.report.tables.run_parts import check_table, part_blocks
from specbench.report.tables.run_parts import phases as phase_table
from specbench.report.tables.run_table import withheld
from specbench.report.tables.run_title import run_title, simulated_title
from specbench.report.tables.text_quality import made_by_loops
from specbench.results import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

    from specbench.report.gathering import Run
    from specbench.results import MethodSummary


def run_section(run: Run) -> Section:
    """Everything about a run except its rows in the headline table."""
    shown = [row for row in run.rows if not withheld(run, row)]
    blocks: list[Block] = []
    if run.config.simulated:
        asked = {label: spec.model_dump() for label, spec in run.config.simulated.items()}
        blocks.append(Words([simulated_title(asked)], "warning"))
    if disturbed := disturbance_line(run.summary):
        blocks.append(Words([f"{disturbed[0].upper()}{disturbed[1:]}."], "warning"))
    if lines := load_sentences(run.summary):
        blocks.append(Words([f"{line[0].upper()}{line[1:]}." for line in lines]))
    blocks += [*engine_blocks(run), *_figures(run, shown)]
    blocks += [
        block for block in part_blocks(run, shown) if not (isinstance(block, Table) and block.only == "terminal")
    ]
    blocks += [*traces(run), *trajectories(run), *rounds(run)]
    config: dict[str, Any] = {**run.config.model_dump(), "environment": run.run.get("environment")}
    loops = [line for row in shown for line in made_by_loops(row)]
    if lines := [*loops, *notes(config, run.summary, alone=False)]:
        blocks.append(Words(lines, "notes"))
    blocks.append(check_table(run.id, check_run(run.run, run.config, run.summary)))
    return Section(f"run-{run.id}", f"Run {run.id}", blocks, under=run_title(run).line)


def _figures(run: Run, shown: list[MethodSummary]) -> Iterator[Figure]:
    if run.config.load:
        yield from _load(run, [row for row in shown if row.rates])
        shown = []  # figures of several rates together mean nothing
    if found := [factors for row in shown if (factors := _factors(row))]:
        yield _decomposition(run, found)
    yield from _positions(run, [row for row in shown if not row.simulated])
    yield from _contexts(run, [row for row in shown if row.contexts and not row.simulated])
    yield from _session(run, [row for row in shown if row.session and not row.simulated])
    if traced := [row for row in shown if row.phases]:
        yield _phases(run, traced)
    kept = {row.method: run.tallies[row.method].accepted_lengths for row in shown if not row.baseline}
    if kept := {method: counts for method, counts in kept.items() if counts.total()}:
        yield _accepted(run, kept)
    if drafted := {
        row.method: row.acceptance.positions for row in shown if row.acceptance and row.acceptance.positions
    }:
        yield _acceptance(run, drafted)
    scored = [row for row in shown if row.accuracy and row.decode_tok_s and not row.simulated]
    if len(scored) > 1:
        yield _against_accuracy(run, scored)


def _factors(row: MethodSummary) -> cards.Factors | None:
    if row.baseline or not (row.tokens_per_forward and row.step_ratio and row.speedup and row.speedup.value > 0):
        return None
    return cards.Factors(named(row), row.tokens_per_forward, row.step_ratio, row.speedup)


def _decomposition(run: Run, found: list[cards.Factors]) -> Figure:
    source = Source(
        [run.id],
        "speedup = TPF × step ratio. TPF: tokens per target forward after the prefill; step ratio: AR's seconds per "
        "forward divided by the method's. Diamond: speedup with its 95% interval.",
    )
    columns = [
        METHOD, TPF, STEP_RATIO, SPEEDUP, Column("prompts_median_speedup", "median of prompts"),
        Column("prompts_geometric_mean_speedup", "geometric mean of prompts"),
    ]  # fmt: skip
    body = [Row([Cell(f.label), *_factors_of(f)], run.id, f.label) for f in found]
    title = "What the speedup is made of"
    data = Table("decomposition", title, columns, body, source)
    says = "; ".join(
        f"{f.label}: {f.tokens_per_forward:.2f} × {f.step_ratio:.2f} = {f.speedup.value:.2f}" for f in found
    )
    return _card(run, "decomposition", cards.decomposition(found), says, data)


def _factors_of(found: cards.Factors) -> list[Cell]:
    each = found.speedup.per_prompt
    of_prompts = [each.median, each.geometric_mean] if each else [None, None]
    figures = [found.tokens_per_forward, found.step_ratio, found.speedup.value, *of_prompts]
    return [cell.figure(figure, 2) for figure in figures]


def _phases(run: Run, traced: list[MethodSummary]) -> Figure:
    steps = {row.method: {name: (row.phases or {}).get(f"{name}_s", 0.0) for name in PHASES} for row in traced}
    says = "Stacked bars: milliseconds by phase; the table has the figures."
    return _card(run, "phases", cards.phases(steps), says, phase_table(run.id, traced))


def _accepted(run: Run, kept: dict[str, Any]) -> Figure:
    source = Source(
        [run.id], "Share of a method's target forwards after the prefill that kept 1, 2, … tokens; mean = TPF."
    )
    found = {method: cards.shares(counts) for method, counts in kept.items()}
    heads = list(next(iter(found.values())))
    columns = [METHOD, *(Column(f"kept_{k}", cards.kept_word(k)) for k in heads)]
    body = [
        Row([Cell(method), *(cell.share(share) for share in spread.values())], run.id, method)
        for method, spread in found.items()
    ]
    title = "Tokens kept per forward"
    data = Table("accepted", title, columns, body, source)
    says = "Histograms of the tokens kept per forward; the table has the figures."
    return _card(run, "accepted", cards.accepted(kept), says, data)


def _acceptance(run: Run, drafted: dict[str, dict[int, float]]) -> Figure:
    """Acceptance per draft position: a curve per method."""
    last = min(cards.POSITIONS, max(max(found) for found in drafted.values()))
    source = Source(
        [run.id],
        "Share of the drafts whose token at this position was accepted; a position of a tree is a depth. All drafts "
        f"count, also shorter ones. Up to position {last}; the sum over all positions is the accepted length without "
        "the bonus token.",
    )
    columns = [METHOD, *(Column(f"acceptance_at_{at}", str(at)) for at in range(1, last + 1))]
    body = [
        Row([Cell(label), *(cell.share(found.get(at, 0.0)) for at in range(1, last + 1))], run.id, label)
        for label, found in drafted.items()
    ]
    data = Table("acceptance-positions", "Acceptance per draft position", columns, body, source)
    says = "; ".join(f"{label}: {found[1]:.0%} at the first position" for label, found in drafted.items())
    return _card(run, "acceptance-positions", cards.acceptance(drafted), says, data)


def _against_accuracy(run: Run, scored: list[MethodSummary]) -> Figure:
    metric = run.config.task.metric or "right answers"
    formula = f"tok/s: decoded tokens per decode second. {metric}: right answers, with Wilson's 95% interval."
    source = Source([run.id], formula)
    methods = {row.method: (row.decode_tok_s or 0.0, row.accuracy) for row in scored if row.accuracy}
    says = "; ".join(f"{label}: {speed:.1f} tok/s, {right.value:.0%}" for label, (speed, right) in methods.items())
    name = f"{run.id}-accuracy"
    drawn = style.svg(cards.scatter(methods, metric), name, says)
    # Its figures are the headline table's own.
    return Figure(name, "Speed against accuracy", drawn, says, source)


def _card(run: Run, kind: str, drawn: Drawn, says: str, data: Table) -> Figure:
    name = f"{run.id}-{kind}"
    return Figure(name, data.title, style.svg(drawn, name, says), says, data.source, data)


_POSITIONS = (
    "Tokens after an answer's first token, in windows; a forward whose tokens span two windows is divided between "
    "them. Speedup in a window: over the prompts for which both AR's and the method's answer reach it, with its 95% "
    "interval. So far: from the first token to the end of the window, as a smaller token budget would give."
)


def _positions(run: Run, shown: list[MethodSummary]) -> Iterator[Figure]:
    """Speedup by position, a curve per method; no chart if no answer reaches a second window."""
    curves = {named(row): [at for at in row.positions if at.speedup] for row in shown}
    curves = {label: found for label, found in curves.items() if len(found) > 1}
    if not curves:
        return
    source = Source([run.id], _POSITIONS)
    columns = [
        METHOD, Column("tokens", "tokens", words=True), PROMPTS, TPF, SPEEDUP, Column("so_far", "so far"),
    ]  # fmt: skip
    body = []
    for label, found in curves.items():
        for at in found:
            window = f"{at.start + 1} to {at.end}"
            figures = [
                cell.count(at.prompts),
                cell.figure(at.tokens_per_forward, 2),
                cell.one_line(at.speedup),
                cell.one_line(at.so_far),
            ]
            body.append(Row([Cell(label), Cell(window), *figures], run.id, label, key=f"{label} / {window}"))
    title = "Speedup by position in the answer"
    data = Table("positions", title, columns, body, source)
    says = "; ".join(
        f"{label}: " + ", ".join(f"{at.speedup.value:.2f} up to {at.end}" for at in found if at.speedup)
        for label, found in curves.items()
    )
    yield _card(run, "positions", cards.positions(curves), says, data)


def _contexts(run: Run, shown: list[MethodSummary]) -> Iterator[Figure]:
    """Speedup, tokens per forward and step time over the prompt's length; no chart if all are of one length."""
    if shown:
        says = "; ".join(
            f"{named(row)}: " + ", ".join(f"{at.speedup.value:.2f} up to {at.end}" for at in row.contexts if at.speedup)
            for row in shown
            if not row.baseline
        )
        curves = {named(row): row.contexts for row in shown}
        yield _card(run, "contexts", cards.contexts(curves), says, context_table(run, shown))


def _load(run: Run, shown: list[MethodSummary]) -> Iterator[Figure]:
    """Latency and goodput over the rate of arrivals; no chart for a closed loop."""
    if shown:
        says = ". ".join(load_sentences(run.summary)) or "Latency over the rate of arrivals."
        drawn = over_rates({named(row): row.rates for row in shown})
        table, name = load_table(run, shown), f"{run.id}-load"  # the table itself is among the section's tables
        yield Figure(name, table.title, style.svg(drawn, name, says), says, table.source)


def _session(run: Run, shown: list[MethodSummary]) -> Iterator[Figure]:
    """Throughput over sessions, a curve per method; no chart without chained problems."""
    curves = {named(row): row.session.windows_tok_s for row in shown if row.session and row.session.windows_tok_s}
    if not curves:
        return
    speeds = {
        named(row): [cell.figure(speed, 1).text for speed in (row.session.average_tok_s, row.session.peak_tok_s)]
        for row in shown
        if row.session
    }
    says = "; ".join(f"{label}: average {average}, peak {peak} tok/s" for label, (average, peak) in speeds.items())
    window = next(row.session.window_tokens for row in reversed(shown) if row.session)
    yield _card(run, "session", cards.session(curves, window), says, session_turns(run, shown))
