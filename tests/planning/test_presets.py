"""Every preset names a task, and options and a budget that the task takes."""

from __future__ import annotations

import pytest

from specbench.common.errors import UsageError
from specbench.planning.presets import load_presets, preset
from specbench.planning.tasks import plan_tasks

every_preset = pytest.mark.parametrize("name", load_presets())


@every_preset
def test_its_options_are_the_tasks(name: str) -> None:
    chosen = load_presets()[name]
    (task,) = plan_tasks([chosen.task], [f"{chosen.task}.{option}={value}" for option, value in chosen.options.items()])
    options = task.options.model_dump(mode="json")
    assert {option: options[option] for option in chosen.options} == chosen.options


def test_an_unknown_one_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="jf-paper"):
        preset("jf-papers")
