"""Further tables of a run: what readers wait for, how right the answers are, groups, phases, projections, the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.report.document import DASH, NOTHING, Block, Cell, Column, Medium, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.cell import name as named
from specbench.report.tables.session import session_table
from specbench.report.tables.text_quality import text_tables
from specbench.results.branches import BROKEN, KEPT
from specbench.results.grades import ORDER
from specbench.results.judgments import remarks
from specbench.results.schema import PHASES

if TYPE_CHECKING:
    from specbench.results.summary_schema import MethodSummary, Rate

_OPEN = 10  # rows; a longer table beside the headline's is folded
METHOD = Column("method", "method", words=True)


def part_blocks(run: Any, rows: Sequence[MethodSummary]) -> Iterator[Block]:
    """The tables that a run's figures call for; ``rows`` are those whose speed may be shown."""
    every: Sequence[MethodSummary] = run.summary.rows
    if any(row.ttft_speedup for row in every):
        yield end_to_end(run, rows)
    if any(row.session for row in rows):
        yield session_table(run, rows)
    yield from text_tables(run)
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


def end_to_end(run: Any, rows: Iterable[MethodSummary]) -> Table:
    """What a reader waits for, first token and whole answer, and the memory that a method decodes in."""
    known = [row.memory for row in run.summary.rows if row.memory]
    held = "" if not known else (
        f"MB: what a method decodes in, {known[0].weight_bytes / 1e6:.0f} of weights, {known[0].cache_bytes / 1e6:.0f} "
        "of KV cache for all sequences, and of its draft model or head."
    )  # fmt: skip
    cache = "KV cache: of all sequences together, as it is allocated."
    drafts = "drafts: weights and KV cache of what the method drafts with."
    columns = [
        METHOD, Column("ttft_ms", "TTFT ms"), Column("ttft_speedup", "× TTFT"), Column("latency_s", "latency s"),
        Column("e2e_speedup", "× latency"), Column("memory_mb", "MB", only="terminal", note=held, optional=True),
        Column("weights_mb", "weights MB", only="page"), Column("kv_cache_mb", "KV cache MB", only="page", note=cache),
        Column("drafts_mb", "drafts MB", only="page", note=drafts),
        Column("peak_mb", "peak MB", only="page", note="peak: torch's allocator on a GPU."),
    ]  # fmt: skip
    body = []
    for row in rows:
        memory = row.memory
        sizes = [memory.total, memory.weight_bytes, memory.cache_bytes, memory.draft_bytes] if memory else [None] * 4
        figures = [
            cell.figure(row.ttft_median_s and 1e3 * row.ttft_median_s, 1),
            cell.ONE if row.baseline else cell.ratio(row.ttft_speedup),
            cell.figure(row.latency_median_s, 2),
            cell.ONE if row.baseline else cell.ratio(row.e2e_speedup),
            *(cell.figure(None if size is None else size / 1e6, 0) for size in (*sizes, row.peak_memory_bytes)),
        ]
        body.append(Row([Cell(named(row)), *figures], run.id, row.method, strong=row.baseline))
    formula = (
        "TTFT: prompt to first token; latency: prompt to last token; medians over requests. ×: AR's seconds over the "
        "method's, pooled over requests, per first token and per token."
    )
    return Table("end to end", "End to end", columns, body, Source([run.id], formula), short="end to end")


def _branches(run: Any) -> Iterator[Table]:
    """How well the scores of a method's drafts match the target; none where no method's drafts have scores."""
    columns = [
        METHOD, Column("branches", "trees"), Column("tokens", "tokens"),
        Column("gap_median", "median gap"), Column("gap_mean", "mean gap"),
        Column("kept_share", f"under {KEPT:g} nats"), Column("broken_share", f"{BROKEN:g} nats or more"),
    ]  # fmt: skip
    body = []
    for row in run.summary.rows:
        if found := row.branches:
            figures = [cell.figure(value, 1) for value in (found.tokens, found.gap_median, found.gap_mean)]
            shares = [cell.share(found.kept_share), cell.share(found.broken_share)]
            body.append(Row([Cell(row.method), cell.count(found.branches), *figures, *shares], run.id, row.method))
    formula = (
        "Of up to eight trees a request: the path that takes the best-scored child each time. Gap: the sum of the "
        "log-probabilities that its drafter gave its tokens, less that under the target, in nats, at temperature 1."
    )
    title = "How well drafters' scores of their branches match the target"
    if body:  # in a terminal a sentence says it
        yield Table("branches", title, columns, body, Source([run.id], formula), folded=True, only="page")


def grades(run_id: str, graded: Mapping[str, Mapping[str, Rate]]) -> Table:
    """Prompts of each grade and their share, by method."""
    columns = [METHOD, *(Column(f"{grade}_prompts", grade) for grade in ORDER)]
    body = [
        Row([Cell(method), *(cell.rate(rates.get(grade)) for grade in ORDER)], run_id, method)
        for method, rates in graded.items()
    ]
    source = Source([run_id], "Prompts of those graded, each by the worst of its answers; 95% Wilson intervals.")
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
    source = Source([run.id], "Right answers of those scored, by each of the task's metrics.")
    zeros = not any(score and score.passed for row in rows for score in row.metrics.values())
    return Table(
        "metrics", "Right answers by every metric", columns, body, source, folded=len(body) > _OPEN,
        short="right answers", only="page" if zeros else "",
    )  # fmt: skip


def _measures(run: Any) -> Table:
    rows = run.summary.rows
    said = {name: what for spec in run.config.methods for name, what in spec.measures.items()}
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
    meanings = [f"{name.replace('_', ' ')}: {said[name]}, mean over requests." for name in names if name in said]
    meanings += ["draft forwards: of its draft model, for each forward of the target."] if drafting else []
    title, source = "The methods' own figures", Source([run.id], " ".join(meanings))
    return Table("measures", title, columns, body, source, folded=len(body) > _OPEN, only="page")


