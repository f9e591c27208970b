"""Acceptance of every row of a run, or over the draft length, as a small file; and its comparison with a baseline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from specbench.analysis.acceptance.drafts import acceptance
from specbench.analysis.figures import quotient
from specbench.analysis.read import read_config, read_summary
from specbench.common import UsageError, read_json_object, schema_version, validate, write_json_atomic
from specbench.results import BASE, BASELINE, Acceptance, Part, RequestRecord, RunConfig, RunFolder, is_sweep

#: File of a sweep over the draft length. Equal commands write equal bytes: it has no times and no places.
ACCEPTANCE = "acceptance.json"

_SCHEMA = 1
_TODO = "write it again with specbench sweep --acceptance"


class AcceptanceRow(Part):
    """One row: a method, or a method with drafts of at most ``draft_length`` tokens."""

    row: str
    method: str
    draft_length: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: dict[str, str] = Field(default_factory=dict)
    tokens_per_forward: float | None = None
    acceptance: Acceptance | None = None


class AcceptanceCurves(Part):
    """Acceptance of rows on one model and the same prompts, greedy."""

    schema_version: int = _SCHEMA
    model: str
    weights: str
    dtype: str
    task: str
    task_version: int
    task_options: dict[str, Any] = Field(default_factory=dict)
    prompts: int
    prompts_sha256: str
    max_new_tokens: int
    temperature: float = 0.0
    simulated: bool = False
    rows: list[AcceptanceRow] = Field(min_length=1)
    #: Labels whose tree sizes were chosen by measured times; not in the file of a sweep, which chooses none so.
    calibrated: list[str] = Field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file."""
        write_json_atomic(path, self.model_dump(mode="json", exclude={"calibrated"}))


def curves_of(config: RunConfig, rows: Sequence[AcceptanceRow], calibrated: Sequence[str] = ()) -> AcceptanceCurves:
    """The curves of rows of a run with this configuration."""
    task = config.undated().task
    return AcceptanceCurves(
        model=config.model.name,
        weights=config.model.fingerprint,
        dtype=config.model.dtype,
        task=task.name,
        task_version=task.version,
        task_options=dict(task.options),
        prompts=task.prompts,
        prompts_sha256=task.prompts_sha256,
        max_new_tokens=config.max_new_tokens,
        temperature=config.sampling.temperature,
        simulated=bool(config.simulated),
        rows=list(rows),
        calibrated=list(calibrated),
    )


def curve_row(
    config: RunConfig, label: str, records: Sequence[RequestRecord], draft_length: int | None = None
) -> AcceptanceRow:
    """A row from its records."""
    decoded, forwards = sum(r.decoded_tokens for r in records), sum(r.target_forwards for r in records)
    return _row(config, label, quotient(decoded, forwards), acceptance(records), draft_length)


def _row(
    config: RunConfig, label: str, tpf: float | None, found: Acceptance | None, draft_length: int | None = None
) -> AcceptanceRow:
    spec = next(spec for spec in config.methods if spec.label == label)
    return AcceptanceRow(
        row=label, method=spec.name, draft_length=draft_length, options=spec.options, weights=spec.weights,
        tokens_per_forward=tpf, acceptance=found,
    )  # fmt: skip


def read_curves(path: Path) -> AcceptanceCurves:
    """Read :data:`ACCEPTANCE`, the folder of a sweep that has it, or a run's ``run.json`` and ``summary.json``."""
    if os.path.isfile(path):
        return _read(path)
    if is_sweep(path):
        if not os.path.isfile(path / ACCEPTANCE):
            raise UsageError(f"cannot read {path}: this sweep has no {ACCEPTANCE}; {_TODO}")
        return _read(path / ACCEPTANCE)
    folder = RunFolder.load(path)
    config = read_config(folder)
    summary = read_summary(folder, config)
    if summary is None or not summary.complete:
        raise UsageError(f"cannot read {path}: the run is not finished; repeat its command to go on")
    rows = [_row(config, row.method, row.tokens_per_forward, row.acceptance) for row in summary.rows]
    return curves_of(config, rows, summary.engine.get("calibrated", ()))


