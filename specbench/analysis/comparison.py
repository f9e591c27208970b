"""Compare runs request by request, from their files; the first run is the reference, A.

Runs with different prompts, budgets or sampling are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from specbench.analysis.blocks import prompt_segments, timing_units
from specbench.analysis.figures import method_figures
from specbench.analysis.noise import UNSURE, unsure_speedup
from specbench.analysis.read import ReadRun, read_whole
from specbench.analysis.speedup import difference_of, speedup_of
from specbench.analysis.stats.proportions import paired_difference
from specbench.analysis.stats.ratio import paired_ratio, per_prompt, relative_ratio
from specbench.common import Undecided, UsageError, unknown_name
from specbench.results import BASELINE, PROCESSORS, AccuracyDifference, MethodSpec, RequestRecord, Speedup

_SEED = 0  # for the bootstrap, as in summaries

_Key = tuple[str, int, int]  # prompt, repeat, turn
_Arm = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Side:
    """One of the compared runs: its letter in tables, and the row to compare (None: all rows that both runs have)."""

    letter: str
    path: Path
    label: str | None
    read: ReadRun

    def requests(self, label: str) -> dict[_Key, RequestRecord]:
        """The requests of a row."""
        return {(r.prompt_id, r.repeat, r.turn): r for r in self.read.records if r.method == label}

    def spec(self, label: str) -> MethodSpec:
        """The configuration of a row."""
        return next(spec for spec in self.read.config.methods if spec.label == label)


def read_sides(targets: Sequence[str]) -> list[Side]:
    """Read the complete runs given as ``FOLDER`` or ``FOLDER:METHOD``; UsageError unless there are 2 to 26."""
    if not 2 <= len(targets) <= len(ascii_uppercase):
        most = len(ascii_uppercase)
        raise UsageError(f"cannot compare {len(targets)} runs: name two to {most}, as RUN or RUN:METHOD")
    sides = []
    known: dict[Path, ReadRun] = {}
    for letter, target in zip(ascii_uppercase, targets, strict=False):
        path, label = split_target(target)
        read = known[path] = known.get(path) or read_whole(path)
        labels = [spec.label for spec in read.config.methods]
        if label is not None and label not in labels:
            raise unknown_name("method", label, labels, f"of {path}")
        sides.append(Side(letter, path, label, read))
    return sides


def split_target(target: str) -> tuple[Path, str | None]:
    """The folder and the row of ``FOLDER`` or ``FOLDER:METHOD``."""
    if os.path.exists(target) or ":" not in target:  # unlike Path.exists, it never raises
        return Path(target), None
    before, _, label = target.rpartition(":")
    return Path(before), label


def compare(sides: Sequence[Side]) -> dict[str, Any]:
    """Compare every run with the first, as JSON-ready data; UsageError if runs are not comparable.

    For each pair of rows, ``rows`` has ``speedup`` over A, ``over_ar`` (ratio of the speedups over each run's own AR),
    and pairs [A, other] of ``decode_tok_s``, ``tokens_per_forward`` and ``right``. ``differs`` has a line per other
    difference.
    """
    reference, *others = sides
    rows, differs = [], {}
    for other in others:
        if why := next(_unlike(reference, other), None):
            raise UsageError(f"cannot compare {other.path} with {reference.path}: {why}")
        pairs = _pairs(reference, other)
        differs[other.letter] = [*_differences(reference, other), *_of_methods(reference, other, pairs)]
        rows += [_row(reference, other, *pair) for pair in pairs]
    task = reference.read.config.task
    return {
        "task": {
            "name": task.name,
            "version": task.version,
            "metric": task.metric,
            "prompts": task.prompts,
            "drawn": task.description,
            "temperature": reference.read.config.sampling.temperature,
        },
        "runs": [
            {
                "letter": side.letter,
                "folder": str(side.path),
                **_described(side),
                "disturbed": _disturbed(side),
                "calibrated": list(side.read.summary.engine.get("calibrated", [])),
            }
            for side in sides
        ],
        "rows": rows,
        "differs": differs,
    }


def _unlike(a: Side, b: Side) -> Iterator[str]:
    """Why two runs are not comparable, and what to do."""
    ours, theirs = a.read.config, b.read.config
    sampling, other = ours.sampling, theirs.sampling
    sampled = sampling.temperature > 0
    asked: list[tuple[str, Any, Any]] = [
        ("task", ours.task.name, theirs.task.name),
        ("task version", ours.task.version, theirs.task.version),
        ("token budget", ours.max_new_tokens, theirs.max_new_tokens),
        ("temperature", sampling.temperature, other.temperature),
        *(
            (name.replace("_", " "), getattr(sampling, name), getattr(other, name))
            for name in ("top_k", "top_p", "seed", *PROCESSORS)
            if sampled or name in PROCESSORS[1:]  # the first is min-p
        ),
        ("concurrency", ours.concurrency, theirs.concurrency),
        ("number of prompts", ours.task.prompts, theirs.task.prompts),
    ]
    for what, mine, its in asked:
        if mine != its:
            todo = {"task": "name runs of one task", "task version": "repeat the older run with this specbench"}
            advice = todo.get(what, "repeat one run with the value of the other")
            yield f"different {what} ({its}, not {mine}); {advice}"
    for name in sorted(ours.task.options.keys() | theirs.task.options.keys()):
        mine, its = (task.options.get(name) for task in (ours.task, theirs.task))
        if mine != its:
            yield f"different {name} of the task ({its}, not {mine}); repeat one run with the --task-set of the other"
    if {key[0] for key in a.requests(BASELINE)} != {key[0] for key in b.requests(BASELINE)}:
        yield "different prompts; repeat one run with the prompts of the other"
    if not _same_prompts(a, b) and ours.model.fingerprint == theirs.model.fingerprint:
        if ours.undated().task.prompts_sha256 == theirs.undated().task.prompts_sha256:
            begun = [side.task.dated.at for side in (ours, theirs) if side.task.dated]
            yield (
                f"the chat template writes the time into prompts, and the runs started at {' and '.join(begun)}; the "
                "prompts are otherwise equal; run the rows that you want to compare in one command"
            )
        yield "the same model got different prompt texts; repeat both runs with the same specbench and model files"
    if ours.simulated != theirs.simulated:
        yield "different simulated acceptance; repeat one run with the --simulate-acceptance of the other"


def _same_prompts(a: Side, b: Side) -> bool:
    return a.read.config.task.prompts_sha256 == b.read.config.task.prompts_sha256


def _pairs(a: Side, b: Side) -> list[tuple[str, str]]:
    """The rows to compare: the named ones, otherwise those with equal labels."""
    labels, others = ([spec.label for spec in side.read.config.methods] for side in (a, b))
    if a.label is None and b.label is None:
        if a.path == b.path:
            raise UsageError(
                f"cannot compare {a.path} with itself: it is named twice; name two of its methods, as RUN:METHOD"
            )
        return [(label, label) for label in labels if label in others]
    mine, its = a.label or b.label, b.label or a.label
    assert mine is not None
    assert its is not None
    for side, label, known in ((a, mine, labels), (b, its, others)):
        if label not in known:
            raise unknown_name("method", label, known, f"of {side.path}", choose="name one as RUN:METHOD")
    return [(mine, its)]


def _described(side: Side) -> dict[str, Any]:
    """The settings of a run that may differ between compared runs."""
    config = side.read.config
    environment = side.read.run.get("environment") or {}
    cpu, device = (environment.get(name) or {} for name in ("cpu", "device"))
    dirty = " with changes" if environment.get("git_dirty") else ""
    commit = environment.get("git_commit")
    return {
        "model": config.model.name,
        "weights": config.model.fingerprint[:12],
        "dtype": config.model.dtype,
        "device": device.get("name"),
        "processor": cpu.get("model"),
        "generation of processor": cpu.get("cpuid"),
        "threads": cpu.get("torch_threads"),
        "commit": commit and commit[:12] + dirty,
        "specbench": environment.get("specbench"),
        "torch": environment.get("versions", {}).get("torch"),
        "attention": config.attention,
        "graphs": config.graphs,
        "compile": config.compile,
        "deterministic": config.deterministic,
        "linears": config.linears,
        "trace": config.trace,
        "keep_prefix": config.keep_prefix,
        "repeats": config.repeats,
        "arrivals": config.load and f"{config.load.arrivals} {', '.join(map(str, config.load.points))}/s",
    }


def _disturbed(side: Side) -> list[str]:
    found = side.read.summary.disturbed
    return list(found.reasons) if found else []


def _differences(a: Side, b: Side) -> list[str]:
    """The settings that differ between two runs."""
    mine, its = _described(a), _described(b)
    found = [f"{name} {its[name]}, not {mine[name]}" for name in mine if mine[name] != its[name]]
    if not _same_prompts(a, b):
        found.append("prompts are tokenised differently, so a token is not the same amount of text")
    return found


def _of_methods(a: Side, b: Side, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Differences in options and weights between rows with the same label."""
    found = []
    for label, other in pairs:
        mine, its = a.spec(label), b.spec(other)
        if label != other:
            continue
        names = sorted(mine.options.keys() | its.options.keys())
        changed = [name for name in names if mine.options.get(name) != its.options.get(name)]
        found += [f"{label} {name}={its.options.get(name)}, not {mine.options.get(name)}" for name in changed]
        if mine.name != its.name:
            found.append(f"{label} is {its.name}, not {mine.name}")
        if mine.weights != its.weights:
            found.append(f"{label} drafts with other weights")
    return found


def _row(a: Side, b: Side, label: str, other: str) -> dict[str, Any]:
    """Compare two rows on the requests that both runs have."""
    mine, its = a.requests(label), b.requests(other)
    keys = sorted(mine.keys() & its.keys())
    ours, theirs = [mine[key] for key in keys], [its[key] for key in keys]
    shared = a.read.config.concurrency > 1
    prompts = [prompt for prompt, *_ in keys]
    unit = timing_units([prompt_segments(ours), prompt_segments(theirs)], shared=shared)
    timed = [unit[prompt] for prompt in prompts]
    several = len(unit) if shared else None
    arms = _arm(ours, shared), _arm(theirs, shared)
    figures = [method_figures(records, shared=shared) for records in (ours, theirs)]
    same_tokens = _same_prompts(a, b)
    differ = sum(_differs(r, s, same_tokens) for r, s in zip(ours, theirs, strict=True))
    mean, other_mean = (figure.step_s for figure in figures)
    right = _right(a, ours), _right(b, theirs)
    speedup = speedup_of(paired_ratio(*arms, seed=_SEED, clusters=timed), per_prompt(*arms, timed), several)
    over_ar = _over_ar(a, b, arms, keys, shared) if _has_two_ars(a, b, label, other) else None
    if a.read.summary.unsure or b.read.summary.unsure:
        speedup, over_ar = unsure_speedup(speedup), unsure_speedup(over_ar)
    return {
        "run": b.letter,
        "methods": [label, other],
        "requests": len(keys),
        "speedup": _written(speedup),
        "over_ar": _written(over_ar),
        "decode_tok_s": [figure.decode_tok_s for figure in figures],
        "tokens_per_forward": [figure.tokens_per_forward for figure in figures],
        "step_ratio": mean / other_mean if mean and other_mean else None,
        "right": [known and {"passed": sum(known), "scored": len(known)} for known in right],
        "accuracy_difference": _accuracy_difference(*right, prompts),
        "answers_differ": differ,
        "length_changed": sum(r.output_tokens != s.output_tokens for r, s in zip(ours, theirs, strict=True)),
        "prompts": _prompts(ours, theirs, shared, same_tokens),
    }


def _differs(one: RequestRecord, other: RequestRecord, same_tokens: bool) -> bool:
    return one.output_ids != other.output_ids if same_tokens else one.text != other.text


def _arm(records: Sequence[RequestRecord], shared: bool) -> _Arm:
    """Decode seconds and tokens after the first, as summaries count them."""
    return [r.decoding_s(shared) for r in records], [float(r.decoded_tokens) for r in records]


def _has_two_ars(a: Side, b: Side, label: str, other: str) -> bool:
    """Whether speedups over each run's own AR exist and differ from the plain speedup."""
    return a.path != b.path and {label, other} != {BASELINE}


def _over_ar(a: Side, b: Side, arms: tuple[_Arm, _Arm], keys: Sequence[_Key], shared: bool) -> Speedup | None:
    """The speedup over AR in ``b`` divided by that in ``a``, which cancels a change of the machine's speed."""
    plain = [side.requests(BASELINE) for side in (a, b)]
    ar = [_arm([records[key] for key in keys], shared) for records in plain]
    unit = timing_units([prompt_segments(each.values()) for each in plain], shared=shared)
    found = relative_ratio(
        (ar[1], arms[1]), (ar[0], arms[0]), seed=_SEED, clusters=[unit[prompt] for prompt, *_ in keys]
    )
    return speedup_of(found, None, len({prompt for prompt, *_ in keys}) if shared else None)


def _right(side: Side, records: Sequence[RequestRecord]) -> list[bool] | None:
    """Verdicts of the answers; None unless all are scored."""
    verdicts = side.read.verdicts
    found = [verdicts[r.request_id] for r in records if r.request_id in verdicts]
    return found if records and len(found) == len(records) else None


def _accuracy_difference(
    ours: list[bool] | None, theirs: list[bool] | None, prompts: Sequence[str]
) -> dict[str, Any] | None:
    if ours is None or theirs is None:
        return None
    return _written(difference_of(paired_difference(theirs, ours, seed=_SEED, clusters=prompts)))


def _written(found: Speedup | AccuracyDifference | None) -> dict[str, Any] | None:
    return None if found is None else found.written()


def _prompts(
    ours: Sequence[RequestRecord], theirs: Sequence[RequestRecord], shared: bool, same_tokens: bool
) -> list[dict[str, Any]]:
    """Figures of each prompt, with its turns and repeats together."""
    pairs: dict[str, list[tuple[RequestRecord, RequestRecord]]] = {}
    for r, s in zip(ours, theirs, strict=True):
        pairs.setdefault(r.prompt_id, []).append((r, s))
    found = []
    for prompt, mine in pairs.items():
        seconds, tokens = zip(*(map(sum, _arm(side, shared)) for side in zip(*mine, strict=True)), strict=True)
        known = all(seconds) and all(tokens)
        a, b = (s / t if t else None for s, t in zip(seconds, tokens, strict=True))
        same = not any(_differs(r, s, same_tokens) for r, s in mine)
        ratio = a / b if known and a and b else None
        found.append({"prompt": prompt, "seconds_per_token": [a, b], "speedup": ratio, "same_answer": same})
    return found


def disturbed_runs(found: Mapping[str, Any]) -> str:
    """The disturbed runs of a comparison with their reasons; empty if there are none."""
    runs = [f"{run['letter']} ({'; '.join(run['disturbed'])})" for run in found["runs"] if run["disturbed"]]
    return f"{' and '.join(runs)} {'were' if len(runs) > 1 else 'was'} disturbed" if runs else ""


def regressions(found: Mapping[str, Any], threshold: float, over_ar: bool = False) -> list[dict[str, Any]]:
    """The rows that are proven to be slower than ``threshold`` (0.97: at most 3 % slower): their whole interval lies
    below it.

    With ``over_ar`` the speedups over each run's own AR are judged. Methods of one run are interleaved, so that a
    disturbance hits them alike and widens their intervals: both are judged in disturbed runs too. Raises UsageError
    where nothing could be proven, and Undecided where speeds of two runs are judged and one was disturbed.
    """
    name = "over_ar" if over_ar else "speedup"
    judged = [row for row in found["rows"] if row[name] is not None]
    if not judged and not over_ar:
        raise UsageError("cannot judge --fail-under: no answer is longer than one token; raise --max-new-tokens")
    if not judged:
        raise UsageError("cannot judge --over-ar: no compared row has a speedup over its own AR; leave --over-ar out")
    if any(row[name]["low"] is None for row in judged):
        raise UsageError(
            f"cannot judge --fail-under: {found['task']['prompts']} prompts are too few for an interval; raise --limit"
        )
    folders = {run["letter"]: run["folder"] for run in found["runs"]}
    apart = [row for row in judged if folders[row["run"]] != found["runs"][0]["folder"]]
    if not over_ar and any(row[name]["verdict"].startswith(UNSURE) for row in apart):
        raise Undecided(
            f"cannot judge --fail-under: {disturbed_runs(found)}; repeat on a quiet machine, add --over-ar, or use "
            "--fail-under-acceptance"
        )
    return [row for row in judged if row[name]["high"] < threshold]
