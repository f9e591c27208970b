"""Report section with published rows next to our measured rows of the same method, and what the claims are worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from specbench.report.charts import cards, style
from specbench.report.claims.check import Check, checks_of
from specbench.report.claims.worth import Range, Worth, at_the_bound, setting, worth
from specbench.report.document import NOTHING, Cell, Column, Figure, Row, Section, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.run_table import settings, withheld
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.report.claims.catalog import Catalog, Claim
    from specbench.report.gathering import Gathered, Run
    from specbench.results import MethodSpec, MethodSummary, Speedup


#: Published rows per chart, those most similar to ours first.
_DRAWN = 10
#: Longer tables are folded.
_OPEN = 12

_FORMULA = (
    "there: as printed. step ratio = speedup / TPF. of bandwidth: the publication's own AR divided by the AR tok/s "
    "that the GPU's datasheet bandwidth allows (bf16 weights read once per token); a range if boards of that name "
    "differ. over bound AR: printed tok/s divided by that bound. at the bound: TPF × step ratio if AR and the method "
    "both ran at the roofline of that GPU, counting only weights, with our rows per step: the most that any engine "
    "could reach. A strong engine lies between the last two. here: the named run; TPF as the publication counts it, "
    "with a 95% bootstrap interval over prompts."
)

_LIKENESS = (
    "Each published row stands next to our most similar row of its method. A figure is repeated if our 95% interval "
    "covers it as far as it was printed. Where model, task, settings or GPU differ, the figures stand together but are "
    "not comparable: TPF depends on model, task and settings, a speedup on the GPU too. specbench claims --check RUN "
    "judges every figure of a run."
)


@dataclass(frozen=True)
class _Mine:
    """The row of a run that is most similar to a published row.

    ``others``: further rows of its method in the run; ``apart``: its options that differ from theirs; ``checks``: its
    figures compared with the published ones.
    """

    run: Run
    row: MethodSummary
    others: int
    apart: str
    checks: Sequence[Check]

    @property
    def unlike(self) -> int:
        return sum(each.reasons() for each in self.checks)

    def check(self, figure: str) -> Check | None:
        return next((each for each in self.checks if each.figure == figure), None)


_Pair = tuple["Claim", _Mine]


def claims_section(found: Gathered, catalog: Catalog) -> Section:
    """The section, with a table and a chart for each method that is both measured and published."""
    mine = _by_method(found)
    published = {claim.method for claim in catalog.claims}
    pairs = {name: _ordered(catalog, name, some) for name, some in mine.items() if name in published}
    figures = [made for name, some in pairs.items() if (made := _figure(catalog, name, some))]
    lines = [_LIKENESS]
    if missing := [method for method in mine if method not in published]:
        lines.append(f"No published figures in the catalog: {', '.join(missing)}.")
    others = sorted(published - set(mine) - {BASELINE})
    lines.append(f"Published, but not in these runs: {', '.join(others)}; specbench claims lists them.")
    tables = [_table(catalog, name, some) for name, some in pairs.items()]
    return Section("claims", "Published claims", [Words(lines), *figures, *tables])


def _by_method(found: Gathered) -> dict[str, list[tuple[Run, list[MethodSpec]]]]:
    """The runs of each method with the rows of it that may be shown."""
    made: dict[str, list[tuple[Run, list[MethodSpec]]]] = {}
    for run in found.runs:
        shown = {row.method for row in run.rows if not withheld(run, row)}
        for name in dict.fromkeys(spec.name for spec in run.config.methods if spec.name != BASELINE):
            if specs := [spec for spec in run.config.methods if spec.name == name and spec.label in shown]:
                made.setdefault(name, []).append((run, specs))
    return made


def _mine(catalog: Catalog, claim: Claim, run: Run, specs: Sequence[MethodSpec]) -> _Mine:
    checks = checks_of(catalog, claim, run, setting(run), specs)
    label = checks[0].row if checks else specs[0].label
    row = next(row for row in run.rows if row.method == label)
    return _Mine(run, row, len(specs) - 1, settings(run.config.methods)[label], checks)


def _ordered(catalog: Catalog, method: str, runs: Sequence[tuple[Run, list[MethodSpec]]]) -> list[_Pair]:
    """Each claim with our most similar row, grouped by publication; the most similar come first."""
    together: dict[str, list[_Pair]] = defaultdict(list)
    for claim in catalog.claims:
        if claim.method == method:
            newest_first = [_mine(catalog, claim, *each) for each in reversed(runs)]
            together[_part(claim)].append((claim, min(newest_first, key=lambda mine: mine.unlike)))
    # sorted() is stable: otherwise they stay in the catalog's order.
    parts = sorted(together.values(), key=lambda pairs: min(mine.unlike for _, mine in pairs))
    return [pair for pairs in parts for pair in sorted(pairs, key=lambda pair: pair[1].unlike)]


def _figure(catalog: Catalog, method: str, pairs: Sequence[_Pair]) -> Figure | None:
    bars = list(_bars(catalog, pairs))
    if not bars:
        return None
    drawn, left = bars[:_DRAWN], len(bars) - _DRAWN
    more = f" {left} further rows are in the table." if left > 0 else ""
    says = "; ".join(f"{bar.label}: claimed {bar.claimed:.2f}, over bound AR {bar.over_bound:.2f}" for bar in drawn)
    runs = list(dict.fromkeys(each.run.id for _, each in pairs))
    title = f"{method}: claimed, and over a strong AR"
    name = f"claims-{method}"
    return Figure(name, title, style.svg(cards.dumbbells(drawn), name, says), says, Source(runs, _FIGURE + more))


def _table(catalog: Catalog, method: str, pairs: Sequence[_Pair]) -> Table:
    runs = list(dict.fromkeys(each.run.id for _, each in pairs))
    body = [_row(catalog, *pair) for pair in pairs]
    title = f"{method}: {len(pairs)} published {'row' if len(pairs) == 1 else 'rows'}"
    return Table(f"claims {method}", title, _COLUMNS, body, Source(runs, _FORMULA), folded=len(pairs) > _OPEN)


_FIGURE = (
    "Dot: speedup as printed. Ring: printed tok/s divided by the AR speed that the GPU's bandwidth allows. Triangle: "
    "speedup with the printed TPF if AR and the method both ran at the roofline, with our rows per step."
)

_COLUMNS = [
    Column("published", "published", words=True),
    Column("tpf_there", "TPF there"), Column("speedup_there", "speedup there"),
    Column("step_ratio_there", "step ratio there"), Column("ar_tok_s_there", "AR there, tok/s"),
    Column("over_bound_ar", "over bound AR"), Column("at_the_bound", "at the bound"),
    Column("tpf_here", "TPF here"), Column("tpf_verdict", "TPF repeated?", words=True),
    Column("speedup_here", "speedup here"), Column("step_ratio_here", "step ratio here"),
    Column("differs", "what differs", words=True),
]  # fmt: skip


def _row(catalog: Catalog, claim: Claim, mine: _Mine) -> Row:
    comes_to, part = worth(catalog, claim), claim.task.partition(":")[2]
    group = mine.row.groups.get(part) if part else None
    figures = group or mine.row
    ours = mine.check("TPF")
    tpf = cell.figure(ours.ours if ours and ours.ours is not None else figures.tokens_per_forward, 2)
    if ours is not None and ours.low is not None and ours.high is not None:
        tpf = replace(tpf, low=ours.low, high=ours.high, under=f"[{ours.low:.2f}, {ours.high:.2f}]")
    return Row(
        [
            Cell(
                claim.model or "model not given",
                under=" · ".join(w for w in (claim.task, claim.gpu, claim.setting, *_also(claim)) if w),
            ),
            _printed(claim.tpf),
            _printed(claim.speedup),
            cell.figure(comes_to.step_ratio, 2),
            _baseline(claim, comes_to),
            _range(comes_to.over_bound),
            _range(_bound(catalog, claim, mine)),
            tpf,
            Cell(ours.verdict if ours else ""),
            _speedup(figures.speedup, mine, claim, catalog),
            cell.figure(mine.row.step_ratio, 2) if group is None else NOTHING,
            Cell("; ".join(_differs(claim, mine)), under=mine.run.id),
        ],
        mine.run.id,
        claim.id,
        _part(claim),
        url=claim.url,
    )


def _also(claim: Claim) -> list[str]:
    return [f"{name} {figure}" for name, figure in claim.also.items()]


def _part(claim: Claim) -> str:
    """Heading for the rows of one publication."""
    parts = (f"{claim.paper}: {claim.source}", claim.url, claim.tpf and f"TPF there: {claim.counting}", claim.caveat)
    return " · ".join(words for words in parts if words)


def _speedup(found: Speedup | None, mine: _Mine, claim: Claim, catalog: Catalog) -> Cell:
    """Our speedup, with its projection onto the claim's GPU below it if there is one."""
    shown = cell.one_line(found)
    for content in mine.run.projections:
        projected: Any = content["rows"].get(mine.row.method, {}).get("speedup")
        if projected and content["gpu"] in catalog.gpus.get(claim.gpu, ()):
            band = f"{projected['value']:.2f} ({projected['low']:.2f} to {projected['high']:.2f})"
            return replace(shown, under=f"projected onto {content['gpu']}: {band}")
    return shown


