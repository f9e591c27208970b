"""The headline table of a task: every method of its runs beside its AR twin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.report.document import Cell, Column, Row, Source, Table
from specbench.report.page import cells
from specbench.report.tables.figures import name as named
from specbench.report.tables.notes import LEGEND
from specbench.results import BASELINE
from specbench.results.bandwidth import bandwidth_line
from specbench.results.disturbance import disturbance_line
from specbench.results.engine_line import layers_line
from specbench.results.run_file import device_name

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results.read import ReadRun
    from specbench.results.schema import MethodSpec
    from specbench.results.summary_schema import MethodSummary


FORMULA = (
    f"{LEGEND} step ratio: AR's seconds per forward over the method's, so that speedup = TPF × step ratio. "
    "e2e: the same speedup with prefill, all tokens over all seconds. cut: answers that ended at the token budget."
)

_LOSSY = "not AR's text (lossy): no speed without its quality"


def headline(task: str, runs: Sequence[Run]) -> Table:
    """The table of one task; the rows of a run stand together, those that are lossy last.

    A lossy row without accuracy, or a judge's rating where the task has no verdict, shows no speed: text that is not
    AR's can be as fast as one likes.
    """
    metric = next((run.config.task.metric for run in runs if run.config.task.metric), "score")
    columns = [
        Column("method", "method", words=True),
        Column("tokens_per_forward", "TPF"),
        Column("decode_tok_s", "tok/s"),
        Column("speedup", "speedup"),
        Column("verdict", "verdict", words=True),
        Column("step_ratio", "step ratio"),
        Column("e2e_speedup", "e2e"),
        Column("accuracy", metric),
        Column("lossless", "lossless", words=True),
        Column("cut_share", "cut"),
    ]
    made = [row for run in runs for row in _rows(run)]
    return Table(f"headline {task}", "", columns, made, Source([run.id for run in runs], FORMULA))


def conditions(run: Run | ReadRun) -> str:
    """What the rows of a run have in common, in a line."""
    config, device = run.config, device_name(run.run)
    model, sampling = config.model, config.sampling
    parts = [f"{model.name} {model.dtype}{' (dummy weights)' if model.dummy else ''}", device]
    greedy = sampling.temperature == 0
    parts.append("greedy" if greedy else f"T={sampling.temperature:g} seed {sampling.seed}")
    parts += [config.task.said, f"at most {config.max_new_tokens} new tokens"]
    parts += [f"concurrency {config.concurrency}"]
    parts += ["traced, which slows its steps"] if config.trace else []
    parts += [] if run.complete else ["NOT COMPLETE"]
    parts += [line for line in (layers_line(run.summary.engine), bandwidth_line(run.summary)) if line]
    parts += [line] if (line := disturbance_line(run.summary)) else []
    return " · ".join(parts)


def withheld(run: Run, row: MethodSummary) -> bool:
    """Whether a row's speed is not to be shown: other text than AR's, and nobody has said how good it is."""
    return _is_lossy(row) and row.accuracy is None and rating(run, row.method) is None


def _is_lossy(row: MethodSummary) -> bool:
    """Whether its text is another than AR's; of a lottery's text there is nothing to say."""
    return row.lossless is not None and row.lossless.verdict == "lossy" and not row.simulated


def settings(specs: Sequence[MethodSpec]) -> dict[str, str]:
    """What tells the rows of one method apart, by label: the options that are not the same in all of them."""
    found = {}
    for spec in specs:
        others = [other.options for other in specs if other.name == spec.name]
        apart = [key for key in spec.options if any(other.get(key) != spec.options[key] for other in others)]
        found[spec.label] = ", ".join(f"{key} {_plain(spec.options[key])}" for key in apart)
    return found


def _plain(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _rows(run: Run) -> Iterator[Row]:
    apart = settings(run.config.methods)
    ordered = sorted(run.rows, key=_is_lossy)
    for row in ordered:
        part = f"{run.id} · {_LOSSY if _is_lossy(row) else conditions(run)}"
        yield Row(_cells(run, row, apart[row.method]), run.id, row.method, part, strong=row.baseline)


def _cells(run: Run, row: MethodSummary, apart: str) -> list[Cell]:
    name = Cell(named(row), under=apart)
    quality = cells.accuracy(row.accuracy) if not row.simulated else cells.NOTHING
    judged = rating(run, row.method)
    if row.accuracy is None and judged is not None:
        quality = judged
    cut = row.truncated / row.requests if row.requests else None
    share = cells.NOTHING if cut is None else Cell(f"{cut:.0%}", cut)
    if withheld(run, row):
        said = Cell("withheld", under="lossy and not scored", tone="bad")
        return [name, *[cells.NOTHING] * 3, said, *[cells.NOTHING] * 2, quality, cells.lossless(row), share]
    base = row.method == BASELINE
    one = Cell("1", 1.0)
    return [
        name,
        cells.figure(row.tokens_per_forward, 2),
        cells.figure(row.decode_tok_s, 1),
        one if base else cells.ratio(row.speedup),
        _verdict(row),
        one if base else cells.figure(row.step_ratio, 2),
        one if base else cells.ratio(row.e2e_speedup),
        quality,
        cells.lossless(row),
        share,
    ]


def _verdict(row: MethodSummary) -> Cell:
    if row.baseline:
        return Cell("baseline", tone="faint")
    if row.again:  # what it differs by from its twin is noise, whatever it says of AR
        return Cell("A/A", under=f"{row.again.of} once more", tone="faint")
    return cells.verdict(row.speedup)


def rating(run: Run, method: str) -> Cell | None:
    """The mean rating by the first judge who gave one."""
    for judged in run.judged:
        score = judged["methods"].get(method, {}).get("score")
        if score is not None:
            return replace(cells.figure(score, 2), under="judge's rating, 1 to 10")
    return None
