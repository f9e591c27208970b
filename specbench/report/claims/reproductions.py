"""Published tables and figures that a command can make again: a small file each, and our figures next to the printed.

A file names its rows of ``claims.toml`` and what to run: a campaign, a traced run for a picture, or what is lacking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from specbench.common import UsageError, unknown_name, validate, yaml
from specbench.report.claims.catalog import Claim, published_claims
from specbench.report.claims.check import Check, check
from specbench.report.claims.check_tables import here_cell
from specbench.report.claims.listing import table_of
from specbench.report.document import NOTHING, Block, Cell, Column, Row, Source, Table, Words
from specbench.report.gathering import Run, read_whole_run
from specbench.report.two_axes import Layout
from specbench.results import Record

Scale = Literal["full", "small"]

_FOLDER = Path(__file__).with_name("reproductions")
_TODO = "fix it or install specbench-llm again"
_FIGURES = ("TPF", "speedup", "tok/s", "score")
_SIGNS = {"repeated": "=", "not repeated": "≠", "not comparable": ""}
_REASONS = 8  # of figures that are not comparable, the most frequent first


class Reproduction(Record):
    """A published table or figure."""

    title: str
    claims: list[str] = Field(default_factory=list, description="tables of claims.toml")
    campaign: dict[str, Any] = Field(default_factory=dict, description="a campaign, as for sweep --file")
    run: dict[str, Any] = Field(default_factory=dict, description="options of specbench run, for a picture")
    small: dict[str, Any] = Field(default_factory=dict, description="what --scale small replaces")
    rows: list[str] = Field(default_factory=list, description="axes down; empty: what differs")
    columns: list[str] = Field(default_factory=list, description="axes across")
    value: list[str] = Field(default_factory=list, description="figures in the cells")
    picture: dict[str, str] = Field(
        default_factory=dict, description="view of the run: trajectory, round (this or the last) or race; method(s)"
    )
    lacks: str = Field(default="", description="rows of the publication that are not run, and why")
    needs: str = Field(default="", description="why nothing is run, and the command that would")

    def options(self, scale: Scale) -> dict[str, Any]:
        """Options of the campaign or run at a scale."""
        return {**(self.campaign or self.run), **(self.small if scale == "small" else {})}

    @property
    def layout(self) -> Layout:
        """Layout of our table."""
        return Layout(self.rows, self.columns, self.value)


@cache
def reproductions() -> dict[tuple[str, str], Reproduction]:
    """All of them by source and table, in order."""
    found = {}
    for file in sorted(_FOLDER.glob("*.yaml"), key=_order):
        source, _, table = file.stem.partition("-")
        found[source, table] = validate(Reproduction, yaml.read(file, _TODO, texts=True), file, _TODO)
    return found


def _order(file: Path) -> list[tuple[int, str]]:
    """Numbers in order: table-2 before table-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in file.stem.split("-")]


def find_reproduction(source: str, table: str) -> tuple[Reproduction, Path]:
    """A reproduction and its file; the UsageError for an unknown name lists similar names."""
    known = reproductions()
    if source not in {each for each, _ in known}:
        raise unknown_name("source", source, dict.fromkeys(each for each, _ in known), see="specbench reproduce")
    if (source, table) not in known:
        mine = [name for each, name in known if each == source]
        raise unknown_name("table", table, mine, f"of {source}", see="specbench reproduce lists all")
    return known[source, table], _FOLDER / f"{source}-{table}.yaml"


def compare_published(made: Reproduction, folders: Iterable[Path]) -> list[Check]:
    """Each printed figure with that of the most similar row of the runs; figures without such a row are left out."""
    known = published_claims()
    chosen = [claim for claim in known.claims if table_of(claim) in made.claims]
    best: dict[tuple[str, str], Check] = {}
    for folder in folders:
        run = read_whole_run(folder)
        if not run.complete:
            continue
        mine = [claim for claim in chosen if _has_prompts(claim, run)]
        for each in check(known.model_copy(update={"claims": tuple(mine)}), run):
            before = best.get((each.claim.id, each.figure))
            if before is None or _distance(each) < _distance(before):
                best[each.claim.id, each.figure] = each
    order = {claim.id: at for at, claim in enumerate(chosen)}
    return sorted(best.values(), key=lambda each: order[each.claim.id])


