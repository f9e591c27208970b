"""Where kernels start while the one before ends: devices and versions of triton that have it, and one switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
from triton.backends.nvidia import compiler

from specbench.engine.kernels import dependent

GPU = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(dependent.SWITCH, "on")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for each in (dependent._lacks, dependent.available):
        each.cache_clear()
    yield
    for each in (dependent._lacks, dependent.available):
        each.cache_clear()


def test_a_hopper_has_it() -> None:
    assert dependent.why_not(GPU) == ""
    assert dependent.options(GPU) == {"PDL": True, "launch_pdl": True}


def test_no_other_device_is_launched_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dependent.options(torch.device("cpu")) == dependent.options(torch.device("meta")) == {"PDL": False}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert "9.0" in dependent.why_not(GPU)
    assert dependent.options(GPU) == {"PDL": False}


@pytest.mark.parametrize("lacks", ["instruction", "option"])
def test_a_triton_without_it_is_not_asked_for_it(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacks == "instruction":
        monkeypatch.setattr(dependent, "gdc_wait", None)
    else:
        monkeypatch.setattr(compiler, "CUDAOptions", type("CUDAOptions", (), {"__dataclass_fields__": {}}))
    assert triton.__version__ in dependent.why_not(GPU)
    assert dependent.options(GPU) == {"PDL": False}


@pytest.mark.parametrize("value", [None, "", "off"])
def test_it_is_off_unless_the_switch_is_on(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dependent.SWITCH) if value is None else monkeypatch.setenv(dependent.SWITCH, value)
    assert dependent.SWITCH in dependent.why_not(GPU)
    assert dependent.options(GPU) == {"PDL": False}
