"""Sentences under a run's table: verdicts, caveats and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis import FILLINGS, LOADED, minimum_clusters, prompts_for
from specbench.decoding import SEEN
from specbench.report.tables.cell import name, number, percent, speedup
from specbench.report.tables.latency import load_limits
from specbench.report.tables.text_quality import made_by_loops
from specbench.results import (
    BASELINE,
    BROKEN,
    KEPT,
    AccuracyDifference,
    JointInterval,
    MethodSummary,
    RepeatCheck,
    RunSummary,
    Speedup,
    TaskSpec,
)

LEGEND = (
    "TPF: tokens per target forward after the prefill. tok/s: decoded tokens per decode second. speedup: AR's seconds "
    "per token divided by the method's, with a 95% paired-bootstrap interval over prompts. e2e: the same with the "
    "prefill."
)


#: Importance of a note: the figures are invalid, may mislead, could be better, or are only explained.
INVALID, MISLEADING, LIMITED, DETAIL = range(4)


class Note(str):
    """A sentence about a run's table, with how much it matters: INVALID first, DETAIL last."""

    rank: int = DETAIL

    @classmethod
    def ranked(cls, rank: int, text: str) -> Note:
        """A sentence with its rank."""
        note = cls(text)
        note.rank = rank
        return note


def notes(run: Mapping[str, Any], summary: RunSummary, *, alone: bool = True) -> list[str]:
    """Sentences that qualify the table; ``alone`` adds the legend, and figures for which a page has tables.

    Important ones are a :class:`Note` with a rank.
    """
    found: list[str] = []
    described = {spec["label"]: spec.get("measures", {}) for spec in run["methods"]}
    for row in summary.rows:
        for figure, value in row.measures.items() if alone else ():
            found.append(f"{name(row)}: {value:.2f} {described[row.method].get(figure, figure)}.")
        if row.draft_forwards and alone:
            drafting = row.draft_forwards / max(1, row.target_forwards)
            found.append(f"{name(row)}: {drafting:.2f} draft model forwards per target forward.")
        ratio = row.speedup
        if row.method == BASELINE or ratio is None:
            continue
        if row.again:
            own = row.again.speedup.interval
            disturbed = own is not None and not own[0] <= 1 <= own[1]
            found.append(Note.ranked(INVALID if disturbed else LIMITED, _again(row, row.again)))
            continue
        if row.drafted_as:
            found.append(
                Note.ranked(
                    MISLEADING,
                    f"{name(row)} drafted what {row.drafted_as} did, in every forward: as it is set, it is the same.",
                )
            )
        if row.method in summary.engine.get("calibrated", []):
            found.append(
                f"{name(row)}: auto settings, chosen from step times measured before the run: "
                f"{number(row.rows_per_step, 1)} rows per tree on average."
            )
            if slow := summary.engine.get("slow_times"):
                times = f"{1e3 * slow['before_s']:.1f} ms before the run and {1e3 * slow['run_s']:.1f} ms in it"
                line = f"{name(row)}: its trees may be too large, for a step of one row took {times}"
                found.append(Note.ranked(MISLEADING, f"{line}; --again runs it with step times measured anew."))
        parts = ""  # for engines that do not report their forwards
        if row.tokens_per_forward is not None and row.step_ratio is not None:
            parts = f" = {row.tokens_per_forward:.2f} TPF × {row.step_ratio:.2f} step-time ratio"
        if alone:
            found.append(
                f"{name(row)}: {ratio.verdict}; {number(ratio.value, 2)}{parts}{_spread(ratio)}.{tells(ratio)}"
            )
        elif text := tells(ratio):
            found.append(f"{name(row)}:{text}")
        if asked := row.simulated:
            if row.tokens_per_forward is not None and row.tokens_per_forward < 0.9 * asked.mean:
                short = f"{row.tokens_per_forward:.2f} tokens a forward where {asked.mean:g} were asked for"
                found.append(
                    Note.ranked(
                        MISLEADING,
                        f"{name(row)}: {short}; its trees offer no more here, or answers are too short.",
                    )
                )
            continue  # simulated answers always end at the budget, so their lengths say nothing
        if row.length_changed:
            line = f"{row.method}: {differ_in_length(row.length_changed)} from AR's."
            found.append(Note.ranked(LIMITED, line))
        if row.prompt_changed:
            found.append(f"{row.method}: {row.prompt_changed} later turns follow answers that differ from AR's.")
        if row.accuracy_difference and not (row.lossless and row.lossless.verdict == "exact"):
            fewer = row.accuracy_difference.verdict == "fewer right"
            found.append(
                Note.ranked(MISLEADING if fewer else DETAIL, f"{row.method}: {gained(row.accuracy_difference)}.")
            )
    found += _over_base(run, summary)
    found += _calibration(summary)
    if alone:
        found += [Note.ranked(MISLEADING, text) for row in summary.rows for text in made_by_loops(row)]
    real = [row for row in summary.rows if not row.simulated]
    truncated, total = sum(row.truncated for row in real), sum(row.requests for row in real)
    if total and truncated / total > 0.02:
        line = f"{truncated} of {total} answers were cut at the token budget (cut); raise --max-new-tokens."
        found.append(Note.ranked(LIMITED, line))
    if unverified := TaskSpec.model_validate(run["task"]).unverified:
        found.insert(0, Note.ranked(MISLEADING, f"{unverified}."))
    if settings := {k: v for k, v in run["task"]["options"].items() if v not in ("", None)}:
        found.insert(0, f"{run['task']['name']}: {', '.join(f'{k} {_short(v)}' for k, v in settings.items())}.")
    supply = prompt_supply(run["task"])
    if under_load := [at.blocks for row in real for at in row.rates]:
        if min(under_load) < (least := minimum_clusters()):
            wanted = more_prompts(least * max(LOADED, FILLINGS * run["concurrency"]), supply)
            line = f"No interval: {_blocks(min(under_load))} at a rate, and an interval needs {least}; {wanted}."
            found.append(Note.ranked(LIMITED, line))
        found += [Note.ranked(MISLEADING, line) for line in load_limits(summary)]
    else:
        if seldom := seldom_filled(max(row.prompts for row in summary.rows), run["concurrency"], supply):
            found.append(Note.ranked(LIMITED, seldom))
        blocks = next((row.speedup.blocks for row in real if row.speedup), None)
        if few := few_blocks(blocks, run["concurrency"], supply):
            found.append(Note.ranked(LIMITED, few))
    found += [Note.ranked(INVALID, line) for line in _throttled(summary)]
    found += _of_losslessness(run, real)
    found += [Note.ranked(MISLEADING, line) for line in _of_other_texts(run, real)]
    if not summary.complete:
        found.append(Note.ranked(INVALID, "This run is not complete; repeat its command to go on."))
    return [*found, LEGEND] if alone else found


