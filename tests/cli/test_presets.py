"""``--preset``: a published protocol, reported and recorded; what the user gives wins."""

from __future__ import annotations

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.options import parse_flags
from specbench.planning.plan import Plan
from specbench.planning.resolving import Resolved, resolve


def plan(preset: str | None, *settings: str, **more: object) -> Resolved:
    """As ``run`` makes it."""
    return resolve(parse_flags(Plan, {"model": "config:tiny", "preset": preset, "task_settings": settings, **more}))


def test_it_sets_task_prompt_and_budget_and_says_so() -> None:
    made = plan("jf-paper-gsm8k")
    (task,) = made.tasks
    assert (task.card.name, task.options.style) == ("gsm8k", "jf")
    assert (made.plan.max_new_tokens, made.plan.limit, made.sampling.temperature) == (1024, 100, 0.0)
    assert made.notes == (
        "jf-paper-gsm8k sets --task gsm8k --max-new-tokens 1024 --limit 100 --first --task-set gsm8k.style=jf",
    )
    assert made.plan.drawn_by is None, "the protocol is of the first problems"


def test_what_the_user_gives_wins_without_a_note() -> None:
    made = plan("jf-paper-gsm8k", "gsm8k.style=cot", max_new_tokens=8, limit=3, temperature=0.7)
    assert made.tasks[0].options.style == "cot"
    assert (made.plan.max_new_tokens, made.plan.limit, made.sampling.temperature) == (8, 3, 0.7)
    assert made.notes == ("jf-paper-gsm8k sets --task gsm8k --first",)
    assert made.plan.drawn_by is None, "three of the protocol's hundred"


def test_without_one_nothing_changes_and_that_of_another_task_is_refused() -> None:
    made = plan(None)
    assert [task.card.name for task in made.tasks] == ["humaneval"]
    assert (made.plan.max_new_tokens, made.plan.limit, made.notes) == (None, None, ())
    with pytest.raises(UsageError, check=wording):
        plan("jf-paper", task="gsm8k")


def test_an_alias_asks_as_its_checkpoint_was_trained_unless_the_user_or_a_preset_says_so() -> None:
    made = plan(None, model="jf-coder-7b")
    assert made.tasks[0].options.style == "jf"
    assert wording(made.notes[-1])
    assert plan(None, "humaneval.style=chat", model="jf-coder-7b").tasks[0].options.style == "chat"
    assert plan("evalplus-paper", model="jf-coder-7b").tasks[0].options.style == "evalplus"
    assert plan(None, model="jf-coder-7b", task="gsm8k").tasks[0].options.style == "auto"
