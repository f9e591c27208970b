"""Further tables of a run: branch calibration, speed over the place in the answer and over a session, and its texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specbench.report.charts import cards, style
from specbench.report.document import Cell, Column, Figure, Row, Source, Table
from specbench.report.page import cells
from specbench.report.page.headline import withheld
from specbench.report.tables.figures import name as named
from specbench.report.tables.session import session_said
from specbench.report.tables.text_quality import CLOSING_LOOP, asked, compared_with, made_by_loops, share
from specbench.results.branches import BROKEN, KEPT
from specbench.results.degeneration import GRAMS

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results.summary_schema import TextFigures

_BRANCHES = (
    "Of up to eight trees a request: the path that takes the best-scored child each time. Gap: the sum of the "
    "log-probabilities that its drafter gave its tokens, less that under the target, in nats, at temperature 1."
)


def branch_tables(run: Run) -> list[Table]:
    """The table, folded; none where no method's drafts have scores."""
    columns = [
        Column("method", "method", words=True), Column("branches", "trees"), Column("tokens", "tokens"),
        Column("gap_median", "median gap"), Column("gap_mean", "mean gap"),
        Column("kept_share", f"under {KEPT:g} nats"), Column("broken_share", f"{BROKEN:g} nats or more"),
    ]  # fmt: skip
    body = []
    for row in run.rows:
        if found := row.branches:
            shares = [Cell(f"{share:.0%}", share) for share in (found.kept_share, found.broken_share)]
            figures = [cells.figure(value, 1) for value in (found.tokens, found.gap_median, found.gap_mean)]
            count = Cell(str(found.branches), found.branches)
            body.append(Row([Cell(row.method), count, *figures, *shares], run.id, row.method))
    title = "How well drafters' scores of their branches match the target"
    return [Table("branches", title, columns, body, Source([run.id], _BRANCHES), folded=True)] if body else []


_POSITIONS = (
    "Tokens after an answer's first, in windows of its length; a forward that kept tokens on both sides of an end is "
    "shared out. Speedup in a window: of the answers that reach it on both sides, with its 95% interval. So far: of "
    "their beginnings up to there, as a smaller token budget would have it."
)


def position_figures(run: Run) -> list[Figure]:
    """The curve of a run's methods; none where no answer has a second window."""
    shown = [row for row in run.rows if not withheld(run, row) and not row.simulated]
    curves = {named(row): [at for at in row.positions if at.speedup] for row in shown}
    curves = {label: found for label, found in curves.items() if len(found) > 1}
    if not curves:
        return []
    source = Source([run.id], _POSITIONS)
    columns = [
        Column("method", "method", words=True), Column("tokens", "tokens", words=True), Column("prompts", "prompts"),
        Column("tokens_per_forward", "TPF"), Column("speedup", "speedup"), Column("so_far", "so far"),
    ]  # fmt: skip
    body = []
    for label, found in curves.items():
        for at in found:
            window = f"{at.start + 1} to {at.end}"
            figures = [
                cells.count(at.prompts),
                cells.figure(at.tokens_per_forward, 2),
                cells.one_line(at.speedup),
                cells.one_line(at.so_far),
            ]
            body.append(Row([Cell(label), Cell(window), *figures], run.id, label, key=f"{label} / {window}"))
    title = "Speedup over the place in the answer"
    behind = Table("positions", title, columns, body, source)
    says = "; ".join(
        f"{label}: " + ", ".join(f"{at.speedup.value:.2f} up to {at.end}" for at in found if at.speedup)
        for label, found in curves.items()
    )
    name = f"{run.id}-positions"
    return [Figure(name, title, style.svg(cards.positions(curves), name, says), says, source, behind)]


def session_figures(run: Run) -> Iterator[Figure]:
    """The curve of a run's methods over its sessions; none of a run without chained problems."""
    shown = [row for row in run.rows if row.session and not withheld(run, row) and not row.simulated]
    curves = {named(row): row.session.windows_tok_s for row in shown if row.session and row.session.windows_tok_s}
    if not curves:
        return
    source = Source([run.id], f"{session_said(shown)} The picture: over all sessions that reach so far.")
    columns = [
        Column("method", "method", words=True), Column("problem", "problem"), Column("prompt_tokens", "context"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s"), Column("speedup", "speedup"),
    ]  # fmt: skip
    body, window = [], 0
    for row in shown:
        assert row.session
        window = row.session.window_tokens
        for at in row.session.turns:
            figures = [
                cells.count(at.turn),
                cells.figure(at.prompt_tokens, 0),
                cells.figure(at.tokens_per_forward, 2),
                cells.figure(at.decode_tok_s, 1),
                Cell("1", 1.0) if row.baseline else cells.one_line(at.speedup),
            ]
            body.append(Row([Cell(named(row)), *figures], run.id, row.method, key=f"{named(row)} / {at.turn}"))
        ends = [("average", row.session.average_tok_s), ("peak", row.session.peak_tok_s)]
        for word, speed in ends:
            figures = [Cell(word), cells.NOTHING, cells.NOTHING, cells.figure(speed, 1), cells.NOTHING]
            body.append(Row([Cell(named(row)), *figures], run.id, row.method, key=f"{named(row)} / {word}"))
    title = "Throughput over a session"
    behind = Table("session", title, columns, body, source)
    says = "; ".join(
        f"{named(row)}: average {cells.figure(row.session.average_tok_s, 1).text}, peak "
        f"{cells.figure(row.session.peak_tok_s, 1).text} tok/s"
        for row in shown
        if row.session
    )
    name = f"{run.id}-session"
    yield Figure(name, title, style.svg(cards.session(curves, window), name, says), says, source, behind)


def text_tables(run: Run) -> list[Table]:
    """The table, folded; none of a run whose acceptance was decided by lot."""
    columns = [
        Column("method", "method", words=True), Column("looping", "looping"), Column("loop_share", "of tokens"),
        *(Column(f"distinct_{n}", f"distinct-{n}") for n in GRAMS),
        Column("log_likelihood_per_token", "log-likelihood a token"), Column("agreement", "agrees"),
        Column("common_prefix_tokens", "common prefix"),
    ]  # fmt: skip
    body = [
        Row([Cell(row.method), *_cells(row.text, row.requests)], run.id, row.method) for row in run.rows if row.text
    ]
    config = run.config.model_dump()
    formula = (
        f"{CLOSING_LOOP} Of tokens: the share of all that loops take. distinct-n: different n-grams over all, mean of "
        f"answers. Log-likelihood: in nats, under {asked(config)} at temperature 1. agrees: positions with the token "
        f"of {compared_with(config)}, both running free; common prefix: tokens before the first other one, mean."
    )
    title = "What the texts are like"
    return (
        [Table("texts", title, columns, body, Source([run.id], formula), folded=True)]
        if body and not config["simulated"]
        else []
    )


def loop_notes(run: Run) -> list[str]:
    """The sentences of rows whose speed is told."""
    return [said for row in run.rows if not withheld(run, row) for said in made_by_loops(row)]


def _cells(text: TextFigures, requests: int) -> list[Cell]:
    def part(value: float | None) -> Cell:
        return cells.NOTHING if value is None else Cell(share(value), value)

    return [
        Cell(f"{text.looping}/{requests}", text.looping),
        part(text.loop_share),
        *(cells.figure(getattr(text, f"distinct_{n}"), 2) for n in GRAMS),
        cells.figure(text.log_likelihood_per_token, 2),
        part(text.agreement),
        cells.figure(text.common_prefix_tokens, 1),
    ]
