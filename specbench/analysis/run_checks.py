"""The ways in which a run may mislead, each checked against the run's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specbench.analysis.baseline import over_engines
from specbench.analysis.rates import LATE_S, LATE_SHARE
from specbench.analysis.stats.interval import minimum_clusters
from specbench.decoding import SEEN
from specbench.results import BASE, BASELINE, MethodSummary, RunConfig, RunSummary, TaskSpec

State = Literal["fine", "misleads", "unknown"]

#: Limits from which on a figure misleads.
LOOPING, CUT, SEEN_SHARE, BANDWIDTH_SHARE, FILLED, WIDE = 0.05, 0.2, 0.05, 0.5, 0.8, 0.2
FEW = 20  # prompts
_NAMED = 3


@dataclass(frozen=True)
class RunCheck:
    """One way to be misled: what the run's files say about it, and what to do; empty if nothing is to be done."""

    name: str
    state: State
    evidence: str
    advice: str = ""


def check_run(run: Mapping[str, Any], config: RunConfig, summary: RunSummary) -> list[RunCheck]:
    """Check a run for everything that is known to make its figures mislead.

    Args:
        run: content of ``run.json``.
    """
    rows = [row for row in summary.rows if row.method != BASE]
    real = [row for row in rows if not row.simulated]
    found = [
        _complete(summary, rows),
        _simulated(rows),
        _disturbed(summary),
        _prompts(rows, config),
        _looping(real),
        _cut(real),
        _lossless(rows),
        _seen(rows, config),
        _states(config),
        _baseline(config, summary),
        _precision(rows, config),
        _together(rows, config),
        _load(rows, config),
        _traced(config),
        _data(config, run),
    ]
    return [each for each in found if each is not None]


def _complete(summary: RunSummary, rows: list[MethodSummary]) -> RunCheck:
    failed = [row.method for row in rows if row.failed]
    if failed:
        return RunCheck("complete", "misleads", f"{', '.join(failed)} failed before the end", "fix it and run again")
    if not summary.complete:
        return RunCheck("complete", "misleads", "requests are missing", "repeat the run's command to finish it")
    return RunCheck("complete", "fine", "every method decoded every prompt")


def _simulated(rows: list[MethodSummary]) -> RunCheck:
    simulated = [row.method for row in rows if row.simulated]
    if simulated:
        what = f"acceptance of {', '.join(simulated)} is simulated: speeds hold only if that acceptance is reached"
        return RunCheck("simulated acceptance", "misleads", what, "measure with real weights")
    return RunCheck("simulated acceptance", "fine", "the target verified every draft")


def _disturbed(summary: RunSummary) -> RunCheck:
    reasons = summary.disturbed.reasons if summary.disturbed else []
    if reasons:
        return RunCheck("disturbed machine", "misleads", "; ".join(reasons), "stop other programs and run again")
    if summary.disturbed is None:
        return RunCheck("disturbed machine", "unknown", "the machine was not watched", "run again with this version")
    return RunCheck("disturbed machine", "fine", "no other load, clock fall, heat or drift above its limit")


def _prompts(rows: list[MethodSummary], config: RunConfig) -> RunCheck:
    prompts = max(row.prompts for row in rows)
    wide = [
        f"{row.method} [{row.speedup.low:.2f}, {row.speedup.high:.2f}]"
        for row in rows
        if row.speedup and row.speedup.low is not None and row.speedup.high is not None
        and (row.speedup.high - row.speedup.low) / 2 > WIDE * row.speedup.value
    ]  # fmt: skip
    if prompts < FEW or (config.concurrency == 1 and prompts < minimum_clusters()):
        what = f"{prompts} prompts: another sample of prompts may give another order of the methods"
        return RunCheck("few prompts", "misleads", what, f"use --limit {FEW} or more")
    if wide:
        what = f"{prompts} prompts, and intervals wider than ±{WIDE:.0%}: {_some(wide)}"
        return RunCheck("few prompts", "misleads", what, "raise --limit, or quote the interval")
    return RunCheck("few prompts", "fine", f"{prompts} prompts")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _looping(rows: list[MethodSummary]) -> RunCheck | None:
    looping = [(row, row.text.looping / row.requests) for row in rows if row.text and row.requests]
    if not looping:
        return None
    row, share = max(looping, key=lambda each: each[1])
    if share < LOOPING:
        return RunCheck("looping answers", "fine", f"at most {share:.0%} of a method's answers end in repetitive text")
    without = row.text.without_loops if row.text else None
    over = f"; without them its speedup is {without.speedup.value:.2f}" if without and without.speedup else ""
    what = f"{share:.0%} of {row.method}'s answers end in repetitive text, which is easy to draft{over}"
    return RunCheck("looping answers", "misleads", what, "quote the speedup without them")


def _cut(rows: list[MethodSummary]) -> RunCheck:
    cut, requests = sum(row.truncated for row in rows), sum(row.requests for row in rows)
    share = cut / requests if requests else 0.0
    what = f"{share:.0%} of the answers end at the token budget"
    if share < CUT:
        return RunCheck("cut answers", "fine", what)
    return RunCheck(
        "cut answers", "misleads", f"{what}: speed at their ends is not measured, and scores are too low",
        "raise --max-new-tokens",
    )  # fmt: skip


def _lossless(rows: list[MethodSummary]) -> RunCheck | None:
    graded = [row for row in rows if row.method != BASELINE and row.lossless and not row.simulated]
    lossy = [row for row in graded if row.lossless and row.lossless.verdict == "lossy"]
    if lossy:
        named = ", ".join(f"{row.method} ({row.lossless.lossy} answers)" for row in lossy if row.lossless)
        what = f"other text than ar's: {named}; a speedup then also compares other answers"
        return RunCheck("other texts", "misleads", what, "compare right answers too, or choose a lossless method")
    if not graded:
        return None
    return RunCheck("other texts", "fine", "every answer is ar's, or differs at a numeric tie")


