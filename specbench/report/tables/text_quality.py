"""Texts beside speed: the small table below the headline's, and the sentence where looping answers made a speedup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.tables.figures import number, plain, speedup
from specbench.results.degeneration import GRAMS, LEAST, LONGEST, ROUNDS
from specbench.results.schema import BASE, BASELINE
from specbench.results.summary_schema import MethodSummary, RunSummary, Speedup, TextFigures, WithoutLoops

#: A speedup that is smaller by more than this part of it without looping answers is told with what is left of it.
TOLD = 0.1

CLOSING_LOOP = (
    f"An answer loops where it ends in {ROUNDS} or more rounds of the same 1 to {LONGEST} tokens, {LEAST} tokens or "
    "more in all."
)


def texts(run: Mapping[str, Any], summary: RunSummary) -> list[RenderableType]:
    """The table of texts, where there is something to see: an answer that loops, or a text that is not AR's."""
    if run.get("simulated") or not any(map(_worth_seeing, summary.rows)):
        return []
    rows = [row for row in summary.rows if row.text]
    rated = any(row.text.log_likelihood_per_token is not None for row in rows if row.text)
    grams = [f"distinct-{GRAMS[0]}", *(f"-{n}" for n in GRAMS[1:])]
    likely = ["log-lik."] if rated else []
    table = plain(["text", "looping", "of tokens", *grams, *likely, "agrees", "prefix"])
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        assert row.text is not None
        alike.setdefault(_cells(row.text, row.requests, rated), []).append(row.method)
    for cells, methods in alike.items():
        table.add_row(", ".join(methods), *cells)
    said = [CLOSING_LOOP, "distinct-n: distinct n-grams over all n-grams, averaged over answers."]
    said += [f"log-lik.: mean log-likelihood of a token under {asked(run)}, in nats."] if rated else []
    said.append(
        f"agrees: positions with {compared_with(run)}'s token, both running free; prefix: tokens before the first "
        "other one."
    )
    return [Group(table, Text(" ".join(said), style="dim"))]


def asked(run: Mapping[str, Any]) -> str:
    """The model whose log-likelihood it is."""
    return str((run.get("base") or run["model"])["name"])


def compared_with(run: Mapping[str, Any]) -> str:
    """The row that answers are held against."""
    return BASE if any(spec["label"] == BASE for spec in run["methods"]) else BASELINE


def made_by_loops(row: MethodSummary) -> Iterator[str]:
    """What is left of a row's speedups without looping answers, where that is less by over a tenth."""
    if row.text is None or row.again:
        return
    over_base = row.over_base.speedup if row.over_base else None
    pairs = ((BASELINE, row.speedup, row.text.without_loops), (BASE, over_base, row.text.without_loops_over_base))
    for other, whole, left in pairs:
        if whole and left and _falls(whole, left):
            yield _sentence(row, other, whole, left)


def aside(row: MethodSummary) -> str:
    """The same of the speedup over AR, for a line that tells only this; empty where it is less by no more."""
    whole, left = row.speedup, row.text.without_loops if row.text else None
    if row.again or not (whole and left and _falls(whole, left)):
        return ""
    return f" ({number(left.speedup.value, 2) if left.speedup else 'nothing'} without looping answers)"


def _sentence(row: MethodSummary, other: str, whole: Speedup, left: WithoutLoops) -> str:
    said, of = f"{row.method}: {speedup(whole)} over {other}", left.prompts + left.dropped
    if left.speedup is None:
        return f"{said} is of looping answers alone: on {left.dropped} of {of} prompts one of the two loops."
    before, after = (number(one, 2) for one in (row.tokens_per_forward, left.tokens_per_forward))
    forwards = f", and {before} tokens per forward are {after}" if before != after else ""
    return (
        f"{said} falls to {speedup(left.speedup)} without the {left.dropped} of {of} prompts on which one of "
        f"the two answers loops{forwards}."
    )


def _falls(whole: Speedup, left: WithoutLoops) -> bool:
    return left.speedup is None or left.speedup.value < (1 - TOLD) * whole.value


def _worth_seeing(row: MethodSummary) -> bool:
    other = bool(row.lossless and row.lossless.verdict != "exact")
    return row.text is not None and (other or row.text.looping > 0 or (row.text.agreement or 1) < 1)


def _cells(text: TextFigures, requests: int, rated: bool) -> tuple[str, ...]:
    grams = [getattr(text, f"distinct_{n}") for n in GRAMS]
    return (
        f"{text.looping}/{requests}",
        share(text.loop_share),
        *(number(figure, 2) for figure in grams),
        *([number(text.log_likelihood_per_token, 2)] if rated else []),
        share(text.agreement),
        number(text.common_prefix_tokens, 1),
    )


def share(value: float | None) -> str:
    """A part of a whole, or a dash where there is none."""
    return "–" if value is None else f"{value:.0%}"
