"""A run's figures from its records: pure functions, no torch. Definitions are those of ``docs`` in the README.

* ``tpf`` = Σ(n_out − 1) / Σ target forwards after prefill.
* ``tok_s`` = Σ(n_out − 1) / Σ decode seconds; at concurrency above 1 a request's decode seconds are its share of the
  engine's time, so the same formula is the throughput.
* ``speedup`` = AR's pooled decode seconds per token over the method's, with a paired bootstrap over prompts.
* ``speedup == tpf × step_ratio``, where ``step_ratio`` is AR's step time over the method's.
* ``again``: a row that is another one's method with the same options once more is held against it. What they differ by
  is noise, and has to be: an interval that leaves out 1 is a fault of the machine or of the harness.
* ``over_base``: the same against plain decoding of the model that a fine-tuned one was made from.
* ``accuracy_difference``: right answers of the method less AR's, on the same prompts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from specbench.results.grades import rates
from specbench.results.schema import BASE, BASELINE, PHASES, MethodSpec, RequestRecord, RunConfig, request_key
from specbench.results.stats import (
    INTERVAL,
    Difference,
    Interval,
    PerPrompt,
    Ratio,
    detectable,
    difference_verdict,
    paired_difference,
    paired_ratio,
    per_prompt,
    prompts_needed,
    proportion_interval,
    verdict,
)

_BOOTSTRAP_SEED = 0

#: The difference that a run with too few prompts is told how to tell: 3 %, where published speedups differ by less.
TELLING = 0.03

_Key = tuple[str, int, int]  # prompt, repeat, turn


def summarise(
    config: RunConfig,
    records: Iterable[RequestRecord],
    verdicts: Mapping[str, bool] | None = None,
    lossless: Mapping[str, Mapping[str, Any]] | None = None,
    metrics: Mapping[str, Mapping[str, bool]] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        config: the run's configuration.
        records: its finished requests, any order.
        verdicts: request key -> whether its answer is right; None when not scored.
        lossless: method label -> verdict counts, see :mod:`specbench.runner.lossless`.
        metrics: further metrics, name -> request key -> right or wrong.
        engine: what the engine reported of its kernels; kept as it is.

    Returns:
        JSON-ready: ``{"rows": [one per method, AR first], ...}``. Figures that do not exist are None.
    """
    by_method: dict[str, dict[_Key, RequestRecord]] = defaultdict(dict)
    for record in records:
        by_method[record.method][record.prompt_id, record.repeat, record.turn] = record
    shared = config.concurrency > 1
    baseline = by_method.get(BASELINE, {})
    rows = []
    for spec in config.methods:
        mine = by_method.get(spec.label, {})
        row = method_figures(list(mine.values()), shared=shared)
        row = {"method": spec.label, "options": spec.options, "lossless_claimed": spec.lossless, **row}
        asked = config.simulated.get(spec.label)
        row["simulated"] = asked and asked.model_dump()
        row |= _against(baseline, mine, shared)
        twin = _twin(config.methods, spec)
        again = twin and _against(by_method.get(twin, {}), mine, shared)["speedup"]
        row["again"] = again and {"of": twin, "speedup": again}
        row["accuracy"] = _accuracy(list(mine.values()), verdicts)
        row["accuracy_difference"] = None if spec.label == BASELINE else _gained(baseline, mine, verdicts)
        row["metrics"] = {name: _accuracy(list(mine.values()), marks) for name, marks in (metrics or {}).items()}
        row["over_base"] = _over_base(by_method.get(BASE, {}), mine, verdicts, shared) if spec.label != BASE else None
        row["groups"] = _groups(baseline, mine, shared)
        row["lossless"] = _graded(lossless[spec.label], mine) if lossless and spec.label in lossless else None
        rows.append(row)
    expected = (config.task.requests or config.task.prompts) * config.repeats
    return {
        "complete": all(row["requests"] == expected for row in rows),
        "interval": INTERVAL,
        "bootstrap_seed": _BOOTSTRAP_SEED,
        "rows": rows,
        **({"engine": dict(engine)} if engine else {}),
    }


