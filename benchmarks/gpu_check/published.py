"""Figures that publications report for the same shapes, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.report import Claim, published_claims

#: Published models whose shape is one of the check's.
SAME_SHAPE: Mapping[str, Sequence[str]] = {
    "qwen3-8b": ("Qwen3-8B",),
    "qwen2.5-7b": ("Qwen2.5-Coder-7B", "Qwen2.5-Math-7B"),
}

#: Published methods that the check measures or uses as a baseline.
_METHODS = ("ar", "jacobi", "jf", "jetspec", "cllm")


@dataclass(frozen=True)
class Row:
    """One published row.

    Attributes:
        shape: name of the check's shape.
        what: method, setting and task.
        gpu: GPU as the publication names it.
        baseline: tokens per second of the publication's AR.
        tok_s, speedup, tpf: published figures; empty if not given.
        round: published TPF divided by published speedup: a round in units of an AR step.
        source: where the row is published.
        caveat: restriction to note.
    """

    shape: str
    what: str
    gpu: str
    baseline: str
    tok_s: str
    speedup: str
    tpf: str
    round: str
    source: str
    caveat: str


def rows(shapes: Sequence[str]) -> list[Row]:
    """Return the published rows of some shapes, in the order of the catalog.

    Args:
        shapes: names of shapes of the check; other names have no rows.
    """
    return [row for shape in shapes for row in _of(shape)]


def _of(shape: str) -> Iterator[Row]:
    for claim in published_claims().claims:
        if claim.model in SAME_SHAPE.get(shape, ()) and claim.method in _METHODS and _measured(claim):
            yield Row(
                shape, " ".join(filter(None, (claim.method, claim.setting, claim.task and f"on {claim.task}"))),
                claim.gpu, _text(claim.baseline_tok_s), _text(claim.tok_s), _text(claim.speedup), _text(claim.tpf),
                f"{claim.tpf / claim.speedup:.3g}" if claim.tpf and claim.speedup else "",
                f"{claim.paper}, {claim.source}", claim.caveat,
            )  # fmt: skip


def _measured(claim: Claim) -> bool:
    """Whether the claim names its GPU; without one a step time cannot be compared."""
    return bool(claim.gpu)


def _text(figure: object) -> str:
    return "" if figure is None else str(figure)
