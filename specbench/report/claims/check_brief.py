"""Compare published figures with a run in at most ten lines: one per method, and a command to compare more."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.common import one_line, registry
from specbench.models import names
from specbench.report.claims.catalog import Catalog, Claim
from specbench.report.claims.check import Check, Verdict
from specbench.report.claims.worth import same_model
from specbench.report.document import Block, Words
from specbench.results import BASELINE

_ROWS = 3  # methods; each takes up to two lines of 80 columns
_REASON = 55  # characters
_WORDS: Sequence[tuple[Verdict, str]] = (
    ("repeated", "agree"),
    ("not repeated", "disagree"),
    ("not comparable", "cannot be compared"),
)
_FIGURES = ("speedup", "TPF", "tok/s", "score")


def check_brief(known: Catalog, found: Sequence[Check], run: str) -> list[Block]:
    """The counts, a line for each of the first methods, and the command of a comparable run."""
    if not found:
        return [Words([f"{run}: the catalog has no published figures of these rows; specbench claims lists all"])]
    times = Counter(each.verdict for each in found)
    counts = ", ".join(f"{times[verdict]} {words}" for verdict, words in _WORDS)
    groups = _groups(found)
    lines = [f"{len(found)} published figures: {counts}"]
    lines += [_line(group) for group in groups[:_ROWS]]
    left = sorted((each for group in groups for each in group if each.verdict == "not comparable"), key=_distance)
    commands = (_command(known, each.claim) for each in left if each.row != BASELINE)
    if command := next(filter(None, commands), ""):
        lines.append(f"To compare: {command}")
    shown = sum(len(_published(group)) for group in groups[:_ROWS])
    if more := len(found) - shown:
        lines.append(f"{more} more figures: --all")
    return [Words(lines)]


def _groups(found: Sequence[Check]) -> list[list[Check]]:
    """Checks grouped by row and figure: comparable ones first, then one figure of each other row, AR's last."""
    made: dict[tuple[str, str], list[Check]] = {}
    for each in found:
        made.setdefault((each.row, each.figure), []).append(each)
    groups = sorted(made.values(), key=lambda group: _place(group[0]))
    comparable = [group for group in groups if any(each.verdict != "not comparable" for each in group)]
    rows = {group[0].row for group in comparable}
    others: dict[str, list[Check]] = {}
    for group in groups:
        if group[0].row not in rows:
            others.setdefault(group[0].row, group)
    return [*comparable, *sorted(others.values(), key=lambda group: (_place(group[0])[0], min(map(_distance, group))))]


def _place(each: Check) -> tuple[bool, int]:
    return each.row == BASELINE, _FIGURES.index(each.figure) if each.figure in _FIGURES else len(_FIGURES)


def _distance(each: Check) -> tuple[bool, int]:
    """How far a published figure is from the run: another task first, then the number of other differences."""
    return any(why.startswith("task: ") for why in each.why), len(each.why)


def _published(group: Sequence[Check]) -> list[Check]:
    """The figures for a line: the comparable ones, otherwise those of the same task, otherwise all."""
    comparable = [each for each in group if each.verdict != "not comparable"]
    return comparable or [each for each in group if not _distance(each)[0]] or list(group)


def _line(group: Sequence[Check]) -> str:
    shown = _published(group)
    least, most = (end(shown, key=lambda each: each.published).published for end in (min, max))
    there = f"{least}" if least == most else f"{least} to {most}"
    nearest = min(shown, key=_distance)
    mine = "none" if nearest.ours is None else f"{nearest.ours:.2f}"
    if nearest.low is not None and nearest.high is not None:
        mine += f" [{nearest.low:.2f}, {nearest.high:.2f}]"
    agree = sum(each.verdict == "repeated" for each in shown)
    if nearest.verdict == "not comparable":
        verdict = f"cannot be compared ({_reasons(nearest.why)})"
    elif len(shown) == 1:
        verdict = "agree" if agree else "disagree"
    else:
        verdict = f"agree with {agree} of {len(shown)}"
    count = f" ({len(shown)})" if len(shown) > 1 else ""
    return f"{nearest.row} {nearest.figure}: published {there}{count}; yours {mine}: {verdict}"


def _reasons(why: Sequence[str]) -> str:
    """The first reasons, as many as fit in a line; one of them in any case."""
    kept = [one_line(why[0], _REASON)] if why else []
    for each in why[1:]:
        if len("; ".join([*kept, each])) > _REASON:
            return "; ".join([*kept, "…"])
        kept.append(each)
    return "; ".join(kept)


def _command(known: Catalog, claim: Claim) -> str:
    """The command of a comparable run; empty if specbench lacks the method or the task."""
    model, task = _alias(claim) or f"PATH/TO/{claim.model}", claim.task.partition(":")[0]
    if not claim.model or task not in registry.tasks() or claim.method not in registry.methods():
        return ""
    words = ["specbench", "run", "--model", model, "--method", claim.method, "--task", task]
    if claim.temperature:
        words += ["--temperature", f"{claim.temperature}"]
    if claim.batch > 1:
        words += ["--concurrency", f"{claim.batch}"]
    if boards := known.gpus.get(claim.gpu):
        words += ["--gpu", boards[-1]]
    return shlex.join(words)


def _alias(claim: Claim) -> str | None:
    """The alias of a claim's model, with weights trained for the same method as in the publication."""
    aliases: Mapping[str, Mapping[str, Any]] = names.aliases()
    same = [name for name in aliases if same_model(claim.model, name)]
    fitting = [name for name in same if _trained_for(aliases[name]) == claim.trained_for]
    return next(iter(fitting), None)


def _trained_for(alias: Mapping[str, Any]) -> str:
    return "" if "head" in alias.get("options", {}) else str(alias.get("method", ""))
