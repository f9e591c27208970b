"""``--preset``: a published protocol, told and recorded; what the user gives wins."""

from __future__ import annotations

import pytest

from specbench.cli.options import make_plan
from specbench.common.errors import UsageError
from specbench.runner.plan import Plan
from specbench.runner.presets import presets


def plan(preset: str | None, *settings: str, **given: object) -> Plan:
    """As ``run`` makes it."""
    values: dict[str, object] = dict.fromkeys(
        ("method", "task", "temperature", "limit", "max_new_tokens", "revision", "data_dir")
    )
    values |= {"settings": [], "task_settings": list(settings), "model": "config:tiny", "top_k": 0, "top_p": 1.0}
    values |= {"seed": 0, "repeats": 1, "concurrency": 1, "dtype": "auto", "device": "auto", "out": None}
    return make_plan(**{**values, "preset": preset, **given})  # type: ignore[arg-type]


def test_it_sets_task_prompt_and_budget_and_says_so() -> None:
    made = plan("jf-paper-gsm8k")
    (task,) = made.tasks
    assert (task.card.name, task.options.style) == ("gsm8k", "jf")
    assert (made.max_new_tokens, made.limit, made.sampling.temperature) == (1024, 100, 0.0)
    assert made.said == (
        "jf-paper-gsm8k sets --task gsm8k --max-new-tokens 1024 --limit 100 --first --task-set gsm8k.style=jf",
    )
    assert made.prompt_seed is None, "the protocol is of the first problems"


def test_what_the_user_gives_wins_and_is_not_told() -> None:
    made = plan("jf-paper-gsm8k", "gsm8k.style=cot", max_new_tokens=8, limit=3, temperature=0.7)
    assert made.tasks[0].options.style == "cot"
    assert (made.max_new_tokens, made.limit, made.sampling.temperature) == (8, 3, 0.7)
    assert made.said == ("jf-paper-gsm8k sets --task gsm8k --first",)
    assert made.prompt_seed is None, "three of the protocol's hundred"


def test_who_names_a_seed_draws_whatever_a_preset_takes() -> None:
    made = plan("jf-paper-gsm8k", prompt_seed=4)
    assert (made.limit, made.prompt_seed) == (100, 4)
    assert "--first" not in made.said[0]
    assert plan("jf-paper", limit=5).prompt_seed == 0, "a protocol of the whole data has no first ones"


def test_which_presets_are_of_the_first_prompts() -> None:
    found = {name: each.limit for name, each in presets().items() if each.first}
    assert found == {name: each.limit for name, each in presets().items() if each.limit is not None}
    assert found == {"jf-paper-gsm8k": 100, "jf-paper-math": 10}


def test_without_one_nothing_changes() -> None:
    made = plan(None)
    assert [task.card.name for task in made.tasks] == ["humaneval"]
    assert (made.max_new_tokens, made.limit, made.said) == (None, None, ())


def test_the_preset_of_another_task_is_refused() -> None:
    with pytest.raises(UsageError, match="jf-paper is of task humaneval, not gsm8k"):
        plan("jf-paper", task="gsm8k")


def test_an_alias_asks_as_its_checkpoint_was_trained() -> None:
    made = plan(None, model="jf-coder-7b")
    assert made.tasks[0].options.style == "jf"
    assert made.said[-1] == "jf-coder-7b sets --task-set humaneval.style=jf"


def test_what_the_user_or_a_preset_sets_wins_over_the_alias() -> None:
    assert plan(None, "humaneval.style=chat", model="jf-coder-7b").tasks[0].options.style == "chat"
    assert plan("evalplus-paper", model="jf-coder-7b").tasks[0].options.style == "evalplus"
    assert plan(None, model="jf-coder-7b", task="gsm8k").tasks[0].options.style == "auto"
