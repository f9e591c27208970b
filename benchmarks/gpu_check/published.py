"""Published: what publications say of the same shapes, each figure with its source. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.report import Claim, published_claims

#: Models of publications that have a shape of the check.
SAME_SHAPE: Mapping[str, Sequence[str]] = {
    "qwen3-8b": ("Qwen3-8B",),
    "qwen2.5-7b": ("Qwen2.5-Coder-7B", "Qwen2.5-Math-7B"),
}

#: Methods of theirs that the check measures, or divides by.
_METHODS = ("ar", "jacobi", "jf", "jetspec", "cllm")


@dataclass(frozen=True)
class Row:
    """One published row.

    Attributes:
        shape: of the check.
        what: method, setting and task.
        gpu: as the publication names it.
        baseline: tokens a second of its own AR.
        tok_s, speedup, tpf: as printed; empty where they are not given.
        round: its TPF over its speedup: a round in units of its own AR step.
        source: where it is printed.
        caveat: what to bear in mind.
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
    """The published rows of some shapes, in the order of the catalog.

    Args:
        shapes: names of the check; others have no rows.
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
    """Whether it says on what it was measured: without a GPU there is nothing to hold a step time against."""
    return bool(claim.gpu)


def _text(figure: object) -> str:
    return "" if figure is None else str(figure)