def method_figures(records: Sequence[RequestRecord], *, shared: bool = False) -> dict[str, Any]:
    """What a method's records say by themselves, without its AR twin.

    Args:
        records: its finished requests.
        shared: they shared the engine (concurrency above 1), so their share of its time counts.
    """
    tokens = sum(r.n_out for r in records)
    decoded = sum(r.n_out - 1 for r in records)
    forwards = sum(r.forwards for r in records)
    decode_s = sum(r.decoding_s(shared) for r in records)
    prefill_s = sum(r.busy_prefill_s if shared else r.ttft_s for r in records)
    return {
        "prompts": len({r.prompt_id for r in records}),
        "requests": len(records),
        "tokens": tokens,
        "tpf": _ratio(decoded, forwards),
        "tpf_all": _ratio(tokens, forwards + len(records)),
        "tok_s": _ratio(decoded, decode_s),
        "e2e_tok_s": _ratio(tokens, decode_s + prefill_s),
        "step_s": _ratio(decode_s, forwards),
        "rows_per_step": _ratio(sum(r.rows for r in records), forwards),
        "ttft_median_s": median(r.ttft_s for r in records) if records else None,
        "target_forwards": forwards,
        "draft_forwards": sum(r.draft_forwards for r in records),
        "overshoot_tokens": sum(r.n_overshoot for r in records),
        "stop_tail_tokens": sum(r.n_stop_tail for r in records),
        "truncated": sum(r.stop_reason == "length" for r in records),
        "phases": _phases(records),
        "measures": _measures(records),
        "gpu": _gpu(records),
    }


