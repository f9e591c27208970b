"""Further tables of a run: latency, memory, accuracy, groups, phases, projections, GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.analysis import GRADES
from specbench.report.document import DASH, NOTHING, Block, Cell, Column, Medium, Row, Source, Table, Tone, Words
from specbench.report.tables import cell
from specbench.report.tables.acceptance import acceptance_table
from specbench.report.tables.cell import name as named
from specbench.report.tables.columns import (
    METHOD,
    PROMPTS,
    SPEEDUP,
    TOK_S,
    TPF,
    VERDICT,
    Filled,
    cells_of,
    figure,
    on,
)
from specbench.report.tables.contexts import context_table, session_table
from specbench.report.tables.latency import end_to_end, load_table, percentile_table
from specbench.report.tables.text_quality import text_tables
from specbench.results import BROKEN, KEPT, PHASES, judge_remarks

if TYPE_CHECKING:
    from specbench.analysis import RunCheck
    from specbench.results import MethodSummary, Rate

_OPEN = 10  # rows; longer tables below the headline are folded


def part_blocks(run: Any, rows: Sequence[MethodSummary]) -> Iterator[Block]:
    """The tables for which the run has figures; ``rows`` are those whose speed may be shown."""
    every: Sequence[MethodSummary] = run.summary.rows
    if run.config.load:
        yield load_table(run, rows)
    if any(row.ttft_speedup for row in every) and run.config.load is None:
        yield end_to_end(run, rows)
    if any(row.ttft_s for row in rows) and run.config.load is None:  # not of several rates together
        yield percentile_table(run.id, rows)
    if any(row.contexts for row in rows) and run.config.load is None:
        yield context_table(run, [row for row in rows if row.contexts], "terminal")
    if any(row.session for row in rows):
        yield session_table(run, rows)
    yield from text_tables(run)
    if any(row.acceptance for row in every):
        yield acceptance_table(run)
    yield from _branches(run)
    graded = {row.method: row.lossless for row in every if row.lossless and row.lossless.rates}
    if any(lossless.verdict != "exact" for lossless in graded.values()):
        yield grades(run.id, {method: lossless.rates for method, lossless in graded.items()})
    if any(row.metrics for row in every):
        yield _metrics(run)
    if any(row.measures or row.draft_forwards for row in every):
        yield _measures(run)
    if any(row.groups for row in every):
        yield _groups(run, [row for row in rows if row.groups])
    for judged in run.judged:
        yield from judgment_report(judged, run.id)
    for content in run.projections:
        yield projection_table(content, run.id, [row.method for row in every if row not in rows])
    if any(row.phases for row in every):
        yield phases(run.id, [row for row in rows if row.phases], "terminal")
    if any(row.gpu for row in every):
        yield _gpu(run)


_STATES: Mapping[str, tuple[str, Tone]] = {
    "misleads": ("misleads", "bad"), "unknown": ("not known", ""), "fine": ("fine", "good")
}  # fmt: skip


def check_table(run_id: str, checks: Sequence[RunCheck]) -> Table:
    """The ways in which a run may mislead, those that do first."""
    columns = [Column(key, key, words=True) for key in ("check", "state", "evidence")]
    columns.append(Column("advice", "what to do", words=True))
    order = sorted(checks, key=lambda check: list(_STATES).index(check.state))
    body = [
        Row(
            [Cell(each.name), Cell(word, tone=tone), Cell(each.evidence), Cell(each.advice)],
            run_id,
            only="page" if each.state == "fine" else "",
        )
        for each in order
        for word, tone in [_STATES[each.state]]
    ]
    misleading = sum(each.state == "misleads" for each in checks)
    title = f"How this run may mislead: {misleading} of {len(checks)} checks"
    fine = ", ".join(each.name for each in order if each.state == "fine")
    formula = f"Fine: {fine or 'none'}. From the run's own files."
    return Table("checks", title, columns, body, Source([run_id], formula), short="check")


def _branches(run: Any) -> Iterator[Table]:
    """How well the drafters' scores match the target; no table if no method scores its drafts."""
    columns = [
        Filled("branches", "trees", get=lambda found: cell.count(found.branches)), figure("tokens", "tokens", 1),
        figure("gap_median", "median gap", 1), figure("gap_mean", "mean gap", 1),
        Filled("kept_share", f"under {KEPT:g} nats", get=lambda found: cell.share(found.kept_share)),
        Filled("broken_share", f"{BROKEN:g} nats or more", get=lambda found: cell.share(found.broken_share)),
    ]  # fmt: skip
    body = [
        Row([Cell(row.method), *cells_of(columns, row.branches)], run.id, row.method)
        for row in run.summary.rows
        if row.branches
    ]
    formula = (
        "For up to eight trees per request: the path of best-scored children. Gap: its log-probability under the "
        "drafter minus that under the target, summed over its tokens, in nats, at temperature 1."
    )
    title = "How well drafters' scores of their branches match the target"
    if body:  # the terminal shows a sentence instead
        yield Table("branches", title, [METHOD, *columns], body, Source([run.id], formula), folded=True, only="page")