@dataclass(frozen=True)
class PromptSupply:
    """How many prompts a task or a file has, and its name."""

    name: str
    prompts: int


def prompt_supply(task: Mapping[str, Any]) -> PromptSupply:
    """All prompts of a run's task, or of the file that it read them from."""
    spec = TaskSpec.model_validate(task)
    file = spec.options.get("file")
    return PromptSupply(str(file) if file else spec.name, spec.taken.of if spec.taken else spec.prompts)


def more_prompts(needed: int, supply: PromptSupply | None) -> str:
    """Advice to decode at least ``needed`` prompts, or as many as the task has."""
    if supply is None or supply.prompts >= needed:
        return f"use --limit {needed} or more"
    return f"needs {needed} prompts; {supply.name} has {supply.prompts}"


def seldom_filled(prompts: int, concurrency: int, supply: PromptSupply | None = None) -> str:
    """A sentence if a run has too few prompts for its concurrency, otherwise empty."""
    if concurrency == 1 or prompts >= FILLINGS * concurrency:
        return ""
    if prompts < concurrency:
        text = f"{prompts} prompts are fewer than the {concurrency} slots"
    else:
        often = "once" if prompts == concurrency else f"{prompts / concurrency:.2g} times"
        text = f"{prompts} prompts fill {concurrency} slots {often}"
    return (
        f"{text}: slots are empty at the end, the more so the more a method's speed varies; "
        f"{more_prompts(FILLINGS * concurrency, supply)}."
    )