def _groups(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """Figures of each group of categories, with Spec-Bench's own in the end."""
    columns = [
        Column("group", "group", words=True, once=True), METHOD, Column("prompts", "prompts"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s", only="page"), Column("speedup", "speedup"),
        Column("verdict", "verdict", words=True, only="page"), Column("specbench_mat", "MAT*"),
        Column("specbench_speedup", "speedup*"),
    ]  # fmt: skip
    body = []
    for group in dict.fromkeys(group for row in rows for group in row.groups):
        for row in rows:
            if found := row.groups.get(group):
                base = row.baseline
                cells = [
                    Cell(group), Cell(row.method, line=named(row)), cell.count(found.prompts),
                    cell.figure(found.tokens_per_forward, 2), cell.figure(found.decode_tok_s, 1),
                    cell.ONE if base else cell.one_line(found.speedup),
                    Cell("") if base else cell.verdict(found.speedup),
                    cell.figure(found.specbench_mat, 2), cell.figure(found.specbench_speedup, 2),
                ]  # fmt: skip
                only: Medium = "page" if base and len(rows) > 1 else ""
                key = f"{group} / {row.method}"
                body.append(Row(cells, run.id, row.method, strong=base, key=key, only=only))
    formula = (
        "As in the headline table, over a group's prompts. * as Spec-Bench defines them: prefill included, means of "
        "prompts' speeds, AR without stop tokens."
    )
    return Table("groups", "By group of categories", columns, body, Source([run.id], formula), short="group")


def judgment_report(judged: Mapping[str, Any], run_id: str = "") -> Iterator[Block]:
    """Mean ratings of one judge by category and method, with how many answers have one, and what to bear in mind."""
    methods, judge = judged["methods"], judged["judge"]
    columns = [Column("score", "score", words=True), *(Column(method, method) for method in methods)]
    body = []
    for kind, word in (("categories", ""), ("turns", "turn ")):
        for name in dict.fromkeys(name for found in methods.values() for name in found[kind]):
            scores = [_score(found[kind].get(name)) for found in methods.values()]
            body.append(Row([Cell(f"{word}{name}"), *scores], run_id))
    body.append(Row([Cell("all"), *(_score(found) for found in methods.values())], run_id, strong=True))
    how = {"local": "run here", "endpoint": f"at {judge['endpoint']}", "import": "imported"}[judge["kind"]]
    where = "" if run_id else f" ({how})"  # a page may be shown to anybody, and names no host
    formula = f"Mean rating, 1 to 10, by {judge['id']}{where}, and how many of the answers have one."
    yield Table("judged", f"Judged by {judge['id']}", columns, body, Source([run_id], formula), short="score")
    if said := remarks(judged):
        yield Words(said, "warning")


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
    """One ``projection-GPU.json``: what the rows would be on another device."""
    columns = [METHOD, Column("decode_tok_s", "tok/s"), Column("speedup", "speedup")]
    body = []
    for label, found in content["rows"].items():
        if label not in hidden:
            over = cell.banded(found["speedup"], 2) if "speedup" in found else replace(NOTHING, line="1")
            body.append(Row([Cell(label), cell.banded(found["decode_tok_s"], 0), over], run_id, label))
    formula = (
        f"Tokens per forward and step times measured on {content['device']}, ceilings of {content['gpu']}'s datasheet. "
        "Bands: every step keeps the share of its bound that it reaches here, or what it takes beyond the bound stays "
        "as long. Drafting on the host is left out. No measurement."
    )
    title = f"Projected onto {content['gpu']}, not measured"
    return Table(f"projected {content['gpu']}", title, columns, body, Source([run_id], formula))


def phases(run_id: str, rows: Sequence[MethodSummary], only: Medium = "") -> Table:
    """Where a step's time goes: medians over steps; host is everything but the forward."""
    columns = [METHOD, *(Column(f"{name}_ms", name) for name in PHASES), Column("host_ms", "host", only="terminal")]
    body = []
    for row in rows:
        spent = row.phases or {}
        host = spent.get("host_s")
        cells = [cell.figure(1e3 * spent.get(f"{phase}_s", 0.0), 2) for phase in PHASES]
        cells.append(cell.figure(None if host is None else 1e3 * host, 2))
        body.append(Row([Cell(row.method, line=named(row)), *cells], run_id, row.method))
    formula = (
        "Medians over all steps, each phase by itself, with a wait for the device after each (--trace). forward is the "
        "target with its sampler; all else is the method's and the harness's."
    )
    title = "Where a step's time goes, milliseconds"
    return Table("phases", title, columns, body, Source([run_id], formula), only=only, short="ms a step")


def _gpu(run: Any) -> Table:
    columns = [
        METHOD, Column("sm_clock_mhz", "SM MHz"), Column("power_w", "W"), Column("temperature_c", "max °C"),
        Column("energy_per_token_j", "J/token"), Column("throttled", "throttled"),
    ]  # fmt: skip
    body = [
        Row(
            [
                Cell(row.method, line=named(row)), cell.figure(seen.sm_clock_mhz, 0), cell.figure(seen.power_w, 0),
                cell.figure(seen.temperature_c, 0), cell.figure(seen.energy_per_token_j, 3),
                Cell(f"{seen.throttled}/{row.requests}", seen.throttled),
            ],
            run.id,
            row.method,
        )
        for row in run.summary.rows
        if (seen := row.gpu)
    ]  # fmt: skip
    source = Source([run.id], "Medians over requests of what NVML told; energy over tokens, prefill included.")
    return Table("gpu", "The GPU meanwhile", columns, body, source, short="GPU")
