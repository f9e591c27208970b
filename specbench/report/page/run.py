"""Run section: what one run's speed is made of, and generations as coloured tokens, a line per forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from specbench.report.answers.generation import EMPTY, END, DraftToken, Step, Token, escaped, legend, letters
from specbench.report.charts import cards, style
from specbench.report.document import (
    Block,
    Cell,
    Column,
    Figure,
    Line,
    Origin,
    Piece,
    Row,
    Section,
    Source,
    Table,
    Trace,
    Words,
)
from specbench.report.page import cells
from specbench.report.page.best import best
from specbench.report.page.engines import engine_blocks
from specbench.report.page.headline import conditions, withheld
from specbench.report.page.run_tables import branch_tables, loop_notes, position_figures, session_figures, text_tables
from specbench.report.page.trajectories import rounds, trajectories
from specbench.report.tables.figures import name as named
from specbench.report.tables.notes import notes
from specbench.report.tables.run import simulated_title
from specbench.results.disturbance import disturbance_line
from specbench.results.grades import ORDER
from specbench.results.judgments import remarks
from specbench.results.schema import BONUS, PHASES, PREFILL

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

    from specbench.report.gathering import Run
    from specbench.results.summary_schema import MethodSummary, Rate


_OPEN = 10  # rows; a longer table beside the headline's is folded


def run_section(run: Run) -> Section:
    """Everything about a run but its rows in the headline table."""
    blocks: list[Block] = []
    if run.config.simulated:
        asked = {label: spec.model_dump() for label, spec in run.config.simulated.items()}
        blocks.append(Words([simulated_title(asked)], "warning"))
    if disturbed := disturbance_line(run.summary):
        blocks.append(Words([f"{disturbed[0].upper()}{disturbed[1:]}."], "warning"))
    blocks += [*engine_blocks(run), *_figures(run), *_tables(run)]
    blocks += traces(run)
    blocks += [*trajectories(run), *rounds(run)]
    config: dict[str, Any] = {**run.config.model_dump(), "environment": run.run.get("environment")}
    if said := [*loop_notes(run), *notes(config, run.summary, alone=False)]:
        blocks.append(Words(said, "notes"))
    return Section(f"run-{run.id}", f"Run {run.id}", blocks, under=conditions(run))


def _figures(run: Run) -> Iterator[Figure]:
    shown = [row for row in run.rows if not withheld(run, row)]
    if found := [factors for row in shown if (factors := _factors(row))]:
        yield _decomposition(run, found)
    yield from position_figures(run)
    yield from session_figures(run)
    if traced := [row for row in shown if row.phases]:
        yield _phases(run, traced)
    kept = {row.method: run.tallies[row.method].accepted_lengths for row in shown if not row.baseline}
    if kept := {method: counts for method, counts in kept.items() if counts.total()}:
        yield _accepted(run, kept)
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
        "speedup = TPF × step ratio. TPF: tokens per target forward after prefill; step ratio: AR's seconds per "
        "forward over the method's. Diamond: the speedup with its 95% interval.",
    )
    columns = [
        Column("method", "method", words=True), Column("tokens_per_forward", "TPF"), Column("step_ratio", "step ratio"),
        Column("speedup", "speedup"), Column("prompts_median_speedup", "median of prompts"),
        Column("prompts_geometric_mean_speedup", "geometric mean of prompts"),
    ]  # fmt: skip
    body = [Row([Cell(f.label), *_factors_of(f)], run.id, f.label) for f in found]
    title = "What the speedup is made of"
    behind = Table("decomposition", title, columns, body, source)
    says = "; ".join(
        f"{f.label}: {f.tokens_per_forward:.2f} × {f.step_ratio:.2f} = {f.speedup.value:.2f}" for f in found
    )
    return _card(run, "decomposition", cards.decomposition(found), says, behind)


def _factors_of(found: cards.Factors) -> list[Cell]:
    each = found.speedup.per_prompt
    of_prompts = [each.median, each.geometric_mean] if each else [None, None]
    figures = [found.tokens_per_forward, found.step_ratio, found.speedup.value, *of_prompts]
    return [cells.figure(figure, 2) for figure in figures]


def _phases(run: Run, traced: list[MethodSummary]) -> Figure:
    steps = {row.method: {name: (row.phases or {}).get(f"{name}_s", 0.0) for name in PHASES} for row in traced}
    source = Source(
        [run.id],
        "Medians over all steps, each phase by itself, with a wait for the device after each (--trace). forward is the "
        "target with its sampler; all else is the method's and the harness's.",
    )
    columns = [Column("method", "method", words=True), *(Column(f"{name}_ms", name) for name in PHASES)]
    body = [
        Row([Cell(method), *(cells.figure(1e3 * spent[name], 2) for name in PHASES)], run.id, method)
        for method, spent in steps.items()
    ]
    title = "Where a step's time goes, milliseconds"
    behind = Table("phases", title, columns, body, source)
    says = "Stacked bars of milliseconds by phase; the table has the figures."
    return _card(run, "phases", cards.phases(steps), says, behind)


def _accepted(run: Run, kept: dict[str, Any]) -> Figure:
    source = Source([run.id], "Share of a method's target forwards after prefill that kept 1, 2, … tokens; mean = TPF.")
    found = {method: cards.shares(counts) for method, counts in kept.items()}
    heads = list(next(iter(found.values())))
    columns = [Column("method", "method", words=True), *(Column(f"kept_{k}", cards.kept_word(k)) for k in heads)]
    body = [
        Row([Cell(method), *(Cell(f"{share:.0%}", share) for share in spread.values())], run.id, method)
        for method, spread in found.items()
    ]
    title = "Tokens kept by a forward"
    behind = Table("accepted", title, columns, body, source)
    says = "Histograms of the tokens that a forward kept; the table has the figures."
    return _card(run, "accepted", cards.accepted(kept), says, behind)


def _against_accuracy(run: Run, scored: list[MethodSummary]) -> Figure:
    metric = run.config.task.metric or "right answers"
    formula = f"tok/s: decode tokens over decode seconds. {metric}: right answers, with Wilson's 95% interval."
    source = Source([run.id], formula)
    methods = {row.method: (row.decode_tok_s or 0.0, row.accuracy) for row in scored if row.accuracy}
    says = "; ".join(f"{label}: {speed:.1f} tok/s, {right.value:.0%}" for label, (speed, right) in methods.items())
    name = f"{run.id}-accuracy"
    drawn = style.svg(cards.scatter(methods, metric), name, says)
    # Its figures are the headline table's own.
    return Figure(name, "Speed against accuracy", drawn, says, source)


def _card(run: Run, kind: str, drawn: Drawn, says: str, behind: Table) -> Figure:
    name = f"{run.id}-{kind}"
    return Figure(name, behind.title, style.svg(drawn, name, says), says, behind.source, behind)


def _tables(run: Run) -> Iterator[Table | Words]:
    if any(row.ttft_speedup for row in run.rows):
        yield _end_to_end(run)
    yield from text_tables(run)
    yield from branch_tables(run)
    if any(row.lossless and row.lossless.rates and row.lossless.verdict != "exact" for row in run.rows):
        yield _grades(run)
    if any(row.metrics for row in run.rows):
        yield _metrics(run)
    if any(row.measures or row.draft_forwards for row in run.rows):
        yield _measures(run)
    if any(row.groups for row in run.rows):
        yield _groups(run)
    for judged in run.judged:
        yield _judged(run, judged)
        if said := remarks(judged):
            yield Words(said, "warning")
    for content in run.projections:
        yield _projected(run, content)
    if any(row.gpu for row in run.rows):
        yield _gpu(run)


def _end_to_end(run: Run) -> Table:
    columns = [
        Column("method", "method", words=True), Column("ttft_ms", "TTFT ms"), Column("ttft_speedup", "× TTFT"),
        Column("latency_s", "latency s"), Column("e2e_speedup", "× latency"), Column("weights_mb", "weights MB"),
        Column("kv_cache_mb", "KV cache MB"), Column("drafts_mb", "drafts MB"), Column("peak_mb", "peak MB"),
    ]  # fmt: skip
    body = []
    for row in run.rows:
        if withheld(run, row):
            continue
        held = [row.memory.weight_bytes, row.memory.cache_bytes, row.memory.draft_bytes] if row.memory else [None] * 3
        figures = [
            cells.figure(row.ttft_median_s and 1e3 * row.ttft_median_s, 1),
            Cell("1", 1.0) if row.baseline else cells.ratio(row.ttft_speedup),
            cells.figure(row.latency_median_s, 2),
            Cell("1", 1.0) if row.baseline else cells.ratio(row.e2e_speedup),
            *(cells.figure(None if size is None else size / 1e6, 0) for size in (*held, row.peak_memory_bytes)),
        ]
        body.append(Row([Cell(named(row)), *figures], run.id, row.method, strong=row.baseline))
    formula = (
        "TTFT: prompt to first token; latency: prompt to last token; medians over requests. ×: AR's seconds over the "
        "method's, pooled over requests, per first token and per token. KV cache: of all sequences together, as it is "
        "allocated. drafts: weights and KV cache of what the method drafts with. peak: torch's allocator on a GPU."
    )
    return Table("end to end", "End to end", columns, body, Source([run.id], formula))


def _grades(run: Run) -> Table:
    columns = [Column("method", "method", words=True), *(Column(f"{grade}_prompts", grade) for grade in ORDER)]
    body = []
    for row in run.rows:
        if row.lossless and row.lossless.rates:
            rates = [row.lossless.rates.get(grade) for grade in ORDER]
            body.append(Row([Cell(row.method), *(_rate(rate) for rate in rates)], run.id, row.method))
    source = Source([run.id], "Prompts of those graded, each by the worst of its answers; below, 95% Wilson intervals.")
    return Table("lossless", "How many prompts have AR's text", columns, body, source)


def _rate(rate: Rate | None) -> Cell:
    if rate is None:
        return cells.NOTHING
    known = rate.low is not None and rate.high is not None
    under = f"[{100 * (rate.low or 0):.0f}%, {100 * (rate.high or 0):.0f}%]" if known else ""
    return Cell(f"{rate.count}/{rate.of}", rate.count / rate.of if rate.of else None, rate.low, rate.high, under=under)


def _metrics(run: Run) -> Table:
    names = list(dict.fromkeys(name for row in run.rows for name in row.metrics))
    first = run.config.task.metric or "score"
    columns = [Column("method", "method", words=True), Column(first, first), *(Column(name, name) for name in names)]
    body = [
        Row(
            [Cell(row.method), cells.accuracy(row.accuracy), *(cells.accuracy(row.metrics.get(n)) for n in names)],
            run.id,
            row.method,
        )
        for row in run.rows
    ]
    source = Source([run.id], "Right answers of those scored; below, their share with Wilson's 95% interval.")
    title = "Right answers by every metric"
    return Table("metrics", title, columns, body, source, folded=len(body) > _OPEN)


def _measures(run: Run) -> Table:
    said = {name: what for spec in run.config.methods for name, what in spec.measures.items()}
    names = list(dict.fromkeys(name for row in run.rows for name in row.measures))
    drafting = any(row.draft_forwards for row in run.rows)
    columns = [Column("method", "method", words=True), *(Column(name, name.replace("_", " ")) for name in names)]
    columns += [Column("draft_forwards_per_forward", "draft forwards")] if drafting else []
    body = []
    for row in run.rows:
        if row.measures or row.draft_forwards:
            figures = [cells.figure(row.measures.get(name), 2) for name in names]
            each = row.draft_forwards / row.target_forwards if row.target_forwards else None
            figures += [cells.figure(each, 2)] if drafting else []
            body.append(Row([Cell(row.method), *figures], run.id, row.method))
    meanings = [f"{name.replace('_', ' ')}: {said[name]}, mean over requests." for name in names if name in said]
    meanings += ["draft forwards: of its draft model, for each forward of the target."] if drafting else []
    source = Source([run.id], " ".join(meanings))
    return Table("measures", "The methods' own figures", columns, body, source, folded=len(body) > _OPEN)


def _groups(run: Run) -> Table:
    columns = [
        Column("group", "group", words=True), Column("method", "method", words=True), Column("prompts", "prompts"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s"), Column("speedup", "speedup"),
        Column("verdict", "verdict", words=True), Column("specbench_mat", "MAT*"),
        Column("specbench_speedup", "speedup*"),
    ]  # fmt: skip
    shown = [row for row in run.rows if row.groups and not withheld(run, row)]
    body = []
    for group in dict.fromkeys(group for row in shown for group in row.groups):
        for row in shown:
            if found := row.groups.get(group):
                base = row.baseline
                figures = [
                    cells.count(found.prompts), cells.figure(found.tokens_per_forward, 2),
                    cells.figure(found.decode_tok_s, 1),
                    Cell("1", 1.0) if base else cells.one_line(found.speedup),
                    Cell("") if base else cells.verdict(found.speedup),
                    cells.figure(found.specbench_mat, 2), cells.figure(found.specbench_speedup, 2),
                ]  # fmt: skip
                cells_of = [Cell(group), Cell(row.method), *figures]
                body.append(Row(cells_of, run.id, row.method, strong=base, key=f"{group} / {row.method}"))
    formula = (
        "As in the headline table, over a group's prompts. * as Spec-Bench defines them: prefill included, means of "
        "prompts' speeds, AR without stop tokens."
    )
    source = Source([run.id], formula)
    return Table("groups", "By group of categories", columns, body, source)


def _judged(run: Run, judged: dict[str, Any] | Any) -> Table:
    methods, judge = judged["methods"], judged["judge"]
    columns = [Column("score", "score", words=True), *(Column(method, method) for method in methods)]
    body = []
    for kind in ("categories", "turns"):
        for name in dict.fromkeys(name for found in methods.values() for name in found[kind]):
            scores = [_score(found[kind].get(name)) for found in methods.values()]
            body.append(Row([Cell(name if kind == "categories" else f"turn {name}"), *scores], run.id))
    body.append(Row([Cell("all"), *(_score(found) for found in methods.values())], run.id, strong=True))
    formula = f"Mean rating, 1 to 10, by {judge['id']}; below, how many of the answers have one."
    return Table("judged", f"Judged by {judge['id']}", columns, body, Source([run.id], formula))


def _score(score: Any) -> Cell:
    if score is None or score["score"] is None:
        return cells.NOTHING
    return Cell(f"{score['score']:.2f}", score["score"], under=f"{score['rated']}/{score['judged']}")


def _projected(run: Run, content: Any) -> Table:
    columns = [Column("method", "method", words=True), Column("decode_tok_s", "tok/s"), Column("speedup", "speedup")]
    hidden = {row.method for row in run.rows if withheld(run, row)}
    body = [
        Row([Cell(label), cells.banded(found["decode_tok_s"], 0), cells.banded(found.get("speedup"), 2)], run.id, label)
        for label, found in content["rows"].items()
        if label not in hidden
    ]
    formula = (
        f"Tokens per forward and step times measured on {content['device']}, ceilings of {content['gpu']}'s datasheet. "
        "Bands: every step keeps the share of its bound that it reaches here, or what it takes beyond the bound stays "
        "as long. Drafting on the host is left out. No measurement."
    )
    title = f"Projected onto {content['gpu']}, not measured"
    return Table(f"projected {content['gpu']}", title, columns, body, Source([run.id], formula))


def _gpu(run: Run) -> Table:
    columns = [
        Column("method", "method", words=True), Column("sm_clock_mhz", "SM MHz"), Column("power_w", "W"),
        Column("temperature_c", "max °C"), Column("energy_per_token_j", "J/token"),
        Column("throttled", "throttled"),
    ]  # fmt: skip
    body = [
        Row(
            [
                Cell(row.method), cells.figure(seen.sm_clock_mhz, 0), cells.figure(seen.power_w, 0),
                cells.figure(seen.temperature_c, 0), cells.figure(seen.energy_per_token_j, 3),
                Cell(f"{seen.throttled}/{row.requests}", seen.throttled),
            ],
            run.id,
            row.method,
        )
        for row in run.rows
        if (seen := row.gpu)
    ]  # fmt: skip
    source = Source([run.id], "Medians over requests of what NVML told; energy over tokens, prefill included.")
    return Table("gpu", "The GPU meanwhile", columns, body, source)


#: Forwards of one picture; the first ones show the method as well as all of them do.
_STEPS = 24
_REJECTED = 12  # drafts of a forward's longest rejected branch that are shown

_FORMULA = (
    "A line for each target forward after the prompt's, with the rows of its tree: the tokens that it added, marked by "
    "how they came. Struck out, where the run was traced: the longest branch of drafts that the target did not follow. "
)

#: Origins that have a look of their own in the page; what a method calls otherwise shares one.
_LOOKS = {
    PREFILL: "said", BONUS: "said", "draft": "drafted", "guess": "drafted", "head": "drafted",
    "draft-model": "drafted", "noise": "noise", "block": "block", "pool": "pool", "window": "window",
    "lookup": "lookup",
}  # fmt: skip


def traces(run: Run) -> Iterator[Trace]:
    """A picture of each method's answer to one prompt, the same for all of them: first and open the fastest row's."""
    first = best(run)
    labels = sorted(run.pictured, key=lambda label: first is None or label != first.method)
    for at, label in enumerate(labels):
        steps = run.pictured[label]
        shown, left = steps[: _STEPS + 1], len(steps) - _STEPS - 1
        meanings = legend(shown)
        marks = letters(list(meanings))
        origins = {word: Origin(marks[word], _LOOKS.get(word, "other"), meaning) for word, meaning in meanings.items()}
        tokens, forwards = sum(len(step.tokens) for step in steps), len(steps) - 1
        said = f"{tokens} tokens in {forwards} forwards after the prompt's"
        said += f", of which {left} are not shown" if left > 0 else ""
        source = Source([run.id], _FORMULA + f"{END} the answer's end, {EMPTY} a token without text of its own.")
        yield Trace(f"{label} on {run.pictured_prompt}", said, _lines(shown, origins), origins, source, open=at == 0)


def _lines(steps: Sequence[Step], origins: Mapping[str, Origin]) -> list[Line]:
    found, ended = [], False
    for step in steps:
        pieces = []
        for beyond, tokens in groupby(step.tokens, lambda token: token.beyond):
            if beyond and not ended:
                pieces.append(Piece(END, "", ""))
                ended = True
            pieces += [_piece(token, origins) for token in tokens]
        branches = [[draft for draft in branch if not draft.draft_only] for branch in step.branches]
        rejected = max(branches, key=len, default=[])
        drafts = [_piece(draft, origins) for draft in rejected[:_REJECTED]]
        if len(rejected) > _REJECTED:
            drafts.append(Piece("…", "", ""))
        found.append(Line(step.number, step.rows, pieces, drafts))
    return found


def _piece(token: Token | DraftToken, origins: Mapping[str, Origin]) -> Piece:
    return Piece(escaped(token.text) or EMPTY, token.origin, origins[token.origin].look)
