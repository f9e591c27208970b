"""Measured times choose which products use our kernel; here a fake clock gives the times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from support.wording import wording
from torch import Tensor, nn

from specbench.common.errors import EnvironmentRefused
from specbench.engine.layers.skinny import Config, SkinnyProducts, cuda_time

FIRST, SECOND = Config(64, 32, 1, 4, 3), Config(32, 32, 2, 4, 4)
SHAPE = (12, 8)
CPU = torch.device("cpu")


class Kernel:
    """A product that keeps account of its calls."""

    def __init__(
        self, off: Mapping[Config, float] | None = None, raises: Sequence[Config] = (), company: bool = False
    ) -> None:
        self._off, self._raises, self._company = off or {}, raises, company
        self.calls: list[tuple[Config, int, int]] = []

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, config: Config) -> Tensor:
        self.calls.append((config, len(x), weight.data_ptr()))
        if config in self._raises:
            raise RuntimeError("out of shared memory\nand so on")
        # Not torch's product: of one row it is another than of many.
        found = (x.double()[:, None] * weight.double()[None]).sum(-1).to(x.dtype) + (0 if bias is None else bias)
        found[:, 0] *= 1 + self._off.get(config, 0.0) + 1e-6 * self._company * len(x)
        return found


class Clock:
    """Tells the times it was given: of torch's products None's, else those of the configuration; at 1 and 16 rows."""

    def __init__(self, kernel: Kernel, seconds: Mapping[Config | None, tuple[float, float]]) -> None:
        self._kernel, self._seconds = kernel, seconds
        self._asked: dict[Config | None, int] = {}

    def __call__(self, work: Callable[[], None]) -> float:
        self._kernel.calls.clear()
        work()
        config = self._kernel.calls[0][0] if self._kernel.calls else None
        at = self._asked[config] = self._asked.get(config, -1) + 1
        if config is not None:
            assert {rows for _, rows, _ in self._kernel.calls} == {(1, 16)[at]}
        return self._seconds[config][at]


def weights(shape: tuple[int, int] = SHAPE, layers: int = 3) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(layer)) for layer in range(layers)]


def products(kernel: Kernel, **given: Any) -> SkinnyProducts:
    return SkinnyProducts(CPU, kernel=kernel, candidates=lambda shape, dtype: [FIRST, SECOND], **given)


def settled(kernel: Kernel, seconds: Mapping[Config | None, tuple[float, float]]) -> dict[str, Any]:
    made = products(kernel)
    made.choose({SHAPE: weights()}, Clock(kernel, seconds))
    (found,) = made.report()
    return found


def never(work: Callable[[], None]) -> float:
    raise AssertionError("nothing is to be timed")


@pytest.mark.parametrize(
    ("torch_s", "first", "second", "expected"),
    [
        ((1.05, 1.05), (1.0, 1.0), (1.1, 1.1), FIRST),
        ((1.02, 1.02), (1.0, 1.0), (1.1, 1.1), None),  # faster, but not by more than noise
        ((1.05, 1.05), (1.0, 1.0), (0.5, 1.4), SECOND),  # the sum decides
        ((1.05, 1.05), (0.1, 1.9), (0.5, 0.6), SECOND),
        ((1.0, 1.0), (2.0, 2.0), (0.5, 1.6), None),
    ],
)
def test_ours_runs_where_it_is_faster_by_more_than_noise(
    torch_s: Any, first: Any, second: Any, expected: Config | None
) -> None:
    found = settled(Kernel(), {None: torch_s, FIRST: first, SECOND: second})
    assert found["kernel"] == ("torch" if expected is None else "own")
    assert found["config"] == (None if expected is None else expected._asdict())
    assert found["torch_s"] == list(torch_s)
    assert [(each["config"], each["seconds"]) for each in found["timed"]] == [
        (FIRST._asdict(), list(first)), (SECOND._asdict(), list(second)),
    ]  # fmt: skip
    assert ("of torch's time" in found["why_not"]) == (expected is None)


FAST: Mapping[Config | None, tuple[float, float]] = {None: (9.0, 9.0), FIRST: (1.0, 1.0), SECOND: (2.0, 2.0)}


def test_tiles_that_do_not_compile_are_passed_over() -> None:
    found = settled(Kernel(raises=[FIRST]), FAST)
    assert found["config"] == SECOND._asdict()
    assert [each["config"] for each in found["timed"]] == [SECOND._asdict()]
    found = settled(Kernel(raises=[FIRST, SECOND]), FAST)
    assert found["kernel"] == "torch"
    assert found["why_not"].startswith("tiles of 64 × 32 in 1: RuntimeError: out of shared memory; tiles of 32")


def test_tiles_that_compute_something_else_are_passed_over() -> None:
    assert settled(Kernel(off={FIRST: 1e-6}), FAST)["config"] == FIRST._asdict()
    assert settled(Kernel(off={FIRST: 2e-4}), FAST)["config"] == SECOND._asdict()  # one output of many, and by little
    assert settled(Kernel(off={FIRST: float("nan")}), FAST)["config"] == SECOND._asdict()
    found = settled(Kernel(off={FIRST: 1e-2, SECOND: 1.0}), FAST)
    assert found["kernel"] == "torch"
    assert wording(found["why_not"])
    # The second is faster than torch, and wrong; the first is right, and not.
    assert settled(Kernel(off={SECOND: 1.0}), {**FAST, FIRST: (9.0, 9.0)})["kernel"] == "torch"


def test_a_row_that_depends_on_its_company_is_passed_over() -> None:
    assert wording(settled(Kernel(company=True), FAST)["why_not"])


def test_what_an_earlier_run_settled_is_taken_as_it_is() -> None:
    kernel, other = Kernel(), (4, 8)
    made = products(kernel)
    made.choose({SHAPE: weights()}, Clock(kernel, FAST))
    made.choose({other: weights(other)}, Clock(kernel, {**FAST, FIRST: (9.0, 9.0), SECOND: (9.0, 9.0)}))
    report = made.report()
    assert [(each["out"], each["in"], each["kernel"]) for each in report] == [(12, 8, "own"), (4, 8, "torch")]
    again = products(kernel)
    again.keep(json.loads(json.dumps(report)))
    again.choose({SHAPE: weights(), other: weights(other)}, never)
    assert again.report() == report
    kernel.calls.clear()
    again(torch.ones(2, 8), weights()[0])
    again(torch.ones(2, 8), weights(other)[0])
    assert [(config, rows) for config, rows, _ in kernel.calls] == [(FIRST, 2)]
    # A shape that was not there is settled as ever.
    more = products(kernel)
    more.keep(report[:1])
    more.choose({SHAPE: weights(), other: weights(other)}, Clock(kernel, FAST))
    assert [each["kernel"] for each in more.report()] == ["own", "own"]


def test_what_goes_to_which_kernel() -> None:
    kernel = Kernel()
    made = products(kernel)
    made.choose({SHAPE: weights()}, Clock(kernel, FAST))
    (weight, *_), bias = weights(), torch.arange(12.0)
    for shape, ours in (((1, 8), True), ((16, 8), True), ((17, 8), False), ((0, 8), False), ((2, 3, 8), True)):
        kernel.calls.clear()
        x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        for given in (None, bias):
            found = made(x, weight, given)
            assert found.shape == (*shape[:-1], 12)
            assert torch.allclose(found, nn.functional.linear(x, weight, given), atol=1e-5)
        assert len(kernel.calls) == 2 * ours
    kernel.calls.clear()
    made(torch.ones(1, 8), torch.ones(5, 8))  # a shape without a choice
    assert not kernel.calls


def test_pinned_runs_measure_nothing() -> None:
    kernel = Kernel()
    earlier = products(kernel)
    earlier.choose({SHAPE: weights()}, Clock(kernel, FAST))
    pinned = products(kernel, pinned=True)
    pinned.keep(earlier.report())
    pinned.choose({SHAPE: weights()}, never)
    kernel.calls.clear()
    pinned(torch.ones(1, 8), weights()[0])
    assert not kernel.calls
    assert pinned.report() == []
    assert pinned.why_not


def test_other_devices_have_torchs_products() -> None:
    made = SkinnyProducts(CPU)
    made.choose({SHAPE: weights()}, never)
    assert wording(made.why_not)
    x, weight = torch.ones(2, 8), weights()[0]
    assert torch.equal(made(x, weight), nn.functional.linear(x, weight))
    with pytest.raises(EnvironmentRefused, check=wording):
        cuda_time(CPU)