def _has_prompts(claim: Claim, run: Run) -> bool:
    """Whether a run has prompts of a printed row's task, and of its category if it is of one."""
    task, _, part = claim.task.partition(":")
    return task in ("", run.config.task.name) and (not part or any(part in row.groups for row in run.rows))


def _distance(each: Check) -> tuple[bool, int, bool]:
    return each.verdict == "not comparable", len(each.why), each.ours is None


def reproduction_report(made: Reproduction, found: Sequence[Check]) -> list[Block]:
    """Table of printed figures, ours and whether they agree, and why others cannot be compared."""
    if not made.claims:
        return [Words([made.lacks], "notes")] if made.lacks else []
    chosen = [claim for claim in published_claims().claims if table_of(claim) in made.claims]
    by_claim: dict[str, dict[str, Check]] = {}
    for each in found:
        by_claim.setdefault(each.claim.id, {})[each.figure] = each
    further = dict.fromkeys(each.figure for each in found if each.figure not in _FIGURES)
    figures = [name for name in (*_FIGURES, *further) if any(name in each for each in by_claim.values())]
    columns = [Column("method", "method", words=True), Column("task", "task", words=True)]
    for name in figures:
        columns += [Column(f"{name} printed", name), Column(f"{name} ours", "ours"), Column(f"{name} agrees", "")]
    times = Counter(_named(claim) for claim in chosen)
    body = [_row(claim, by_claim[claim.id], figures, times) for claim in chosen if claim.id in by_claim]
    left = sum(claim.id not in by_claim for claim in chosen)
    lines = [made.lacks] if made.lacks else []
    lines += [f"{left} of {len(chosen)} printed rows have no run here."] if left else []
    reasons = Counter(why for each in found if each.verdict == "not comparable" for why in each.why)
    lines += [f"not comparable ({count} figures): {why}" for why, count in reasons.most_common(_REASONS)]
    legend = "= agrees: our 95% interval covers the printed figure. ≠ it does not. Without a sign: not comparable."
    return [Table("reproduced", "Printed and ours", columns, body, Source((), legend)), Words(lines, "notes")]


def _named(claim: Claim) -> tuple[str, str]:
    """Method with its setting, and the task."""
    return ", ".join(part for part in (claim.method, claim.setting) if part), claim.task


def _row(claim: Claim, mine: Mapping[str, Check], figures: Sequence[str], times: Mapping[tuple[str, str], int]) -> Row:
    """A printed row; the model is named where other models have the same row."""
    name, task = _named(claim)
    cells = [Cell(f"{name}, {claim.model}" if times[name, task] > 1 else name), Cell(task)]
    for name in figures:
        each = mine.get(name)
        if each is None:
            cells += [NOTHING, NOTHING, Cell("")]
        else:
            printed = Cell(str(each.published), float(each.published))
            cells += [printed, here_cell(each), Cell(_SIGNS[each.verdict])]
    return Row(cells, method=claim.method, key=claim.id)


def reproductions_report() -> list[Block]:
    """The list of all reproductions: what each is, and what it needs."""
    columns = [Column("source", "source", words=True, once=True), Column("table", "table", words=True),
               Column("what", "what", words=True), Column("how", "runs", words=True)]  # fmt: skip
    body = []
    for (source, table), made in reproductions().items():
        how = "needs more" if made.needs else "campaign" if made.campaign else "picture"
        body.append(Row([Cell(source), Cell(table), Cell(made.title), Cell(how)], key=f"{source} {table}"))
    note = "specbench reproduce SOURCE TABLE --scale small runs one on SmolLM2-135M; --dry-run says what it takes."
    return [Table("reproductions", "", columns, body), Words([note], "notes")]


def check_picture(made: Reproduction, file: Path) -> str:
    """The view of a reproduction's picture: trajectory, round or race."""
    views = [view for view in ("trajectory", "round", "race") if view in made.picture]
    if len(views) != 1:
        raise UsageError(f"cannot use {file}: picture must name one of trajectory, round and race; {_TODO}")
    return views[0]