def _gpu(records: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """What the GPU did over the requests: medians of clock and power, the highest temperature, the energy of a token.

    None without a trace. ``energy_per_token_j`` counts what the prefills took too, over all kept tokens.
    """
    traced = [(r, r.gpu) for r in records if r.gpu]
    if not traced:
        return None

    def known(name: str) -> list[float]:
        return [value for _, gpu in traced if (value := getattr(gpu, name)) is not None]

    clocks, powers = known("sm_clock_mhz"), known("power_w")
    throttled = [gpu.throttled for _, gpu in traced if gpu.throttled]
    tokens = sum(r.n_out for r, gpu in traced if gpu.energy_j is not None)
    return {
        "sm_clock_mhz": median(clocks) if clocks else None,
        "power_w": median(powers) if powers else None,
        "temperature_c": max(known("temperature_c"), default=None),
        "energy_per_token_j": _ratio(sum(known("energy_j")), tokens),
        "throttled": len(throttled),
        "throttle_reasons": list(dict.fromkeys(reason for reasons in throttled for reason in reasons)),
    }


def _phases(records: Sequence[RequestRecord]) -> dict[str, float] | None:
    """Median seconds of a step by phase, and of all but the forward together; None without a trace."""
    steps = [step for r in records if r.phases_s for step in zip(*(r.phases_s[p] for p in PHASES), strict=True)]
    if not steps:
        return None
    found = {f"{phase}_s": median(spent) for phase, spent in zip(PHASES, zip(*steps, strict=True), strict=True)}
    forward = PHASES.index("forward")
    return {**found, "host_s": median(sum(step) - step[forward] for step in steps)}


def _measures(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Mean over requests of each figure of the method's own; a request that has none of a name is left out of it."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.measures.items():
            found[name].append(value)
    return {name: mean(values) for name, values in found.items()}


def _against(
    baseline: Mapping[_Key, RequestRecord], mine: Mapping[_Key, RequestRecord], shared: bool
) -> dict[str, Any]:
    """Speedups over AR on the requests that both have; pairs of unlike length are kept and flagged, never dropped."""
    keys = sorted(baseline.keys() & mine.keys())
    ar, method = [baseline[k] for k in keys], [mine[k] for k in keys]
    prompts = [prompt for prompt, *_ in keys]  # repeats and turns of one prompt are no independent samples
    decode = _paired(
        [(r.decoding_s(shared), r.n_out - 1) for r in ar],
        [(r.decoding_s(shared), r.n_out - 1) for r in method],
        prompts,
    )
    whole = _paired([(r.whole_s(shared), r.n_out) for r in ar], [(r.whole_s(shared), r.n_out) for r in method], prompts)
    steps = [_ratio(sum(r.decoding_s(shared) for r in arm), sum(r.forwards for r in arm)) for arm in (ar, method)]
    return {
        "speedup": decode,
        "e2e_speedup": whole,
        "step_ratio": _ratio(steps[0], steps[1]),
        "length_changed": sum(a.n_out != m.n_out for a, m in zip(ar, method, strict=True)),
        # Later turns that certainly followed other answers than AR's: the histories differ in length.
        "prompt_changed": sum(a.n_prompt != m.n_prompt for a, m in zip(ar, method, strict=True)),
    }


def _groups(
    baseline: Mapping[_Key, RequestRecord], mine: Mapping[_Key, RequestRecord], shared: bool
) -> dict[str, dict[str, Any]]:
    """The figures of each group of categories, for tasks that have them, and of all prompts as "overall".

    Beside our definitions, Spec-Bench's (Xia et al. 2024, ``evaluation/speed.py``): ``specbench_speedup`` is a ratio of
    mean tokens per second, and ``specbench_mat`` the mean of tokens per forward over all forwards, the prefill's one
    included, as it is for its AR, prompt lookup and lookahead rows.
    """
    groups: dict[str, dict[_Key, RequestRecord]] = defaultdict(dict)
    for key, record in mine.items():
        if record.category:
            groups[record.category.partition("/")[0]][key] = record
    if len(groups) > 1:
        groups.setdefault("overall", dict(mine))
    found = {}
    for name, members in groups.items():
        records = list(members.values())
        twins = {key: baseline[key] for key in members if key in baseline}
        figures = method_figures(records, shared=shared)
        found[name] = {
            **{k: figures[k] for k in ("prompts", "requests", "tokens", "tpf", "tok_s", "ttft_median_s", "truncated")},
            **_against(twins, members, shared),
            "specbench_mat": mean([1] * len(records) + [kept for r in records for kept in r.accepts]),
            "specbench_speedup": _specbench_speedup(twins, {key: members[key] for key in twins}, shared),
        }
    return found


def _specbench_speedup(
    baseline: Mapping[_Key, RequestRecord], mine: Mapping[_Key, RequestRecord], shared: bool
) -> float | None:
    """Mean over repeats of the ratio of mean speeds.

    The two sides are not counted alike: a method's tokens are those it generated, AR's are those of its answer's text,
    which has no stop token. On answers of twenty tokens that favours the method by 5%.
    """
    ratios = []
    for repeat in sorted({repeat for _, repeat, _ in mine}):
        ar, method = ([r for (_, n, _), r in arm.items() if n == repeat] for arm in (baseline, mine))
        speeds = _mean_speed(method, shared), _mean_speed(ar, shared, of_text=True)
        ratios.append(_ratio(*speeds))
    known = [ratio for ratio in ratios if ratio is not None]
    return mean(known) if known else None


def _mean_speed(records: Sequence[RequestRecord], shared: bool, of_text: bool = False) -> float | None:
    """Mean over questions of tokens per second, all turns of a question together, prefill included."""
    questions: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        questions[record.prompt_id].append(record)
    speeds = [
        sum(r.text_tokens if of_text else r.n_out for r in turns) / sum(r.whole_s(shared) for r in turns)
        for turns in questions.values()
    ]
    return mean(speeds) if speeds else None


def _twin(methods: Sequence[MethodSpec], spec: MethodSpec) -> str | None:
    """The first row that runs the same method in the same way, if that is another one."""
    how = spec.model_dump(exclude={"label"})
    first = next(method for method in methods if method.model_dump(exclude={"label"}) == how)
    return None if first.label == spec.label else first.label


def _over_base(
    base: Mapping[_Key, RequestRecord],
    mine: Mapping[_Key, RequestRecord],
    verdicts: Mapping[str, bool] | None,
    shared: bool,
) -> dict[str, Any] | None:
    """Held against plain decoding of what the model was made from: other weights, so other answers; None without it."""
    if not base:
        return None
    return {
        "speedup": _against(base, mine, shared)["speedup"],
        "accuracy_difference": _gained(base, mine, verdicts),
    }


def _graded(tally: Mapping[str, Any], mine: Mapping[_Key, RequestRecord]) -> dict[str, Any]:
    """A tally with the rates of its grades over prompts, each by the worst of its answers."""
    prompts = {request_key("", *key).removeprefix("|"): key[0] for key in mine}
    diverged = [(prompts[d["prompt"]], d["grade"]) for d in tally.get("divergences", ()) if d["prompt"] in prompts]
    return {**tally, "rates": rates(prompts.values(), diverged)}


def _paired(
    numerator: Sequence[tuple[float, float]], denominator: Sequence[tuple[float, float]], prompts: Sequence[str]
) -> dict[str, Any] | None:
    if not prompts:
        return None
    ar, method = (tuple(map(list, zip(*arm, strict=True))) for arm in (numerator, denominator))
    ratio = paired_ratio(ar, method, seed=_BOOTSTRAP_SEED, clusters=prompts)  # type: ignore[arg-type]
    return ratio_json(ratio, per_prompt(ar, method, prompts))  # type: ignore[arg-type]


def ratio_json(ratio: Ratio, each: PerPrompt | None) -> dict[str, Any] | None:
    """A ratio as it is recorded; None where an arm decoded nothing after its first token, so that there is none.

    Returns:
        ``value``, ``low``, ``high``, ``verdict``; ``per_prompt``: ``median`` and ``geometric_mean``; ``detectable``:
        the relative difference that these prompts tell with a chance of 80 %; ``to_tell``: how many ``prompts`` it
        takes to tell a ``difference``.
    """
    if math.isnan(ratio.value):
        return None
    return {
        "value": ratio.value,
        **_interval(ratio.interval),
        "verdict": verdict(ratio),
        "per_prompt": each and {"median": each.median, "geometric_mean": each.geometric_mean},
        "detectable": detectable(ratio),
        "to_tell": {"difference": TELLING, "prompts": prompts_needed(ratio, TELLING)},
    }


def difference_json(difference: Difference) -> dict[str, Any]:
    """A difference of shares of right answers as it is recorded, McNemar's p-value beside the interval."""
    return {
        "value": difference.value,
        **_interval(difference.interval),
        "verdict": difference_verdict(difference),
        "gained": difference.gained,
        "lost": difference.lost,
        "p_value": difference.p_value,
    }


def _gained(
    baseline: Mapping[_Key, RequestRecord], mine: Mapping[_Key, RequestRecord], verdicts: Mapping[str, bool] | None
) -> dict[str, Any] | None:
    """Right answers beyond AR's, on the requests of which both are scored."""
    pairs = [(mine[key], baseline[key]) for key in sorted(mine.keys() & baseline.keys())]
    scored = [(m, ar) for m, ar in pairs if verdicts and m.key in verdicts and ar.key in verdicts]
    if not scored or verdicts is None:
        return None
    right = [[verdicts[record.key] for record in arm] for arm in zip(*scored, strict=True)]
    prompts = [record.prompt_id for record, _ in scored]
    return difference_json(paired_difference(right[0], right[1], seed=_BOOTSTRAP_SEED, clusters=prompts))


def _interval(interval: Interval | None) -> dict[str, Any]:
    return {"low": interval and interval.low, "high": interval and interval.high}


def _accuracy(records: Sequence[RequestRecord], verdicts: Mapping[str, bool] | None) -> dict[str, Any] | None:
    if verdicts is None:
        return None
    scored = [verdicts[r.key] for r in records if r.key in verdicts]
    if not scored:
        return None
    return {
        "value": sum(scored) / len(scored),
        "passed": sum(scored),
        "scored": len(scored),
        **_interval(proportion_interval(sum(scored), len(scored))),
    }


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