def few_blocks(blocks: int | None, concurrency: int, supply: PromptSupply | None = None) -> str:
    """A sentence if too few blocks were timed for an interval, otherwise empty."""
    least = minimum_clusters()
    if concurrency == 1 or blocks is None or blocks >= least:
        return ""
    were = f"{blocks} blocks were" if blocks != 1 else "only 1 block was"
    return (
        f"No interval: {were} timed ({concurrency} sequences together), and an interval needs {least} blocks; "
        f"{more_prompts(prompts_for(least, concurrency), supply)}."
    )


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)} of requests"


def _over_base(run: Mapping[str, Any], summary: RunSummary) -> Iterator[str]:
    """Speedup and accuracy of a fine-tuned model compared with plain decoding of its base model."""
    for row in summary.rows:
        over = row.over_base
        if over and over.speedup:
            right = f"; {gained(over.accuracy_difference)}" if over.accuracy_difference else ""
            base = f"AR of {run['base']['name']}, the base of {run['model']['name']}"
            yield f"{name(row)} over {base}: {over.speedup.verdict}, {speedup(over.speedup)}{right}."


def _calibration(summary: RunSummary) -> Iterator[str]:
    """How well the drafters' scores match the target, for each row that scores its drafts."""
    for row in summary.rows:
        if row.branches and not row.again:
            found = row.branches
            gap = f"{abs(found.gap_median):.1f} nats {'more' if found.gap_median >= 0 else 'less'} likely"
            yield (
                f"{row.method} scores its best branch ({found.tokens:.1f} tokens) {gap} "
                f"than the target does (median of {found.branches} trees); the gap is under {KEPT:g} nats in "
                f"{found.kept_share:.0%} and {BROKEN:g} or more in {found.broken_share:.0%} of them."
            )


def _again(row: MethodSummary, again: RepeatCheck) -> str:
    """A/A check: the same method twice in one run shows how noisy the run was."""
    ratio, twice = again.speedup, f"{name(row)} repeats {again.of}"
    if ratio.interval is None:
        return f"{twice}; too few prompts to say how noisy this run is."
    low, high = ratio.interval
    if low <= 1 <= high:
        return f"{twice}: {speedup(ratio)}, no difference, as expected.{tells(ratio)}"
    off = max(abs(low - 1), abs(high - 1))
    return f"{twice} but differs, {speedup(ratio)}: something disturbed this run; ignore differences below {off:.0%}."


def _spread(ratio: Speedup) -> str:
    """Speedups of single prompts, if the summary has them."""
    each = ratio.per_prompt
    if each is None:
        return ""
    what = "prompts" if ratio.blocks is None else "blocks"
    won = "" if each.faster is None else f", faster on {each.faster} of {each.prompts} {what}"
    won += "" if each.p_value is None else f" (sign test p = {each.p_value:.2g})"
    return f"; per prompt: median {each.median:.2f}, geometric mean {each.geometric_mean:.2f}{won}"


def only_jointly(ratio: Speedup) -> JointInterval | None:
    """The interval that holds jointly for all rows, where that includes 1 and the row's own does not."""
    own, joint = ratio.interval, ratio.among
    apart = own is not None and not own[0] <= 1 <= own[1]
    return joint if apart and joint and joint.low <= 1 <= joint.high else None


