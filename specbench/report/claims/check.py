"""Compare published rows with a run: which figures it repeats, which not, and which are not comparable.

A published figure is repeated if our 95% interval covers it, to within half a unit of its last digit, or, if our figure
has no interval, if the two differ by at most :data:`TOLERANCE`. Figures measured on something else are not comparable,
with a reason. Tokens per forward do not depend on the GPU; speeds do. Ours are computed as the publication
computes its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specbench.analysis import UNLIKE
from specbench.common import UsageError, registry
from specbench.models import names
from specbench.report.claims.catalog import half_unit
from specbench.report.claims.worth import Setting, other_gpu, same_model, setting
from specbench.report.gathering import Run, read_whole_run
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.report.claims.catalog import Catalog, Claim
    from specbench.results import Group, MethodSpec, MethodSummary

Verdict = Literal["repeated", "not repeated", "not comparable"]

#: Allowed difference of a figure without an interval, as a share of the published figure.
TOLERANCE = 0.10

#: Largest half width of an interval, as a share of its figure, that still supports a verdict.
WIDEST = 0.25

#: Models have the same size up to this ratio of their parameters: 7B and 8B do, 8B and 13B do not.
_SIZE_CLASS = 1.25

_PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)B\b")

#: The publications used one of these.
_PUBLISHED_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Check:
    """One printed figure (TPF, speedup, tok/s, score, …) of a published row, and that of our most similar row.

    ``why``: why it is not comparable, or caveats.
    """

    claim: Claim
    row: str
    figure: str
    published: Decimal
    ours: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    why: tuple[str, ...]

    def reasons(self) -> int:
        """Number of reasons why it is not comparable."""
        return len(self.why) if self.verdict == "not comparable" else 0


@dataclass(frozen=True)
class _Ours:
    """Our figure; ``has_interval`` says whether this figure has an interval if there are enough prompts."""

    value: float | None
    low: float | None = None
    high: float | None = None
    has_interval: bool = False


def check_claims(catalog: Catalog, folder: Path) -> list[Check]:
    """Run :func:`check` on a run folder, which must be finished."""
    run = read_whole_run(folder)
    if not run.complete:
        raise UsageError(f"{folder} is not finished; repeat its command to go on, and then check it")
    return check(catalog, run)


def check(catalog: Catalog, run: Run) -> list[Check]:
    """Check every figure of every published row of the run's methods; comparable figures come first."""
    here = setting(run)
    found = []
    for claim in catalog.claims:
        specs = [spec for spec in run.config.methods if spec.name == claim.method]
        if specs:
            found += checks_of(catalog, claim, run, here, specs)
    return sorted(found, key=Check.reasons)  # stable: otherwise in the catalog's order


def checks_of(catalog: Catalog, claim: Claim, run: Run, here: Setting, specs: Sequence[MethodSpec]) -> list[Check]:
    """Check every figure of a published row against the most similar of a run's rows ``specs`` of its method."""
    spec = min(specs, key=lambda spec: len(_other_options(claim, spec)))  # the first of several
    row = next(row for row in run.rows if row.method == spec.label)
    apart, remarks = _apart(catalog, claim, here, spec, row), _remarks(catalog, claim, here)
    found = []
    for name, published in _figures(claim):
        why = list(dict.fromkeys([*apart, *_apart_in(catalog, claim, name, here, run, row)]))
        ours = _ours(claim, name, run, row)
        if not why:
            why = [*_unproven(claim, name, ours, run)]
        found.append(_judged(claim, spec.label, name, published, ours, why, remarks))
    return found


def _figures(claim: Claim) -> Iterator[tuple[str, Decimal]]:
    printed = {"TPF": claim.tpf, "speedup": claim.speedup, "tok/s": claim.tok_s, "score": claim.accuracy}
    for name, figure in {**printed, **claim.also}.items():
        # AR's tokens per forward and its speedup over itself are 1 by definition.
        if figure is not None and not (claim.method == BASELINE and name in ("TPF", "speedup")):
            yield name, figure


def _apart(catalog: Catalog, claim: Claim, here: Setting, spec: MethodSpec, row: MethodSummary) -> list[str]:
    """Why none of a row's figures is comparable."""
    model, task, config = here.config.model, here.config.task, here.config
    why = []
    if model.dummy:
        why.append("model: dummy weights")
    elif not (same_model(claim.model, model.name) or _same_size(catalog, claim, here)):
        why.append(f"model: {model.name}, not {claim.model or 'given there'}")
    if (trained := _trained_for(here)) is not None and trained != claim.trained_for:
        why.append(
            f"weights: trained for {trained or 'no method'}, published ones for {claim.trained_for or 'no method'}"
        )
    if claim.task.partition(":")[0] != task.name:
        why.append(f"task: {task.name}, not {claim.task or 'given there'}")
    elif (part := claim.task.partition(":")[2]) and part not in row.groups:
        why.append(f"task: no prompts of {part}")
    if config.concurrency != claim.batch:
        why.append(f"batch: {config.concurrency}, not {claim.batch}")
    if claim.temperature is None or float(claim.temperature) != config.sampling.temperature:
        there = "given there" if claim.temperature is None else claim.temperature
        why.append(f"temperature: {config.sampling.temperature:g}, not {there}")
    if words := config.sampling.words:
        why.append(f"sampling: {words}, not given there")
    why += [f"{name}: {mine}, not {theirs}" for name, (mine, theirs) in _other_options(claim, spec).items()]
    if row.simulated:
        why.append(f"acceptance was simulated, {row.simulated}")
    elif row.lossless is not None and row.lossless.verdict == "lossy" and row.lossless_claimed is not False:
        why.append("the run's text is not AR's (lossy)")
    return why