def grades(run_id: str, graded: Mapping[str, Mapping[str, Rate]]) -> Table:
    """Number and share of prompts of each grade, by method."""
    columns = [METHOD, *(Column(f"{grade}_prompts", grade) for grade in GRADES)]
    body = [
        Row([Cell(method), *(cell.rate(rates.get(grade)) for grade in GRADES)], run_id, method)
        for method, rates in graded.items()
    ]
    source = Source([run_id], "Graded prompts; a prompt has the grade of its worst answer. 95% Wilson intervals.")
    return Table("lossless", "How many prompts have AR's text", columns, body, source, short="AR's text")


def _metrics(run: Any) -> Table:
    rows = run.summary.rows
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    first = run.config.task.metric or "score"
    columns = [METHOD, Column(first, first), *(Column(name, name) for name in names)]
    body = [
        Row([Cell(row.method), *map(cell.accuracy, [row.accuracy, *(row.metrics.get(n) for n in names)])], run.id,
            row.method) for row in rows
    ]  # fmt: skip
    source = Source([run.id], "Right answers out of the scored ones, for each of the task's metrics.")
    zeros = not any(score and score.passed for row in rows for score in row.metrics.values())
    return Table(
        "metrics", "Right answers by every metric", columns, body, source, folded=len(body) > _OPEN,
        short="right answers", only="page" if zeros else "",
    )  # fmt: skip


def _measures(run: Any) -> Table:
    rows = run.summary.rows
    descriptions = {name: what for spec in run.config.methods for name, what in spec.measures.items()}
    names = list(dict.fromkeys(name for row in rows for name in row.measures))
    drafting = any(row.draft_forwards for row in rows)
    columns = [METHOD, *(Column(name, name.replace("_", " ")) for name in names)]
    columns += [Column("draft_forwards_per_forward", "draft forwards")] if drafting else []
    body = []
    for row in rows:
        if row.measures or row.draft_forwards:
            figures = [cell.figure(row.measures.get(name), 2) for name in names]
            each = row.draft_forwards / row.target_forwards if row.target_forwards else None
            figures += [cell.figure(each, 2)] if drafting else []
            body.append(Row([Cell(row.method), *figures], run.id, row.method))
    meanings = [
        f"{name.replace('_', ' ')}: {descriptions[name]}, mean over requests." for name in names if name in descriptions
    ]
    meanings += ["draft forwards: forwards of the draft model per target forward."] if drafting else []
    title, source = "The methods' own figures", Source([run.id], " ".join(meanings))
    return Table("measures", title, columns, body, source, folded=len(body) > _OPEN, only="page")


