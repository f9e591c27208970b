"""Figures that only rows of other engines have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.analysis.speedup import Key, compare_to_baseline
from specbench.results import PLAIN, Engines, Lossless, MethodSpec, OtherEngine, OverOwnAr, RequestRecord


def other_engine(
    spec: MethodSpec,
    specs: Sequence[MethodSpec],
    by_method: Mapping[str, Mapping[Key, RequestRecord]],
    engines: Engines,
    over_own: Mapping[str, Mapping[str, Any] | Lossless],
) -> OtherEngine | None:
    """The additional figures of another engine's row; None for our own rows."""
    if not spec.engine:
        return None
    plain, tally = plain_of(spec, specs), over_own.get(spec.label)
    own = plain and OverOwnAr(
        of=plain,
        speedup=compare_to_baseline(by_method.get(plain, {}), by_method.get(spec.label, {}), False).speedup,
        lossless=None if tally is None else Lossless.model_validate(tally),
    )
    return OtherEngine(
        facts=engines.rows.get(spec.label), failed=engines.failed.get(spec.label, ""), over_own_ar=own or None
    )


def plain_of(spec: MethodSpec, specs: Sequence[MethodSpec]) -> str | None:
    """The row of the same engine, precision and address that decodes without speculation."""
    if not spec.engine or spec.name == f"{spec.engine}:{PLAIN}":
        return None
    return next(
        (
            each.label
            for each in specs
            if each.name == f"{spec.engine}:{PLAIN}"
            and all(each.options.get(name) == spec.options.get(name) for name in ("dtype", "url"))
        ),
        None,
    )


def same_precision(spec: MethodSpec, dtype: str) -> bool:
    """Whether a row has the run's precision; other rows are not compared with AR and never called fastest."""
    return not spec.engine or spec.options.get("dtype", "auto") in ("auto", dtype)
