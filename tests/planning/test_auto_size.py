"""Tree sizes that the user did not set follow from the cost of rows; methods without training give a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import made_up_profile
from support.wording import wording

from specbench.common.options import parse_flags
from specbench.hardware import environment
from specbench.hardware.stored_profile import PROFILE, Profile
from specbench.planning.plan import PROFILES, Plan
from specbench.planning.resolving import Resolved, resolve

ROWS = (1, 8, 16, 32, 64)


def measured(seconds: tuple[float, ...] = (1.0, 1.2, 1.6, 2.4, 4.0), **changes: Any) -> Profile:
    """A profile of the tiny model on this machine's CPU with these costs of rows."""
    here = environment.capture("cpu").model_dump(mode="json")
    spec = made_up_profile().model.model_copy(update={"name": "config:tiny", "dtype": "float32", "device": "cpu"})
    points = [
        {"rows": rows, "context": 512, "slots": 1, "seconds": s, "low_s": s, "high_s": s, "steps": 9}
        for rows, s in zip(ROWS, seconds, strict=True)
    ]
    values = {"environment": here, "model": spec, "points": points, **changes}
    return made_up_profile(contexts=(512,), slots=(), **values)


def planned(**values: Any) -> Resolved:
    return resolve(parse_flags(Plan, {"model": "config:tiny", "method": "jf", **values}), by_machine=True)


def jf(resolved: Resolved, label: str = "jf") -> Any:
    (method,) = (method for method in resolved.methods if method.label == label)
    return method


def test_a_profile_that_ended_before_rows_got_dear_bounds_nothing(store: Any) -> None:
    """What was not measured is no reason to draft less."""
    whole = measured((1.0, 1.0, 1.1, 1.2, 1.3))
    store(whole.model_copy(update={"points": whole.points[:1]}))
    resolved = planned()
    assert resolved.plan.settings == ()
    assert any("the stored profile ends at 1" in note for note in resolved.notes), resolved.notes


def test_the_widest_setting_that_fits_is_taken_and_else_the_smallest(store: Any) -> None:
    store(measured())
    made = planned()
    assert (jf(made).max_rows, jf(made).options.blocks, jf(made).options.chains) == (23, 2, 2)
    assert wording(made.notes[-1])
    assert resolve(made.plan, by_machine=True).methods == made.methods
    store(measured(seconds=(1.0, 5.0, 6.0, 7.0, 8.0)), "20261102T000000Z-profile")
    assert jf(planned()).max_rows == 11


@pytest.mark.parametrize(
    "values",
    [
        {"settings": ["jf.n=32"]}, {"settings": ["pool=3"]}, {"settings": ["jf.preset=MR"]}, {"simulate": ["4"]},
        {"gpu": "h200"},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_user_sets_wins(values: dict[str, Any], store: Any) -> None:
    store(measured())
    assert (
        planned(**values).methods
        == resolve(parse_flags(Plan, {"model": "config:tiny", "method": "jf", **values})).methods
    )


def test_one_row_that_is_sized_leaves_the_other_and_other_settings_open(store: Any) -> None:
    store(measured())
    made = planned(method="jf,jf", settings=["jf#2.n=32"])
    assert (jf(made).max_rows, jf(made, "jf#2").max_rows) == (23, 157)
    made = planned(settings=["jf.K=3"])
    assert (jf(made).max_rows, jf(made).options.blocks) == (21, 3), "4 · 3 + 3 · 3"
    assert jf(resolve(parse_flags(Plan, {"model": "config:tiny", "method": "jf"}))).max_rows == 317


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "another"}}, {"model": {"dtype": "bfloat16"}}, {"cpu": {"model": "another CPU"}},
        {"cpu": {"usable_cores": 999}}, {"settings": {"compile": True}},
    ],
    ids=str,
)  # fmt: skip
def test_a_profile_of_something_else_is_none(changes: dict[str, Any], store: Any) -> None:
    content = measured().model_dump(mode="json")
    for part, values in changes.items():
        where = content["environment"]["cpu"] if part == "cpu" else content[part]
        where.update(values)
    store(Profile.model_validate(content))
    made = planned()
    assert jf(made).max_rows == 317
    assert wording(made.notes[-1])


def test_the_newest_profile_counts_and_a_damaged_one_does_not(store: Any, tmp_path: Path) -> None:
    store(measured())
    store(measured(seconds=(1.0, 5.0, 6.0, 7.0, 8.0)), "20261102T000000Z-profile")
    assert jf(planned()).max_rows == 11
    (tmp_path / PROFILES / "20261102T000000Z-profile" / PROFILE).write_text("{")
    assert jf(planned()).max_rows == 23