def _differs(claim: Claim, mine: _Mine) -> Iterator[str]:
    """Why figures are not comparable, and caveats: those that hold for all figures first."""
    yield from dict.fromkeys(why for each in mine.checks for why in each.why)
    if mine.others:
        yield f"here {mine.row.method} ({mine.apart}), the most similar of {mine.others + 1} settings"
    if claim.note:
        yield claim.note


def _bars(catalog: Catalog, pairs: Sequence[_Pair]) -> Iterator[cards.Dumbbell]:
    for claim, mine in pairs:
        over = worth(catalog, claim).over_bound
        if claim.speedup is None or over is None:
            continue
        bound = _bound(catalog, claim, mine)
        label = ", ".join(word for word in (claim.model, claim.task, claim.gpu, claim.setting) if word)
        yield cards.Dumbbell(label, float(claim.speedup), _middle(over), None if bound is None else _middle(bound))


def _bound(catalog: Catalog, claim: Claim, mine: _Mine) -> Range | None:
    if claim.tpf is None or not mine.row.rows_per_step:
        return None
    return at_the_bound(catalog, claim, float(claim.tpf), mine.row.rows_per_step)


def _middle(found: Range) -> float:
    return (found.low * found.high) ** 0.5


def _baseline(claim: Claim, comes_to: Worth) -> Cell:
    share = comes_to.baseline_share
    if claim.baseline_tok_s is None:
        return NOTHING
    low, high = (f"{100 * end:.0f}" for end in (share.low, share.high)) if share else ("", "")
    under = "" if share is None else f"{low}% of bandwidth" if low == high else f"{low}–{high}% of bandwidth"
    return Cell(str(claim.baseline_tok_s), float(claim.baseline_tok_s), under=under)


def _printed(figure: Decimal | None) -> Cell:
    return NOTHING if figure is None else Cell(str(figure), float(figure))


def _range(found: Range | None) -> Cell:
    if found is None:
        return NOTHING
    low, high = f"{found.low:.2f}", f"{found.high:.2f}"
    return Cell(low if low == high else f"{low}–{high}", _middle(found), found.low, found.high)
