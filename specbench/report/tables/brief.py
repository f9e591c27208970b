"""Short output of a run: title, table, and at most five lines about it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.analysis import UNSURE, minimum_clusters
from specbench.common import registry
from specbench.report.document import Block, Source, Title, seen_on
from specbench.report.tables.cell import name, number
from specbench.report.tables.contexts import context_table
from specbench.report.tables.latency import load_sentences, load_table, objective_lines
from specbench.report.tables.notes import DETAIL, INVALID, LIMITED, Note, gained, notes, only_jointly, rounded
from specbench.report.tables.run_parts import judgment_report
from specbench.report.tables.run_table import Finished, candidates, headline, lossy_by_design, not_judged
from specbench.report.tables.run_title import run_title, simulated_title
from specbench.report.tables.text_quality import repetition_note
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.results import MethodSummary, RunSummary

_OTHERS = 3  # methods that the second line names


def run_brief(
    run: Mapping[str, Any],
    summary: RunSummary,
    folder: str,
    judged: Sequence[Mapping[str, Any]] = (),
    *,
    called: str,
    new: bool,
) -> tuple[list[Block], list[str]]:
    """Return a run's title, table and judges' ratings, and the lines below them.

    The lines: the fastest method, its interval, the most important note, the next commands, and, for a ``new`` run, its
    folder. ``called``: what the next commands call the folder.
    """
    found = Finished.of(run, summary, judged)
    title = run_title(found)
    asked = {label: spec.model_dump() for label, spec in found.config.simulated.items()}
    warned = [f"!{simulated_title(asked)}"] if asked else []
    conditions = " · ".join(
        part
        for part in (title.sampling, title.prompts, *title.asked)
        if part and (part != "concurrency 1" or found.config.load)
    )
    blocks: list[Block] = [
        Title(title.task, f"{title.model} · {title.device}", [conditions, *warned]),
    ]
    if found.config.load:
        blocks.append(replace(load_table(found, summary.rows), source=Source()))
    else:
        blocks.append(replace(headline("", [found], withholding=False), source=Source()))
    if found.config.task.lengths:
        rows = [row for row in summary.rows if row.contexts]
        blocks += [replace(context_table(found, rows), source=Source())] if rows else []
    for each in judged:
        blocks += judgment_report(each, found.id)
    lines = [
        *_found(found),
        *_noted(found, f"specbench show {shlex.quote(called)} --verbose" if new else "--verbose"),
        f"Next:  specbench report {shlex.quote(called)}",
        *([f"run: {folder}"] * new),
    ]
    return seen_on("terminal", blocks), lines


def _noted(found: Finished, how: str) -> list[str]:
    """The most important note, and how to see the others; empty if there is none."""
    if not (ranked := _ranked(found)):
        return []
    first, *others = ranked
    if first.rank >= DETAIL:
        count = 1 + len(others)
        return [f"Note:  {count} note{'s' * (count != 1)}: {how}"]
    return [f"Note:  {first}" + (f" ({len(others)} more: {how})" if others else "")]


def _ranked(found: Finished) -> list[Note]:
    """All notes of a run, the most important first, without the last one, which explains the columns."""
    run, summary = found.run, found.summary
    failed = [
        Note.ranked(INVALID, f"{row.method} failed after {row.requests} requests: {row.failed}")
        for row in summary.rows
        if row.failed
    ]
    below = [note if isinstance(note, Note) else Note.ranked(DETAIL, note) for note in notes(run, summary)[:-1]]
    unjudged = [Note.ranked(LIMITED, line) for line in not_judged(found)]
    return sorted([*failed, *below, *unjudged], key=lambda note: note.rank)


def _found(found: Finished) -> list[str]:
    """Which method is the fastest, and the evidence; empty if only plain decoding ran."""
    summary = found.summary
    if found.config.load:
        return [f"Found: {line}" for line in load_sentences(summary)] + objective_lines(found.config.load, summary)
    own = [_own_text(row) for row in summary.rows if lossy_by_design(row) and row.e2e_speedup and not row.failed]
    rows = candidates(found, withholding=False)
    if not rows:
        return own
    best, *others = sorted(rows, key=lambda row: -(row.speedup.value if row.speedup else 0.0))
    assert best.speedup is not None
    verdict = best.speedup.verdict.removeprefix(UNSURE)
    figure = f"{number(best.speedup.value, 2)} times {BASELINE}'s speed{repetition_note(best)}"
    title = _title(found.run, best)
    if summary.unsure:
        won = f"unsure, the machine was disturbed; measured: {name(best)} {figure}"
    elif verdict == "faster":
        lossy = best.lossless is not None and best.lossless.verdict == "lossy"
        but = f", but its text is not {BASELINE}'s" if lossy else ""
        alike = [row for row in others if row.method in _as_good(summary)]
        first = "has the highest speed" if alike else "is the fastest"
        won = f"{name(best)}{f', {title},' if title else ''} {first}: {figure}{but}"
    elif verdict == "slower":
        won = f"plain decoding ({BASELINE}) is the fastest; the best method, {name(best)}, has {figure}"
    else:
        won = f"no method is shown to be faster than plain decoding ({BASELINE}); the best, {name(best)}, has {figure}"
    return [f"Found: {won}", f"Sure:  {'; '.join(_sure(summary, best, others))}", *own]


def _own_text(row: MethodSummary) -> str:
    """Speed and accuracy of a row whose method does not claim the baseline's text, so that it is never the fastest."""
    parts = []
    for speedup, word in ((row.speedup, "speed"), (row.e2e_speedup, "speed with the prompt")):
        if speedup is not None:
            low, high = speedup.interval or (None, None)
            interval = "" if low is None or high is None else f" [{number(low, 2)}, {number(high, 2)}]"
            parts.append(f"{number(speedup.value, 2)}{interval} times {BASELINE}'s {word}")
    right = gained(row.accuracy_difference) if row.accuracy_difference else "its answers were not scored"
    return f"Lossy: {name(row)} writes its own text at {', '.join(parts)}; {right}"


