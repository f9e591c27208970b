"""What published rows come to, against figures worked out by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from specbench.report.claims.catalog import Catalog, Claim, published_claims
from specbench.report.claims.worth import Range, at_the_bound, worth

# Of 1e9 weights, 2 GB: 777.5 tok/s at the 1,555 GB/s of the one board and 1,019.5 at the 2,039 of the other.
CATALOG = Catalog(claims=(), parameters={"Qwen3-8B": 10**9}, gpus={"A100": ("a100-40gb", "a100-80gb")})
PLAIN: dict[str, Any] = {
    "id": "t/x", "paper": "P", "source": "S", "url": "https://a.invalid", "method": "jf", "model": "Qwen3-8B",
    "gpu": "A100",
}  # fmt: skip


def claim(**figures: Any) -> Claim:
    return Claim(**{**PLAIN, **{k: Decimal(v) if k not in PLAIN and k != "task" else v for k, v in figures.items()}})


def ends(found: Range | None) -> tuple[float, float]:
    assert found is not None
    return found.low, found.high


def test_a_claim_over_the_ar_that_the_bandwidth_allows() -> None:
    found = worth(CATALOG, claim(speedup="4.0", tpf="5", tok_s="1555", baseline_tok_s="388.75"))
    assert found.step_ratio == pytest.approx(0.8)
    assert ends(found.baseline_share) == pytest.approx((388.75 / 1019.5, 0.5))
    assert ends(found.over_bound) == pytest.approx((1555 / 1019.5, 2.0))
    found = worth(CATALOG, claim(speedup="2", baseline_tok_s="388.75"))
    assert ends(found.over_bound) == pytest.approx((2 * 388.75 / 1019.5, 1.0))
    assert found.step_ratio is None
    assert worth(CATALOG, claim(speedup="2")).over_bound is None
    other = claim(tok_s="100", model="another")
    assert worth(CATALOG, other).over_bound is None
    assert at_the_bound(CATALOG, other, 3.0, 8) is None
    assert at_the_bound(CATALOG, claim(tpf="3", gpu=""), 3.0, 8) is None


def test_at_the_bound_rows_are_free_up_to_the_knee_and_no_further() -> None:
    there = claim(tpf="4")
    assert at_the_bound(CATALOG, there, 4.0, 16) == Range(4.0, 4.0)
    # 312 TFLOP/s over 1,555 and 2,039 GB/s: the knees are at 200.6 and 153 rows of two FLOPs per two bytes.
    found = at_the_bound(CATALOG, there, 4.0, 400)
    assert ends(found) == pytest.approx((4 * 312e12 / 2.039e12 / 400, 4 * 312e12 / 1.555e12 / 400))
    catalog = published_claims()
    (row,) = [one for one in catalog.claims if one.id.startswith("jf-humaneval/jf-mr")]
    released = worth(catalog, row)
    assert ends(released.baseline_share)[1] < 0.4
    assert ends(released.over_bound)[1] < 1.5 < float(row.speedup or 0)