def tells(ratio: Speedup) -> str:
    """If no difference is shown: the smallest detectable one, and the prompts needed to show the observed one."""
    if "faster" in ratio.verdict or "slower" in ratio.verdict:
        return ""
    parts = []
    own = ratio.interval
    if own is None and ratio.blocks is None:
        parts.append(f"an interval needs {minimum_clusters()} prompts")
    if joint := only_jointly(ratio):
        parts.append(f"its own interval excludes 1, but among {joint.rows} rows that is no evidence")
    if seen := ratio.detectable:
        parts.append(f"these prompts can show differences of {percent(seen)} or more")
    measured = (ratio.per_prompt and ratio.per_prompt.prompts) or 0
    if (needed := ratio.to_tell) and needed.prompts and needed.prompts > measured and not joint:
        parts.append(f"about {rounded(needed.prompts)} would show the observed difference")
    return f" {'; '.join(parts).capitalize()}." if parts else ""


def rounded(count: int) -> int:
    """Round an estimated count up to two digits."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def differ_in_length(count: int) -> str:
    return "1 answer differs in length" if count == 1 else f"{count} answers differ in length"


def gained(difference: AccuracyDifference) -> str:
    """Difference in right answers from AR, on the same prompts."""
    points = f"{100 * difference.value:+.1f} points"
    if difference.interval is not None:
        low, high = difference.interval
        points += f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    split = f"{difference.gained} prompts gained, {difference.lost} lost, McNemar's p = {difference.p_value:.2g}"
    return f"{difference.verdict}: {points} of right answers; {split}"


def _of_losslessness(run: Mapping[str, Any], rows: Sequence[MethodSummary]) -> list[str]:
    """The number of prompts that support the verdict, and rows whose losslessness one run cannot show."""
    found = []
    graded = [row.lossless.rates for row in rows if row.method != BASELINE and row.lossless and row.lossless.rates]
    exact = [rates.get("exact") for rates in graded]
    if exact and all(share and share.count == share.of and share.low is not None for share in exact):
        fewest = min((share for share in exact if share), key=lambda share: share.of)
        found.append(
            f"Exact on all {fewest.of} prompts; 95% interval of the share of exact prompts: {fewest.low:.0%} to 100%."
        )
    if run["sampling"]["temperature"] > 0:
        own = [spec["label"] for spec in run["methods"] if spec.get("own_noise")]
        found += [
            f"{label} samples with its own noise: check-lossless --seeds 0:49 tests its distribution." for label in own
        ]
    return found


#: Note the share of answers found in a method's corpus from this value on; by chance it is close to 0.
_SEEN = 0.05


def _of_other_texts(run: Mapping[str, Any], rows: Sequence[MethodSummary]) -> Iterator[str]:
    """Caveats for rows that draft from texts other than their own request."""
    stateful = {spec["label"] for spec in run["methods"] if spec.get("stateful")}
    for row in rows:
        if row.method in stateful:
            yield (
                f"{name(row)} learns from earlier requests: its figures hold for these prompts in this order, and its "
                "interval wrongly treats them as independent."
            )
        if (seen := row.measures.get(SEEN, 0.0)) >= _SEEN:
            yield (
                f"{name(row)}: {seen:.0%} of its answers occur word for word in its corpus, which may therefore hold "
                "the target's own answers to this task; its speed is that of copying them."
            )


def _short(value: Any) -> str:
    """An option's value; hashes are shortened."""
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _throttled(summary: RunSummary) -> list[str]:
    """Warning that some requests ran at reduced GPU clocks, in one line."""
    seen = [row.gpu for row in summary.rows if row.gpu]
    count = sum(gpu.throttled for gpu in seen)
    if not count:
        return []
    reasons = ", ".join(dict.fromkeys(reason for gpu in seen for reason in gpu.throttle_reasons))
    total = sum(row.requests for row in summary.rows)
    return [f"{count} of {total} requests ran on a throttled GPU ({reasons}); show --requests marks them."]