def _title(run: Mapping[str, Any], row: MethodSummary) -> str:
    """Title of a row's method, from its ``method.toml``; empty for other engines and methods that are not installed."""
    spec = next((spec for spec in run["methods"] if spec["label"] == row.method), None)
    card = registry.methods().get(str(spec["name"])) if spec else None
    return str(card.info.get("title", "")) if card else ""


def _sure(summary: RunSummary, best: MethodSummary, others: Sequence[MethodSummary]) -> list[str]:
    """The evidence for the first line."""
    parts = []
    if summary.unsure and summary.disturbed:
        parts.append(f"no; {summary.disturbed.reasons[0]}")
    assert best.speedup is not None
    counted = f"{best.prompts} prompt{'s' * (best.prompts != 1)}"
    if best.speedup.interval:
        low, high = best.speedup.interval
        joint = only_jointly(best.speedup)
        but = f", but the one that holds jointly for all {joint.rows} rows contains 1" if joint else ""
        parts.append(f"95% interval [{number(low, 2)}, {number(high, 2)}] on {counted}{but}")
    elif best.speedup.blocks is not None:
        some = f"{best.speedup.blocks} block{'s' * (best.speedup.blocks != 1)} of prompts"
        parts.append(f"no interval: {some}, it needs {minimum_clusters()}")
    else:
        parts.append(f"no interval: {counted}, it needs {minimum_clusters()}")
    needed = best.speedup.to_tell and best.speedup.to_tell.prompts
    if needed and needed > best.prompts and not best.speedup.verdict.endswith(("faster", "slower")):
        parts.append(f"about {rounded(needed)} prompts would show this difference")
    if alike := [row.method for row in others if row.method in _as_good(summary)]:
        parts.append(f"as good on these prompts: {_some(alike)}")
    graded = [row for row in (best, *others) if row.lossless]
    if other := [row.method for row in graded if row.lossless and row.lossless.verdict != "exact"]:
        parts.append(f"some answers of {_some(other)} are not {BASELINE}'s")
    elif graded:
        others_too = any(map(lossy_by_design, summary.rows))
        parts.append(f"all answers {'of the other rows ' * others_too}are {BASELINE}'s")
    return parts


def _as_good(summary: RunSummary) -> Sequence[str]:
    """The rows that the prompts cannot distinguish from the fastest; empty if nothing is certain."""
    return summary.fastest.as_good if summary.fastest and summary.fastest.conclusive and not summary.unsure else []


def _some(names: Sequence[str]) -> str:
    left = len(names) - _OTHERS
    return ", ".join(names[:_OTHERS]) + (f" and {left} more" if left > 0 else "")