def _seen(rows: list[MethodSummary], config: RunConfig) -> RunCheck:
    copied = [(row, row.measures.get(SEEN, 0.0)) for row in rows]
    if worst := max((each for each in copied if each[1] >= SEEN_SHARE), key=lambda each: each[1], default=None):
        what = f"{worst[1]:.0%} of {worst[0].method}'s answers occur word for word in its corpus"
        return RunCheck("prompts that a drafter has seen", "misleads", what, "build the corpus from other prompts")
    trained = [spec.label for spec in config.methods if spec.weights]
    if trained:
        what = f"the training prompts of {_some(trained)} are not recorded with the run"
        advice = f"make sure that they are not prompts of {config.task.name}"
        return RunCheck("prompts that a drafter has seen", "unknown", what, advice)
    return RunCheck("prompts that a drafter has seen", "fine", "no method has a trained drafter or a corpus of answers")


def _states(config: RunConfig) -> RunCheck:
    warm = [spec.label for spec in config.methods if spec.stateful]
    if warm:
        what = f"{', '.join(warm)} learns from earlier requests: figures hold for these prompts in this order"
        return RunCheck(
            "warm caches across prompts", "misleads", what, "read what the method keeps, in specbench list METHOD"
        )
    return RunCheck("warm caches across prompts", "fine", "every request starts with an empty state")


def _baseline(config: RunConfig, summary: RunSummary) -> RunCheck:
    against = over_engines(config, summary)
    slow = [each for each in against if each.high is not None and each.high < 1]
    if slow:
        named = ", ".join(f"{each.row.method} ({1 / each.ratio:.2f}×)" for each in slow)
        what = f"plain decoding of another engine is faster than ar: {named}"
        return RunCheck("weak baseline", "misleads", what, "quote speedups over that engine's own decoding, too")
    baseline = next(row for row in summary.rows if row.method == BASELINE)
    share = baseline.bandwidth_share
    if share is not None and share < BANDWIDTH_SHARE:
        what = f"ar reads only {share:.2f} of the memory bandwidth: a faster AR would lower every speedup"
        return RunCheck("weak baseline", "misleads", what, "show --verbose says which code ran the layers")
    if against:
        return RunCheck("weak baseline", "fine", "no other engine's plain decoding is shown to be faster than ar")
    if share is not None:
        return RunCheck("weak baseline", "fine", f"ar reads {share:.2f} of the measured memory bandwidth")
    return RunCheck(
        "weak baseline", "unknown", "ar was not compared with the memory bandwidth or with another engine",
        "add a row of another engine, such as --method vllm:ar or hf:ar",
    )  # fmt: skip


def _precision(rows: list[MethodSummary], config: RunConfig) -> RunCheck:
    other = [
        f"{row.method} ({row.other.facts.dtype})"
        for row in rows
        if row.other and row.other.facts and row.other.facts.dtype not in ("", config.model.dtype)
    ]
    if other:
        what = f"ar runs in {config.model.dtype}, and {', '.join(other)} in other precisions"
        return RunCheck("other precision", "misleads", what, "compare rows of one precision")
    return RunCheck("other precision", "fine", f"every row runs in {config.model.dtype}")


def _together(rows: list[MethodSummary], config: RunConfig) -> RunCheck | None:
    if config.concurrency == 1 or config.load:
        return None
    known = [(row.method, row.sequences) for row in rows if row.sequences is not None]
    if not known:
        return RunCheck("concurrency reached", "unknown", "an older run", "run again with this version")
    method, least = min(known, key=lambda each: each[1])
    what = f"{method} decoded {least:.1f} of {config.concurrency} sequences at a time on average"
    if least < FILLED * config.concurrency:
        return RunCheck("concurrency reached", "misleads", what, "raise --limit, so that slots are refilled for longer")
    return RunCheck("concurrency reached", "fine", what)


def _load(rows: list[MethodSummary], config: RunConfig) -> RunCheck | None:
    if config.load is None:
        return None
    every = [(row.method, at) for row in rows for at in row.rates]
    if late := [f"{label} at {at.point}/s" for label, at in every if at.late is not None and at.late > LATE_SHARE]:
        what = f"the client sent requests more than {1e3 * LATE_S:g} ms late: {_some(late)}"
        return RunCheck("arrivals kept", "misleads", what, "stop other programs, or lower --rate")
    if grown := [f"{label} at {at.point}/s" for label, at in every if at.growing]:
        what = f"the queue grew through the blocks: {_some(grown)}; these times depend on the length of the run"
        return RunCheck("overload", "misleads", what, "quote the share of good requests there, or lower --rate")
    return RunCheck("overload", "fine", "requests were sent when they arrived, and no queue grew")


def _traced(config: RunConfig) -> RunCheck:
    if config.trace:
        return RunCheck("traced steps", "misleads", "--trace waits for the device in each step", "leave --trace out")
    return RunCheck("traced steps", "fine", "steps were not traced")


def _data(config: RunConfig, run: Mapping[str, Any]) -> RunCheck:
    task: TaskSpec = config.task
    if task.unverified:
        return RunCheck("data", "misleads", task.unverified, "use the data files that the task's page names")
    dirty = (run.get("environment") or {}).get("git_dirty")
    if dirty:
        return RunCheck("data", "unknown", "the code had uncommitted changes", "commit them and run again to publish")
    return RunCheck("data", "fine", f"{task.name} v{task.version}, {task.description}")
