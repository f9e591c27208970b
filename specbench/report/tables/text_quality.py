"""Table of a run's texts (repetition, agreement), and a note if a speedup comes from repetitive answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.analysis import GRAMS, LEAST, LONGEST, ROUNDS
from specbench.report.document import Cell, Column, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import number, speedup
from specbench.report.tables.columns import METHOD
from specbench.results import BASE, BASELINE, MethodSummary, Speedup, TextFigures, WithoutLoops

#: A note appears if a speedup falls by more than this share without repetitive answers.
NOTED = 0.1

CLOSING_LOOP = (
    f"repetitive: answers that end in {ROUNDS} or more repetitions of the same 1 to {LONGEST} tokens, {LEAST} tokens "
    "or more in all."
)


def text_tables(run: Any) -> Iterator[Table]:
    """The table of texts; no table if acceptance was simulated.

    A terminal shows it only if an answer is repetitive or a text differs from AR's.
    """
    config = run.config.model_dump()
    likelihood = f"Log-likelihood: in nats, under {scoring_model(config)} at temperature 1."
    agrees = f"agrees: positions with the same token as {compared_with(config)}, both decoding freely;"
    columns = [
        METHOD, Column("looping", "repetitive"), Column("loop_share", "of tokens"),
        *(Column(f"distinct_{n}", f"distinct-{n}", short=f"-{n}" * (n != GRAMS[0])) for n in GRAMS),
        Column(
            "log_likelihood_per_token", "log-likelihood per token", optional=True, short="log-lik.", note=likelihood
        ),
        Column("agreement", "agrees", note=agrees),
        Column(
            "common_prefix_tokens", "common prefix", short="prefix",
            note="common prefix: mean number of tokens before the first difference.",
        ),
    ]  # fmt: skip
    rows: Sequence[MethodSummary] = run.summary.rows
    body = [Row([Cell(row.method), *_cells(row.text, row.requests)], run.id, row.method) for row in rows if row.text]
    formula = (
        f"{CLOSING_LOOP} of tokens: share of all tokens in these repetitions. distinct-n: different n-grams divided by "
        "all, mean over answers."
    )
    if body and not config["simulated"]:
        seen = any(map(_worth_seeing, rows))
        yield Table(
            "texts", "Repetition and agreement of the texts", columns, body, Source([run.id], formula), folded=True,
            short="text", alike=True, only="" if seen else "page",
        )  # fmt: skip


def scoring_model(run: Mapping[str, Any]) -> str:
    """Name of the model that rates the texts' log-likelihood."""
    return str((run.get("base") or run["model"])["name"])


def compared_with(run: Mapping[str, Any]) -> str:
    """The row that answers are compared with."""
    return BASE if any(spec["label"] == BASE for spec in run["methods"]) else BASELINE


def made_by_loops(row: MethodSummary) -> Iterator[str]:
    """A row's speedups without repetitive answers, if they are smaller by more than a tenth."""
    if row.text is None or row.again:
        return
    over_base = row.over_base.speedup if row.over_base else None
    pairs = ((BASELINE, row.speedup, row.text.without_loops), (BASE, over_base, row.text.without_loops_over_base))
    for other, whole, left in pairs:
        if whole and left and _falls(whole, left):
            yield _sentence(row, other, whole, left)


def repetition_note(row: MethodSummary) -> str:
    """The same for the speedup over AR in brackets; empty if it is not smaller by more than a tenth."""
    whole, left = row.speedup, row.text.without_loops if row.text else None
    if row.again or not (whole and left and _falls(whole, left)):
        return ""
    return f" ({number(left.speedup.value, 2) if left.speedup else 'nothing'} without repetitive answers)"


def _sentence(row: MethodSummary, other: str, whole: Speedup, left: WithoutLoops) -> str:
    text, of = f"{row.method}: {speedup(whole)} over {other}", left.prompts + left.dropped
    if left.speedup is None:
        return f"{text} comes only from repetitive answers, on {left.dropped} of {of} prompts."
    before, after = (number(one, 2) for one in (row.tokens_per_forward, left.tokens_per_forward))
    forwards = f", and tokens per forward go from {before} to {after}" if before != after else ""
    return (
        f"{text} falls to {speedup(left.speedup)} without the {left.dropped} of {of} prompts on which one of "
        f"the two answers is repetitive{forwards}."
    )


def _falls(whole: Speedup, left: WithoutLoops) -> bool:
    return left.speedup is None or left.speedup.value < (1 - NOTED) * whole.value


def _worth_seeing(row: MethodSummary) -> bool:
    other = bool(row.lossless and row.lossless.verdict != "exact")
    return row.text is not None and (other or row.text.looping > 0 or (row.text.agreement or 1) < 1)


def _cells(text: TextFigures, requests: int) -> list[Cell]:
    return [
        Cell(f"{text.looping}/{requests}", text.looping),
        cell.share(text.loop_share),
        *(cell.figure(getattr(text, f"distinct_{n}"), 2) for n in GRAMS),
        cell.figure(text.log_likelihood_per_token, 2),
        cell.share(text.agreement),
        cell.figure(text.common_prefix_tokens, 1),
    ]