def _groups(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """Figures of each group of categories, with Spec-Bench's own figures in the last columns."""
    theirs = [figure("specbench_mat", "MAT*", 2), figure("specbench_speedup", "speedup*", 2)]
    columns = [
        Column("group", "group", words=True, once=True), METHOD, PROMPTS, TPF, *on("page", TOK_S), SPEEDUP,
        *on("page", VERDICT), *theirs,
    ]  # fmt: skip
    body = []
    for group in dict.fromkeys(group for row in rows for group in row.groups):
        for row in rows:
            if found := row.groups.get(group):
                over = [cell.one_line(found.speedup), cell.verdict(found.speedup)]
                cells = [
                    Cell(group), Cell(row.method, line=named(row)), *cells_of([PROMPTS, TPF, TOK_S], found),
                    *([cell.ONE, Cell("")] if row.baseline else over), *cells_of(theirs, found),
                ]  # fmt: skip
                only: Medium = "page" if row.baseline and len(rows) > 1 else ""
                key = f"{group} / {row.method}"
                body.append(Row(cells, run.id, row.method, strong=row.baseline, key=key, only=only))
    formula = (
        "As in the headline table, over the prompts of each group. * as defined by Spec-Bench: prefill included, mean "
        "of the prompts' speeds, AR without stop tokens."
    )
    return Table("groups", "By group of categories", columns, body, Source([run.id], formula), short="group")


def judgment_report(judged: Mapping[str, Any], run_id: str = "") -> Iterator[Block]:
    """Mean ratings of one judge by category and method, the number of rated answers, and caveats."""
    methods, judge = judged["methods"], judged["judge"]
    columns = [Column("score", "score", words=True), *(Column(method, method) for method in methods)]
    body = []
    for kind, word in (("categories", ""), ("turns", "turn ")):
        for name in dict.fromkeys(name for found in methods.values() for name in found[kind]):
            scores = [_score(found[kind].get(name)) for found in methods.values()]
            body.append(Row([Cell(f"{word}{name}"), *scores], run_id))
    body.append(Row([Cell("all"), *(_score(found) for found in methods.values())], run_id, strong=True))
    how = {"local": "run here", "endpoint": f"at {judge['endpoint']}", "import": "imported"}[judge["kind"]]
    where = "" if run_id else f" ({how})"  # a page may be published, so it names no host
    formula = f"Mean rating, 1 to 10, by {judge['id']}{where}, and the number of rated answers."
    yield Table("judged", f"Judged by {judge['id']}", columns, body, Source([run_id], formula), short="score")
    if remarks := judge_remarks(judged):
        yield Words(remarks, "warning")


def _score(score: Mapping[str, Any] | None) -> Cell:
    if score is None:
        return NOTHING
    rated, asked = score["rated"], score["judged"]
    count = f"({rated if rated == asked else f'{rated}/{asked}'})"
    if score["score"] is None:
        return replace(NOTHING, line=f"{DASH} {count}")
    text = f"{score['score']:.2f}"
    line = f"{text} {count}"
    return Cell(text, score["score"], under=f"{rated}/{asked}", line=line)


def projection_table(content: Mapping[str, Any], run_id: str = "", hidden: Sequence[str] = ()) -> Table:
    """One ``projection-GPU.json``: predicted speeds on another device."""
    columns = [METHOD, TOK_S, SPEEDUP]
    body = []
    for label, found in content["rows"].items():
        if label not in hidden:
            over = cell.banded(found["speedup"], 2) if "speedup" in found else replace(NOTHING, line="1")
            body.append(Row([Cell(label), cell.banded(found["decode_tok_s"], 0), over], run_id, label))
    formula = (
        f"A prediction from tokens per forward and step times measured on {content['device']} and the datasheet of "
        f"{content['gpu']}. Bands, between two assumptions: each step reaches the same share of its roofline bound "
        "there, or each step takes the same extra time beyond the bound. Drafting on the host is left out."
    )
    title = f"Projected onto {content['gpu']}, not measured"
    return Table(f"projected {content['gpu']}", title, columns, body, Source([run_id], formula))


def phases(run_id: str, rows: Sequence[MethodSummary], only: Medium = "") -> Table:
    """Median time of each phase of a step; host is everything except the forward."""
    columns = [METHOD, *(Column(f"{name}_ms", name) for name in PHASES), Column("host_ms", "host", only="terminal")]
    body = []
    for row in rows:
        spent = row.phases or {}
        host = spent.get("host_s")
        cells = [cell.figure(1e3 * spent.get(f"{phase}_s", 0.0), 2) for phase in PHASES]
        cells.append(cell.figure(None if host is None else 1e3 * host, 2))
        body.append(Row([Cell(row.method, line=named(row)), *cells], run_id, row.method))
    formula = (
        "Medians over all steps, separately for each phase, waiting for the device after each phase (--trace). "
        "forward: the target and its sampler; the other phases belong to the method and the harness."
    )
    title = "Where a step's time goes, milliseconds"
    return Table("phases", title, columns, body, Source([run_id], formula), only=only, short="ms a step")


def _gpu(run: Any) -> Table:
    columns = [
        figure("sm_clock_mhz", "SM MHz", 0), figure("power_w", "W", 0), figure("temperature_c", "max °C", 0),
        figure("energy_per_token_j", "J/token", 3),
    ]  # fmt: skip
    body = []
    for row in run.summary.rows:
        if seen := row.gpu:
            throttled = Cell(f"{seen.throttled}/{row.requests}", seen.throttled)
            cells = [Cell(row.method, line=named(row)), *cells_of(columns, seen), throttled]
            body.append(Row(cells, run.id, row.method))
    heads = [METHOD, *columns, Column("throttled", "throttled")]
    source = Source([run.id], "Medians over requests, as reported by NVML; energy per token, prefill included.")
    return Table("gpu", "GPU during the run", heads, body, source, short="GPU")
