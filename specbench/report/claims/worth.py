"""Similarity of published and measured rows, and what a claim is worth over a strong baseline.

A speedup is TPF × step ratio. If a baseline is limited by kernel launches, a forward of many rows looks free. Therefore
a claim is shown in three ways: as printed; as its printed tok/s divided by the AR speed that the GPU's bandwidth
allows; and as its TPF with AR and the method both at the roofline, the most that any engine could reach. The speedup on
a strong engine lies between the last two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from specbench.common import parse_count
from specbench.hardware import ModelShape, bound_s, datasheet, gpus, step_cost
from specbench.models import names
from specbench.report.claims.catalog import BYTES_PER_WEIGHT, Catalog, Claim
from specbench.results import RunConfig, device_name, known_text

if TYPE_CHECKING:
    from specbench.report.gathering import Run


@dataclass(frozen=True)
class Range:
    """A range over the boards that a publication may mean."""

    low: float
    high: float


@dataclass(frozen=True)
class Worth:
    """What a claim is worth; None if the publication does not give the necessary figures.

    ``step_ratio``: speedup / TPF. ``baseline_share``: the publication's AR tok/s divided by the AR tok/s that the
    bandwidth allows. ``over_bound``: the method's tok/s divided by the same.
    """

    step_ratio: float | None
    baseline_share: Range | None
    over_bound: Range | None


def worth(catalog: Catalog, claim: Claim) -> Worth:
    """What a claim is worth, from its own figures and the datasheet of its GPU."""
    bounds = [bandwidth.tok_s for bandwidth in catalog.bandwidth(claim)]
    baseline = _divided(claim.baseline_tok_s)
    speed = _divided(claim.tok_s)
    if speed is None and baseline is not None and claim.speedup is not None:
        speed = baseline * float(claim.speedup)
    ratio = float(claim.speedup / claim.tpf) if claim.speedup is not None and claim.tpf is not None else None
    return Worth(ratio, _over(baseline, bounds), _over(speed, bounds))


def at_the_bound(catalog: Catalog, claim: Claim, tpf: float, rows: float) -> Range | None:
    """The speedup if AR and the method both ran at the roofline: TPF × (bound of AR's step / bound of ``rows`` rows).

    Weights are read once per step and multiplied once per row; cache, attention and drafting are left out. None if
    model size, GPU or its peak is unknown.
    """
    parameters = catalog.parameters.get(claim.model)
    if parameters is None:
        return None
    shape = ModelShape(
        matmul=parameters, head=0, embedding=0, embedding_width=0, tied=False, small=0, attention=(),
        weight_bytes=BYTES_PER_WEIGHT, cache_bytes=BYTES_PER_WEIGHT,
    )  # fmt: skip
    found = []
    for board in catalog.gpus.get(claim.gpu, ()):
        ceilings = datasheet(gpus.find(board), "bfloat16") or datasheet(gpus.find(board), "float16")
        if ceilings is not None:
            one, many = (bound_s(step_cost(shape, count, 0), ceilings) for count in (1, max(1, round(rows))))
            found.append(tpf * one / many)
    return Range(min(found), max(found)) if found else None


@dataclass(frozen=True)
class Setting:
    """Configuration and device of our row."""

    config: RunConfig
    device: str
    memory_bytes: int | None


def setting(run: Run) -> Setting:
    """Configuration and device of a run."""
    memory = known_text(run.run, "environment", "device", "memory_bytes")
    return Setting(run.config, device_name(run.run), parse_count(memory) if memory else None)


def other_gpu(catalog: Catalog, claim: Claim, mine: Setting) -> str:
    """The difference of the GPUs; empty if ours is a board that the publication may mean."""
    gpu = gpus.identify(mine.device, mine.memory_bytes)
    if gpu is None or gpu.name not in catalog.gpus.get(claim.gpu, ()):
        return f"{mine.device}, not {claim.gpu or 'given there'}"
    return ""


@cache  # called for every claim of every run
def same_model(published: str, name: str) -> bool:
    """Whether our model is the one that a publication names, by name, hub id or base of its alias.

    Publications often leave out the version or "instruct", so these are ignored.
    """
    alias: Mapping[str, object] = names.aliases().get(name, {})
    hubs = [str(alias.get(field, "")).rpartition("/")[2] for field in ("hub", "base")]
    ours = [_letters(each) for each in (name.removeprefix("config:"), *hubs)]
    there = re.compile(re.escape(_letters(published)) + r"(v[\d.]+)?(instruct|base)?")
    return bool(published) and any(there.fullmatch(mine) for mine in ours)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def _divided(figure: object) -> float | None:
    return None if figure is None else float(str(figure))


def _over(figure: float | None, bounds: Sequence[float]) -> Range | None:
    if figure is None or not bounds:
        return None
    shares = [figure / bound for bound in bounds]
    return Range(min(shares), max(shares))
