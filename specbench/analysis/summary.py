"""Compute a run's figures from its records, for ``summary.json``.

* ``speedup`` = AR's pooled decode seconds per token over the method's, with a paired bootstrap over prompts.
* ``speedup == tokens_per_forward × step_ratio``, where ``step_ratio`` is AR's step time over the method's.
* ``again``: a row that repeats another row's method and options is compared with it. The difference must be noise: if
  the interval excludes 1, the machine or the harness has a fault.
* ``over_base``: the speedup over plain decoding of a fine-tuned model's base model.
* ``accuracy_difference``: right answers of the method minus AR's, on the same prompts.
* ``bandwidth_share``: see :mod:`specbench.results.bandwidth`.
* ``text``: see :mod:`specbench.analysis.text_quality`.
* ``disturbed``: see :mod:`specbench.analysis.noise`; verdicts of a disturbed run begin with "unsure: ".

The other definitions are those of :mod:`specbench.analysis.figures`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specbench.analysis.context.prompt_lengths import by_context
from specbench.analysis.context.sessions import session_figures
from specbench.analysis.figures import method_figures
from specbench.analysis.losslessness import grade_rates
from specbench.analysis.noise import find_disturbance, unsure
from specbench.analysis.other_engines import other_engine, plain_of, same_precision
from specbench.analysis.rates import at_rates
from specbench.analysis.speedup import (
    BOOTSTRAP_SEED,
    MEASURES,
    Key,
    Pairs,
    bounds,
    compare_to_base,
    compare_to_baseline,
    gained,
    groups,
    joint_intervals,
    over_positions,
    with_joint_interval,
)
from specbench.analysis.stats.multiple import Many
from specbench.analysis.stats.percentiles import waiting_times
from specbench.analysis.stats.proportions import proportion_interval
from specbench.analysis.stats.ratio import INTERVAL
from specbench.analysis.text_quality import with_texts
from specbench.results import (
    BANDWIDTH,
    BASE,
    BASELINE,
    ENGINES,
    MEMORY,
    REFERENCES,
    WATCH,
    Accuracy,
    Bandwidth,
    Engines,
    Fastest,
    Likelihood,
    Lossless,
    Memory,
    MethodSpec,
    MethodSummary,
    Rate,
    RatedBranch,
    References,
    RepeatCheck,
    RequestRecord,
    RunConfig,
    RunSummary,
    Watch,
    branch_calibration,
    read_branches,
    read_likelihoods,
    read_scores,
    request_key,
)

if TYPE_CHECKING:
    from specbench.results import RunFolder


@dataclass(frozen=True)
class RunContents:
    """Input for the figures of a run.

    Attributes:
        verdicts: request id -> whether the answer is right; None if not scored.
        lossless: method label -> verdict counts, see :mod:`specbench.runner.grades.lossless`.
        engines: other engines, and failed rows, including ours.
        over_own: losslessness of other engines' speculation compared with their own plain decoding, by row.
        likelihoods: request id -> log-likelihood of the answer under the target.
    """

    config: RunConfig
    records: Iterable[RequestRecord]
    verdicts: Mapping[str, bool] | None = None
    lossless: Mapping[str, Mapping[str, Any] | Lossless] | None = None
    metrics: Mapping[str, Mapping[str, bool]] | None = None
    engine: Mapping[str, Any] | None = None
    bandwidth: Bandwidth | None = None
    watch: Watch | None = None
    engines: Engines | None = None
    over_own: Mapping[str, Mapping[str, Any] | Lossless] | None = None
    likelihoods: Mapping[str, Likelihood] = field(default_factory=dict)
    branches: Mapping[str, Sequence[RatedBranch]] = field(default_factory=dict)
    references: References | None = None

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, records: Iterable[RequestRecord], **known: Any) -> RunContents:
        """Read a run's folder; fields in ``known`` override the folder's."""
        verdicts, metrics = read_scores(folder.path)
        read: dict[str, Any] = {
            "verdicts": verdicts or None,
            "metrics": metrics,
            "bandwidth": folder.read(BANDWIDTH),
            "watch": folder.read(WATCH),
            "engines": folder.read(ENGINES),
            "likelihoods": read_likelihoods(folder.path),
            "branches": read_branches(folder.path),
            "references": folder.read(REFERENCES),
        }
        return cls(config, records, **{**read, **known})


def summarise(run: RunContents) -> RunSummary:
    """Compute the content of ``summary.json``: one row per method, AR first; missing figures are None."""
    config, verdicts, bandwidth = run.config, run.verdicts, run.bandwidth
    by_method: dict[str, dict[Key, RequestRecord]] = defaultdict(dict)
    for record in run.records:
        by_method[record.method][record.prompt_id, record.repeat, record.turn] = record
    shared = config.concurrency > 1
    baseline, base = by_method.get(BASELINE, {}), by_method.get(BASE, {})
    reported = dict(run.engine or {})
    memory: Mapping[str, Any] = reported.pop(MEMORY, {})
    known = run.engines or Engines()
    graded = {label: Lossless.model_validate(tally) for label, tally in (run.lossless or {}).items()}
    claims = {spec.label for spec in config.methods if spec.lossless}
    others = {label for label, found in graded.items() if label not in claims and found.verdict == "lossy"}
    together = _together(config, by_method, {*known.failed, *others})
    ours = [spec.label for spec in config.methods if not spec.engine]  # the drafts of other engines are unknown
    rows = []
    for spec in config.methods:
        mine = by_method.get(spec.label, {})
        answers, repeated = list(mine.values()), _repeated_row(config.methods, spec)
        against = compare_to_baseline(baseline, mine, shared)
        curve = [] if spec.label == BASELINE else over_positions(Pairs.of(baseline, mine, shared))
        speedups = {
            name: with_joint_interval(getattr(against, name), spec.label, found) for name, found in together.items()
        }
        again = compare_to_baseline(by_method.get(repeated, {}), mine, shared).speedup if repeated else None
        tally = graded.get(spec.label)
        followed = run.references.rows.get(spec.label) if run.references else None
        share = bandwidth.share(spec.label, answers, shared=shared) if bandwidth else None
        rows.append(
            MethodSummary(
                method=spec.label,
                options=spec.options,
                lossless_claimed=spec.lossless,
                simulated=config.simulated.get(spec.label),
                **dict(method_figures(answers, shared=shared)),
                **{**dict(against), **speedups},
                again=RepeatCheck(of=repeated, speedup=again) if repeated and again else None,
                drafted_as=None
                if repeated or config.simulated or spec.engine
                else _drafted_as(spec.label, ours, by_method),
                over_base=compare_to_base(base, mine, verdicts, shared) if spec.label != BASE else None,
                accuracy=_accuracy(answers, verdicts),
                accuracy_difference=None if spec.label == BASELINE else gained(baseline, mine, verdicts),
                perplexity=followed.perplexity if followed else None,
                metrics={name: _accuracy(answers, marks) for name, marks in (run.metrics or {}).items()},
                groups=groups(baseline, mine, shared),
                lossless=None if tally is None else _graded(tally, mine),
                positions=curve,
                contexts=by_context(baseline, mine, shared),
                rates=at_rates(
                    config.load,
                    baseline,
                    mine,
                    by_method.get(plain_of(spec, config.methods) or "", {}) if spec.engine else None,
                ),
                **dict(waiting_times(answers)),
                session=session_figures(config, baseline, mine),
                branches=branch_calibration(answers, run.branches),
                memory=Memory.model_validate(memory[spec.label]) if spec.label in memory else None,
                fault=None if spec.engine else known.failed.get(spec.label),
                other=other_engine(spec, config.methods, by_method, known, run.over_own or {}),
                bandwidth_share=share,
            )
        )
    alike = {spec.label for spec in config.methods if same_precision(spec, config.model.dtype)}
    expected = (config.task.requests or config.task.prompts) * config.repeats
    fields: dict[str, Any] = {"engine": reported} if reported else {}
    if bandwidth is not None:
        fields["bandwidth"] = bandwidth.figures()
    everything = [record for mine in by_method.values() for record in mine.values()]
    steady = [] if config.load else everything  # under load steps differ with the number of requests
    sides = [[record for record in steady if (record.method == BASELINE) == wanted] for wanted in (True, False)]
    disturbed = find_disturbance(
        *sides,
        concurrency=config.concurrency,
        passes=config.repeats == 1,  # then further repeats are passes of a sweep
        on_gpu=config.model.device != "cpu",
        watch=run.watch,
        bandwidth=bandwidth,
    )
    if disturbed is not None:
        fields["disturbed"] = disturbed
    made = RunSummary(
        complete=all(row.requests == expected or row.failed for row in rows),
        interval=INTERVAL,
        bootstrap_seed=BOOTSTRAP_SEED,
        rows=rows,
        fastest=fastest_of([row for row in rows if row.method in alike - others], together["speedup"]),
        **fields,
    )
    return unsure(with_texts(made, config, everything, run.likelihoods))


def _together(
    config: RunConfig, by_method: Mapping[str, Mapping[Key, RequestRecord]], out: Container[str]
) -> dict[str, Many | None]:
    """Kind of speedup -> joint intervals of the rows that might be the fastest: not AR, and neither repeated nor
    simulated nor of another precision nor among ``out``: failed rows, and rows that are lossy by design."""
    shared, baseline = config.concurrency > 1, by_method.get(BASELINE, {})
    pairs = {
        spec.label: Pairs.of(baseline, by_method[spec.label], shared)
        for spec in config.methods
        if spec.label in by_method
        and spec.label not in (BASELINE, BASE, *config.simulated)
        and spec.label not in out
        and same_precision(spec, config.model.dtype)
        and _repeated_row(config.methods, spec) is None
    }
    return {name: joint_intervals(pairs, measure) for name, measure in MEASURES.items()}


def fastest_of(rows: Sequence[MethodSummary], found: Many | None) -> Fastest | None:
    """The row with the highest speedup; if there is only one row, its own interval is used."""
    by_label = {row.method: row for row in rows}
    if found is None:
        held = [row for row in rows if row.speedup and not (row.baseline or row.method == BASE)]
        real = [row for row in held if not (row.simulated or row.again or row.failed)]
        if len(real) != 1:
            return None
        label, as_good, conclusive, among_them = real[0].method, [real[0].method], True, 1
    elif found.best is None:
        return None
    else:
        label, as_good, conclusive, among_them = found.best, list(found.as_good), found.conclusive, found.rows
    speedup = by_label[label].speedup
    if speedup is None:
        return None
    end = speedup.among or speedup
    return Fastest(
        method=label,
        among=among_them,
        low=end.low,
        high=end.high,
        verdict=speedup.verdict,
        as_good=as_good,
        conclusive=conclusive,
    )


def _drafted_as(label: str, labels: Sequence[str], by_method: Mapping[str, Mapping[Key, RequestRecord]]) -> str | None:
    """The first other row with exactly the same drafts: two names may be one method with one setting."""

    def drafted(name: str) -> dict[Key, tuple[list[int], int]]:
        return {key: (record.accepted_lengths, record.tree_rows) for key, record in by_method.get(name, {}).items()}

    mine = drafted(label)
    # Every method that never gets a draft accepted has one token per forward.
    if label in (BASELINE, BASE) or all(kept == [1] * len(kept) for kept, _ in mine.values()):
        return None
    earlier = [other for other in labels[: labels.index(label)] if other not in (BASELINE, BASE)]
    return next((other for other in earlier if drafted(other) == mine), None)


def _repeated_row(methods: Sequence[MethodSpec], spec: MethodSpec) -> str | None:
    """The first other row with the same method and options, or None."""
    how = spec.model_dump(exclude={"label"})
    first = next(method for method in methods if method.model_dump(exclude={"label"}) == how)
    return None if first.label == spec.label else first.label


def _graded(tally: Lossless, mine: Mapping[Key, RequestRecord]) -> Lossless:
    """A tally with the rates of its grades over prompts; a prompt has the grade of its worst answer."""
    prompts = {request_key("", *key).removeprefix("|"): key[0] for key in mine}
    diverged = [(prompts[left.prompt], left.grade) for left in tally.divergences if left.prompt in prompts]
    found = {grade: Rate(**rate) for grade, rate in grade_rates(prompts.values(), diverged).items()}
    return tally.model_copy(update={"rates": found})


def _accuracy(records: Sequence[RequestRecord], verdicts: Mapping[str, bool] | None) -> Accuracy | None:
    if verdicts is None:
        return None
    scored = [verdicts[r.request_id] for r in records if r.request_id in verdicts]
    if not scored:
        return None
    return Accuracy(
        value=sum(scored) / len(scored),
        passed=sum(scored),
        scored=len(scored),
        **bounds(proportion_interval(sum(scored), len(scored))),
    )
