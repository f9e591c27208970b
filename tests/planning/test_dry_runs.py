"""A dry run predicts from what is stored: rows as methods announce them, memory by configuration, steps by profile."""

from __future__ import annotations

from typing import Any

import pytest
from support.runs import made_up_profile
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.options import parse_flags
from specbench.engine.memory_budget import Widths, step_memory
from specbench.hardware import Projection, environment, gpus
from specbench.hardware.roofline import StepTimes
from specbench.hardware.stored_profile import Profile, datasheet
from specbench.models import configured_shape, resolve
from specbench.sweeps.running import predict
from specbench.sweeps.sweep_plan import SweepPlan

FIGURE_7A = {
    "method": "jf", "grid": ("n=8,16,32,64,128,256", "pool=1,2,4,8,12,16"), "settings": ("K=2", "r=0.85"),
    "task": "gsm8k", "max_new_tokens": 512,
}  # fmt: skip
SMALL = {**FIGURE_7A, "grid": ("n=8,64", "pool=1,4")}


def here(**changes: Any) -> Profile:
    """A profile of SmolLM2's shape in float32 on this machine."""
    shape = configured_shape(resolve("smollm2-135m"), "float32")
    spec = made_up_profile().model.model_copy(update={"name": "smollm2-135m", "dtype": "float32", "device": "cpu"})
    captured = environment.capture("cpu").model_dump(mode="json")
    values = {"environment": captured, "model": spec, "shape": shape, "gpu": None, "datasheet": None, **changes}
    return made_up_profile(contexts=(128, 512), slots=(), **values)


def predicted(asked: dict[str, Any] = SMALL, **more: Any) -> dict[str, Any]:
    return predict(parse_flags(SweepPlan, {**asked, **more}))


def test_the_whole_grid_of_the_published_sweep(store: Any) -> None:
    found = predicted(FIGURE_7A)
    cells = {cell["label"]: cell for cell in found["cells"]}
    assert list(cells)[:2] == ["ar", "jf n=8 pool=1"]
    assert len(cells) == 1 + 36
    for n in (8, 16, 32, 64, 128, 256):
        for pool in (1, 2, 4, 8, 12, 16):
            assert cells[f"jf n={n} pool={pool}"]["rows"] == 2 * n + (pool - 1) * (n - 1)
    assert cells["jf n=256 pool=16"]["rows"] == 4337
    shape = configured_shape(resolve("smollm2-135m"), "float32")
    assert shape is not None
    taken = step_memory(Widths.of(shape), 4337, 512 + 512)
    largest = cells["jf n=256 pool=16"]
    assert (largest["weight_bytes"], largest["cache_bytes"], largest["step_bytes"], largest["fits"]) == (
        4 * 134_515_008, taken.cache, taken.step, True,
    )  # fmt: skip
    assert (found["steps"], largest["step_s"], largest["times_ar"]) == ("none", None, None)
    assert "specbench profile --model smollm2-135m" in found["hint"]


def test_steps_by_the_profile_of_this_machine(store: Any) -> None:
    profile = here()
    store(profile)
    found = predicted()
    times = StepTimes(profile.shape, profile.ceilings, profile.points)
    assert (found["steps"], found["hint"]) == ("measured", "")
    for cell in found["cells"]:
        assert cell["step_s"] == pytest.approx(times.seconds(cell["rows"], 512))
        assert cell["times_ar"] == pytest.approx(times.seconds(cell["rows"], 512) / times.seconds(1, 512))
        assert cell["step_low_s"] is None
        assert cell["measured_rows"] is True
    (wide,) = predicted(SMALL, grid=("n=256",), settings=("K=2", "pool=16"))["cells"][1:]
    assert (wide["measured_rows"], wide["step_s"]) == (False, pytest.approx(times.seconds(4337, 512)))


def test_steps_projected_onto_a_gpu_of_which_none_is_stored(store: Any) -> None:
    profile = here()
    store(profile)
    found = predicted(gpu="h200")
    assert (found["steps"], found["device"], found["dtype"]) == ("projected", "h200", "bfloat16")
    there, shape = datasheet(gpus.find("h200"), "bfloat16"), configured_shape(resolve("smollm2-135m"), "bfloat16")
    assert there is not None
    onto = Projection(profile.shape, profile.ceilings, profile.points, there, shape)
    for cell in found["cells"]:
        band = onto.seconds(cell["rows"], 512)
        assert (cell["step_s"], cell["step_low_s"], cell["step_high_s"]) == (band.value, band.low, band.high)
        assert cell["weight_bytes"] == 2 * 134_515_008
        plain = onto.seconds(1, 512)
        over = sorted((band.low / plain.low, band.high / plain.high))  # each by its own story
        assert [cell["times_ar_low"], cell["times_ar_high"]] == over
        assert cell["times_ar"] == band.value / plain.value
    # In half the bytes the same bound is reached in half the time, and no less than that.
    same = Projection(profile.shape, profile.ceilings, profile.points, there)
    assert onto.seconds(1, 512).low < same.seconds(1, 512).low
    assert onto.seconds(1, 512).low == pytest.approx(same.seconds(1, 512).low / 2, rel=0.01)


def test_a_profile_of_another_precision_is_projected_and_never_taken_for_the_runs_own(store: Any) -> None:
    folder = store(here(gpu="h200"))  # in float32; a run there is in bfloat16
    for more in ({}, {"profile": folder}):
        assert predicted(gpu="h200", **more)["steps"] == "projected"
        assert predicted(gpu="h200", dtype="fp32", **more)["steps"] == "measured"
    with pytest.raises(UsageError, check=wording):
        predicted(profile=folder, dtype="bf16")
    elsewhere = {**here().environment, "cpu": {"model": "another", "usable_cores": 3}}
    with pytest.raises(UsageError, check=wording):
        predicted(profile=store(here(environment=elsewhere), "elsewhere"))


def test_cells_that_the_machine_has_no_memory_for_are_distinguished(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.planning.memory_check._memory", lambda plan: (1.2 * 2**30, 1.2 * 2**30))
    found = predicted(SMALL, grid=("n=8,256", "pool=16"))
    assert {cell["label"]: cell["fits"] for cell in found["cells"]} == {
        "ar": True, "jf n=8 pool=16": True, "jf n=256 pool=16": False,
    }  # fmt: skip


def test_without_a_profile_a_gpu_has_the_bound_of_its_datasheet(store: Any) -> None:
    found = predicted({**SMALL, "model": "config:qwen2.5-7b", "gpu": "h200", "dtype": "bfloat16"})
    assert found["steps"] == "bound"
    shape = configured_shape(resolve("config:qwen2.5-7b"), "bfloat16")
    assert shape is not None
    ar, *others = found["cells"]
    # One row after 512 tokens reads all weights except the embedding table, and the cache, at 4.8 TB/s.
    moved = 2 * (shape.parameters - shape.embedding) + 512 * shape.token_bytes
    assert ar["step_s"] == pytest.approx(moved / 4.8e12, rel=0.01)
    assert [cell["times_ar"] >= 1 for cell in others] == [True] * len(others)
    assert wording(found["hint"])
    assert predicted({**SMALL, "model": "config:qwen2.5-7b"})["steps"] == "none", "of this machine nothing is stored"