def _apart_in(catalog: Catalog, claim: Claim, name: str, here: Setting, run: Run, row: MethodSummary) -> Iterator[str]:
    """Further reasons why one figure of a row is not comparable."""
    if name in ("speedup", "tok/s"):
        if difference := other_gpu(catalog, claim, here):
            yield f"GPU: {difference}"
        if (dtype := run.config.model.dtype) not in _PUBLISHED_DTYPES:
            yield f"dtype: {dtype}, not 16 bits"
        if run.summary.unsure:
            yield "the run was disturbed"
        if run.config.trace:
            yield "the run was traced, which slows its steps"
    if name == "TPF" and claim.tpf_is in UNLIKE:
        yield f"TPF: {claim.counting}"
    if name == "score":
        if claim.metric != "%":
            yield f"metric: {claim.metric}"
        elif row.accuracy is None:
            yield "the run has no scores; run specbench score"
        if not same_model(
            claim.model, here.config.model.name
        ):  # models of one size may be equally fast but not equally good
            yield f"model: {here.config.model.name}, not {claim.model or 'given there'}"


def _remarks(catalog: Catalog, claim: Claim, here: Setting) -> list[str]:
    remarks = []
    if not same_model(claim.model, here.config.model.name) and _same_size(catalog, claim, here):
        remarks.append(f"another model of its size: {here.config.model.name}, not {claim.model}")
    return remarks


def _ours(claim: Claim, name: str, run: Run, row: MethodSummary) -> _Ours:
    """The figure of our row, counted as in the publication if we know how."""
    task, _, part = claim.task.partition(":")
    group: Group | None = row.groups.get(part or "overall") if task == "spec-bench" else None
    if name == "TPF":
        if claim.tpf_is in UNLIKE or row.tokens_per_forward is None:
            return _Ours(row.tokens_per_forward)
        found = run.tallies[row.method].tokens_per_forward(claim.tpf_is, part)
        if found is None:
            return _Ours(None)
        low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
        return _Ours(found.value, low, high, has_interval=True)
    if name == "speedup":
        if group is not None:
            return _Ours(group.specbench_speedup)
        speedup = row.speedup
        return _Ours(speedup.value, speedup.low, speedup.high, has_interval=True) if speedup else _Ours(None)
    if name == "tok/s":
        return _Ours((group or row).decode_tok_s)
    if name == "score":
        right = row.accuracy
        if right is None or right.low is None or right.high is None:
            return _Ours(None)
        return _Ours(100 * right.value, 100 * right.low, 100 * right.high, has_interval=True)
    return _Ours(row.measures.get(name))


def _unproven(claim: Claim, name: str, ours: _Ours, run: Run) -> Iterator[str]:
    """Why our figure supports no verdict although it measures the same thing."""
    if ours.value is None:
        yield f"the run has no {name} of {claim.method}"
    elif ours.has_interval and (ours.low is None or ours.high is None):
        yield f"too few prompts for an interval: {run.config.task.prompts}"
    elif ours.low is not None and ours.high is not None and (ours.high - ours.low) / 2 > WIDEST * ours.value:
        yield f"too few prompts: the interval is [{ours.low:.2f}, {ours.high:.2f}]"


def _judged(
    claim: Claim, label: str, name: str, published: Decimal, ours: _Ours, why: list[str], remarks: list[str]
) -> Check:
    verdict: Verdict = "not comparable"
    if not why and ours.value is not None:
        half, there = float(half_unit(published)), float(published)
        low, high = ours.low, ours.high
        if low is None or high is None:
            low, high = (there * (1 - TOLERANCE), there * (1 + TOLERANCE))
            repeated = low <= ours.value <= high
        else:
            repeated = low - half <= there <= high + half
        verdict = "repeated" if repeated else "not repeated"
    return Check(claim, label, name, published, ours.value, ours.low, ours.high, verdict, tuple(why or remarks))


def _same_size(catalog: Catalog, claim: Claim, here: Setting) -> bool:
    size = _PARAMETERS.search(claim.model)
    there = float(size[1]) * 1e9 if size else float(catalog.parameters.get(claim.model, 0))
    ratio = here.config.model.parameters / there if there else 0
    return 1 / _SIZE_CLASS < ratio < _SIZE_CLASS


def _trained_for(here: Setting) -> str | None:
    """The method that the run's target weights were trained for; empty for none, None if unknown."""
    alias: Mapping[str, Any] = names.aliases().get(here.config.model.name, {})
    if not alias:
        return None if here.config.model.base else ""  # an adapter of the user's own
    method = str(alias.get("method", ""))
    # Training a head does not change the target.
    if not method or "head" in alias.get("options", {}):
        return ""
    info = registry.method(method).info
    return method if info.get("recipe") or info.get("trained") else ""


def _other_options(claim: Claim, spec: MethodSpec) -> dict[str, tuple[Any, Any]]:
    """Options that the publication gives and that differ from ours: name -> ours and theirs."""
    theirs = {name: float(value) if isinstance(value, Decimal) else value for name, value in claim.options.items()}
    return {name: (_option(spec, name), value) for name, value in theirs.items() if spec.options.get(name) != value}


def _option(spec: MethodSpec, name: str) -> Any:
    """A row's option; if it is not set, the name of the weights with which the row drafted."""
    value = spec.options.get(name)
    return spec.weights.get(name, "not set") if value is None else value
