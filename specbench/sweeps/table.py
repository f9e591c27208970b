"""Read a sweep's files as a table with a row per configuration."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis import (
    UNSURE,
    AcceptanceCurves,
    Many,
    Ratio,
    ReadRun,
    curve_row,
    curves_of,
    method_figures,
    paired_ratio,
    prompt_segments,
    read_run,
    timing_units,
    verdict,
)
from specbench.hardware import StepTimes, is_profile, read_profile
from specbench.results import (
    BASELINE,
    MethodFigures,
    RequestRecord,
    SweepFindings,
    bandwidth_line,
    part_folders,
    read_head,
)
from specbench.sweeps.grid import DRAFT_LENGTH
from specbench.sweeps.measured import Measured
from specbench.sweeps.search import lossy_labels

_NAN = float("nan")


@dataclass(frozen=True)
class ReadSweep:
    """A sweep as it is on disk, finished or not: ``sweep.json``, its run folders by concurrency, and :func:`cells`."""

    path: Path
    head: Mapping[str, Any]
    runs: Mapping[int, ReadRun]
    cells: pd.DataFrame

    @property
    def finished(self) -> bool:
        """Whether every part of the sweep is finished."""
        return {*self.runs} == {*self.head["concurrency"]} and all(read.finished for read in self.runs.values())


def read_sweep(path: Path) -> ReadSweep:
    """Read a sweep folder."""
    head = read_head(path)
    runs = {count: _read(place) for count, place in part_folders(path)}
    times = None
    if is_profile(path):
        profile = read_profile(path)
        times = StepTimes(profile.shape, profile.ceilings, profile.points)
    return ReadSweep(path, head, runs, cells(head, runs, times))


def acceptance_curves(read: ReadSweep) -> AcceptanceCurves:
    """Acceptance over the draft length, of a sweep with ``--acceptance``."""
    (run,) = read.runs.values()
    lengths = {label: cell["values"].get(DRAFT_LENGTH) for label, cell in read.head["cells"].items()}
    by_label: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in run.records:
        by_label[record.method].append(record)
    rows = [
        curve_row(run.config, label, by_label[label], length)
        for label, length in lengths.items()
        if length and by_label[label]
    ]
    return curves_of(run.config, rows)


def _read(path: Path) -> ReadRun:
    read = read_run(path)
    if read.finished:
        return read
    # Findings of an earlier command do not cover configurations added since.
    return replace(read, summary=read.summary.model_copy(update={"sweep": None}))


def cells(head: Mapping[str, Any], runs: Mapping[int, ReadRun], times: StepTimes | None = None) -> pd.DataFrame:
    """One row per configuration, concurrency and set of prompts; AR is a row with method "ar".

    Columns: ``cell`` (hash of its settings), ``label``, ``method``, a column per swept option, ``concurrency``,
    ``set`` ("tuning" or "held-out"), ``prompts``, ``requests``, ``tokens``, ``target_forwards``,
    ``tokens_per_forward``, ``decode_tok_s``, ``speedup`` (over AR at the same concurrency, on the same
    prompts), both with ``_low`` and ``_high`` of a 95% bootstrap over prompts, or over the blocks of prompts that were
    stepped together, ``blocks`` of these, ``verdict`` on the speedup, ``chosen_low`` and ``chosen_high`` (for
    configurations on all prompts to choose by: a joint interval over all of them, so that the best may be quoted with
    it), ``rows_per_step``, ``step_ms``, ``predicted_decode_tok_s``, ``user_tok_s`` (1 / median time per output token),
    ``accuracy``, ``best`` (among methods; AR is faster where its speedup is below 1), ``within_noise`` (of the best
    one, itself included; none if there are too few prompts), ``stopped``, ``fault`` (how the method failed),
    ``disturbed`` (why all of that concurrency is unsure, or empty), ``memory`` (memory bandwidth at that concurrency
    and each configuration's share, in words, or empty). Missing values are nan.
    ``predicted_decode_tok_s`` follows from tokens per forward, rows per step and the step times of a profile, without
    the cost of drafting.

    Configurations that cannot run are rows with ``stopped`` "too large" and no figures; "failed" ones ended early
    because their method failed, and their figures would cover other prompts.
    """
    rows = [row for count, read in runs.items() for row in _rows(head, count, read, times)]
    for label, cell in head["too_large"].items():
        lost = {"label": label, "method": cell["method"], **cell["values"], "set": "tuning", "stopped": "too large"}
        rows += [{**lost, "concurrency": count} for count in runs]
    every = [*head["cells"].values(), *head["too_large"].values()]
    options = list(dict.fromkeys(option for cell in every for option in cell["values"]))
    figures = [
        "prompts", "requests", "tokens", "target_forwards", "tokens_per_forward", "decode_tok_s", "decode_tok_s_low",
        "decode_tok_s_high", "speedup", "speedup_low", "speedup_high", "blocks", "verdict", "chosen_low", "chosen_high",
        "rows_per_step", "step_ms", "predicted_decode_tok_s", "user_tok_s", "accuracy", "best", "within_noise",
        "own_text", "stopped", "fault", "disturbed", "memory",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["cell", "label", "method", *options, "concurrency", "set", *figures])


def _rows(
    head: Mapping[str, Any], concurrency: int, read: ReadRun, times: StepTimes | None
) -> Iterator[dict[str, Any]]:
    found = read.summary.sweep or SweepFindings()
    disturbed = "; ".join(read.summary.disturbed.reasons) if read.summary.disturbed else ""
    tuning = set(head["tuning"])
    faults = {row.method: row.fault for row in read.summary.rows if row.fault}
    ids = {str(spec["label"]): _hash(spec, read) for spec in read.run["methods"]}
    unknown = {str(spec["label"]): {"method": spec["name"], "values": {}} for spec in read.run["methods"]}
    for label, fault in faults.items():
        cell = head["cells"].get(label, unknown[label])
        base = {"cell": ids[label], "label": label, "method": cell["method"], **cell["values"]}
        yield {**base, "concurrency": concurrency, "set": "tuning", "stopped": "failed", "fault": fault}
    lossy = lossy_labels(read.config.methods) - {BASELINE}
    for name, wanted in (("tuning", True), ("held-out", False)):
        by_label: dict[str, list[RequestRecord]] = defaultdict(list)
        measured = Measured(shared=concurrency > 1)
        for record in read.records:
            if (record.prompt_id in tuning) == wanted:
                by_label[record.method].append(record)
                measured.add(record)
        # No best configuration for an unfinished sweep, which may still add it.
        every = [label for label in ids if label != BASELINE and label not in faults]
        chosen = [label for label in every if found.stopped.get(label) != "halved" and label not in lossy]
        over = name == "tuning" and found.best is not None
        together = measured.together(every, candidates=chosen) if over else _NOTHING
        for label in (each for each in ids if each not in faults):
            if records := by_label.get(label):
                cell = head["cells"].get(label, unknown[label])
                yield {
                    "cell": ids[label],
                    "label": label,
                    "method": cell["method"],
                    **cell["values"],
                    "concurrency": concurrency,
                    "set": name,
                    **_figures(label, records, measured, read, concurrency, times),
                    **_said(label, measured, together, unsure=bool(disturbed)),
                    "best": label == together.best or (name != "tuning" and label == found.best),
                    "within_noise": together.conclusive and label in together.as_good,
                    "own_text": label in lossy,
                    "stopped": found.stopped.get(label, ""),
                    "disturbed": disturbed,
                    "memory": bandwidth_line(read.summary),
                }


def _figures(
    label: str,
    records: Sequence[RequestRecord],
    measured: Measured,
    read: ReadRun,
    concurrency: int,
    times: StepTimes | None,
) -> dict[str, Any]:
    shared = concurrency > 1
    figures = method_figures(records, shared=shared)
    speed = _speed(records, shared)
    verdicts = [read.verdicts[record.request_id] for record in records if record.request_id in read.verdicts]
    return {
        "prompts": figures.prompts,
        "requests": figures.requests,
        "tokens": figures.tokens,
        "target_forwards": figures.target_forwards,
        "tokens_per_forward": figures.tokens_per_forward,
        **_three("decode_tok_s", speed),
        "rows_per_step": figures.rows_per_step,
        "step_ms": _NAN if figures.step_s is None else 1e3 * figures.step_s,
        "predicted_decode_tok_s": _predicted(figures, records, concurrency, times),
        "user_tok_s": 1 / figures.tpot_median_s if figures.tpot_median_s else _NAN,
        "accuracy": sum(verdicts) / len(verdicts) if verdicts else _NAN,
    }


_NOTHING = Many({}, None, (), False, ())


def _said(label: str, measured: Measured, together: Many, *, unsure: bool) -> dict[str, Any]:
    """A configuration's speedup with its verdict, marked if the machine was disturbed."""
    over = None if label == BASELINE else measured.speedup(label)
    chosen = together.intervals.get(label)
    own = over.interval if over else None
    words = "" if over is None else together.verdict(label, own) if label in together.labels else verdict(own)
    return {
        **_three("speedup", over),
        "blocks": over.clusters if over else _NAN,
        "verdict": f"{UNSURE}{words}" if unsure and over and over.interval else words,
        "chosen_low": chosen.low if chosen else _NAN,
        "chosen_high": chosen.high if chosen else _NAN,
    }


def _predicted(
    figures: MethodFigures, records: Sequence[RequestRecord], concurrency: int, times: StepTimes | None
) -> float:
    if times is None or not figures.tokens_per_forward or figures.rows_per_step is None:
        return _NAN
    context = sum(record.prompt_tokens + record.output_tokens / 2 for record in records) / len(records)
    rows = max(1, round(figures.rows_per_step))
    return concurrency * figures.tokens_per_forward / times.seconds(rows, round(context), concurrency)


def _speed(records: Sequence[RequestRecord], shared: bool) -> Ratio:
    """Tokens per second: the inverse of seconds per token."""
    ones = [1.0] * len(records)
    seconds = [record.decoding_s(shared) for record in records]
    tokens = [float(record.decoded_tokens) for record in records]
    unit = timing_units([prompt_segments(records)], shared=shared)
    clusters = [unit[record.prompt_id] for record in records]
    return paired_ratio((ones, ones), (seconds, tokens), seed=0, clusters=clusters)


def _three(name: str, ratio: Ratio | None) -> dict[str, float]:
    interval = ratio.interval if ratio else None
    return {
        name: ratio.value if ratio else _NAN,
        f"{name}_low": interval.low if interval else _NAN,
        f"{name}_high": interval.high if interval else _NAN,
    }


def _hash(spec: Mapping[str, Any], read: ReadRun) -> str:
    """Hash of what defines a configuration: the method with all its options, and the sweep's common settings."""
    settings = json.dumps(
        [read.run.get("digest"), read.run["concurrency"], spec["name"], spec["options"]], sort_keys=True
    )
    return hashlib.sha256(settings.encode()).hexdigest()[:8]


_SHOWN = ("label", "concurrency", "set", "prompts", "tokens_per_forward", "decode_tok_s", "speedup", "stopped")


@dataclass(frozen=True)
class Sweep:
    """The result of ``specbench.sweep``; also opens any sweep folder."""

    folder: Path

    @cached_property
    def _read(self) -> ReadSweep:
        return read_sweep(self.folder)

    @property
    def summary(self) -> Mapping[int, SweepFindings]:
        """By concurrency: the fastest configuration, and those that are as fast."""
        return {count: read.summary.sweep or SweepFindings() for count, read in self._read.runs.items()}

    def frame(self) -> pd.DataFrame:
        """A row per configuration, concurrency and set of prompts; see :func:`specbench.sweeps.table.cells`."""
        return self._read.cells

    def _repr_html_(self) -> str:
        """The table for notebooks: configurations by speed, fastest first."""
        cells = self.frame().sort_values(["concurrency", "set", "decode_tok_s"], ascending=[True, False, False])
        shown = cells[[name for name in _SHOWN if name in cells]]
        return str(shown.to_html(index=False, float_format="{:.3g}".format, na_rep="-", escape=True))