def _read(file: Path) -> AcceptanceCurves:
    content = read_json_object(file, _TODO)
    schema_version(content, file, _SCHEMA, _TODO)
    return validate(AcceptanceCurves, content, file, _TODO)


#: Fewest drafts that a position must lose to fail: a tie of two logits that falls otherwise on another processor moves
#: one draft.
_FLIPS = 3


def compare_acceptance(baseline: AcceptanceCurves, other: AcceptanceCurves, least: float) -> dict[str, Any]:
    """Compare every drafting row of the baseline with the row of the same name, as JSON-ready data.

    ``rows`` has per row pairs [baseline, other] of ``accepted_length`` and ``tokens_per_forward``, ``positions`` (pairs
    by position), and ``failed``: figures below ``least`` times the baseline's. Deterministic figures have no interval.
    Raises UsageError if the two cannot be compared.
    """
    if why := next(_unlike(baseline, other), None):
        raise UsageError(f"cannot compare acceptance: {why}")
    there = {row.row: row for row in other.rows}
    drafting = [row for row in baseline.rows if row.acceptance and row.method not in (BASELINE, BASE)]
    if not drafting:
        raise UsageError(
            "cannot judge --fail-under-acceptance: the baseline has no acceptance; measure it with this version"
        )
    if lost := [row.row for row in drafting if row.row not in there or there[row.row].acceptance is None]:
        raise UsageError(
            f"cannot judge --fail-under-acceptance: {lost[0]} has no acceptance in the other; measure it too"
        )
    names = [name for name in ("model", "weights", "dtype") if getattr(baseline, name) != getattr(other, name)]
    differs = [f"{name} {getattr(other, name)}, not {getattr(baseline, name)}" for name in names]
    for row in drafting:
        its = there[row.row]
        differs += [f"{row.row} has other options"] if row.options != its.options else []
        differs += [f"{row.row} drafts with other weights"] if row.weights != its.weights else []
    return {"least": least, "differs": differs, "rows": [_compared(row, there[row.row], least) for row in drafting]}


def _compared(row: AcceptanceRow, its: AcceptanceRow, least: float) -> dict[str, Any]:
    mine, other = row.acceptance, its.acceptance
    assert mine is not None
    assert other is not None
    length, tpf = [mine.length.value, other.length.value], [row.tokens_per_forward, its.tokens_per_forward]
    positions = {at: [share, other.positions.get(at, 0.0)] for at, share in mine.positions.items()}
    failed = ["accepted length"] if length[1] < least * length[0] else []
    failed += ["tokens per forward"] if tpf[0] and (tpf[1] or 0.0) < least * tpf[0] else []
    failed += [
        f"acceptance at position {at}"
        for at, (share, its_share) in positions.items()
        if its_share < least * share and (share - its_share) * mine.drafts >= _FLIPS - 1e-6
    ]
    return {
        "row": row.row,
        "draft_length": row.draft_length,
        "accepted_length": length,
        "tokens_per_forward": tpf,
        "positions": positions,
        "failed": failed,
    }


def _unlike(a: AcceptanceCurves, b: AcceptanceCurves) -> Iterator[str]:
    """Why two files cannot be compared, and what to do."""
    for name in ("task", "task_version", "task_options", "max_new_tokens", "prompts", "prompts_sha256"):
        mine, its = getattr(a, name), getattr(b, name)
        if mine != its:
            what = "prompts" if name == "prompts_sha256" else name.replace("_", " ")
            seen = "" if name == "prompts_sha256" else f" ({its}, not {mine})"
            same = "the same task, --limit, --prompt-seed and --max-new-tokens"
            yield f"different {what}{seen}; measure both with {same}"
    if a.temperature or b.temperature:
        yield "sampled texts are not deterministic; measure both with --temperature 0"
    if a.simulated or b.simulated:
        yield "acceptance was simulated; measure real drafts"
