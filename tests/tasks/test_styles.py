"""What holds of every task that is asked in styles, whichever its problems are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common import options, registry
from specbench.common.errors import UsageError

_BOTH = {"tests": "plus", "extract": "own"}
_ALL: dict[str, Any] = {"subject": "all", "level": None}
# What a task is with a chat template and without one; styles that need one; an id of its own and what it is not.
SETTLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "humaneval": ({"style": "chat", **_BOTH}, {"style": "completion", **_BOTH}),
    "mbpp": ({"variant": "plus", "style": "chat"}, {"variant": "plus", "style": "completion"}),
    "gsm8k": ({"style": "chat", "shots": 0}, {"style": "completion", "shots": 5}),
    "math500": ({"style": "chat", "shots": 0}, {"style": "completion", "shots": 4}),
    "aime25": ({"style": "chat", "shots": 0}, {"style": "completion", "shots": 4}),
    "math": ({"style": "chat", "shots": 0, **_ALL}, {"style": "completion", "shots": 4, **_ALL}),
}
NEEDS_TEMPLATE = {"humaneval": ["chat", "jf", "jf-python", "jetspec", "evalplus"],
                  "mbpp": ["chat", "jf"], "gsm8k": ["chat", "jf", "jetspec"],
                  "math500": ["chat", "jf", "jetspec"], "aime25": ["chat"], "math": ["chat", "jf"]}  # fmt: skip
STOPS = {"gsm8k": ("Question:", "</s>", "<|im_end|>"), **dict.fromkeys(("math500", "aime25", "math"), ("Problem:",))}
FIRST = {"humaneval": "HumanEval/1", "mbpp": "Mbpp/2", "gsm8k": "gsm8k/0", "math500": "math500/0",
         "aime25": "aime25/0", "math": "math/0"}  # fmt: skip
UNKNOWN = {"humaneval": ["HumanEval/164"], "gsm8k": ["gsm8k/12", "gsm8k/-1", "gsm8k/x", "HumanEval/0", "0"],
           "math500": ["math500/22", "gsm8k/0", "math500/"], "mbpp": ["Mbpp/1"],
           "aime25": ["aime25/4", "math500/0"], "math": ["math/22", "math500/0", "math/-1"]}  # fmt: skip


@cache  # for some take their time to load
def made(name: str, folder: Path, **chosen: str) -> Any:
    if name in ("gsm8k", "math500", "aime25", "math"):
        pytest.importorskip("lm_eval", reason="needs pip install 'specbench-llm[eval]'")
        pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")
    module = registry.task(name).load()
    return module.Task(options.parse_options(module.Options, chosen, name), folder)


@pytest.mark.parametrize("name", SETTLED)
def test_auto_follows_the_model_and_leaves_nothing_to_be_decided(task_data: Path, name: str) -> None:
    for chat, settled in zip((True, False), SETTLED[name], strict=True):
        task = made.__wrapped__(name, task_data)
        prompts = task.prompts(chat)
        assert {prompt.chat for prompt in prompts} == {chat}
        assert task.options.model_dump() == settled
        if name in STOPS:
            assert {(prompt.history, prompt.stops) for prompt in prompts} == {((), () if chat else STOPS[name])}
    assert type(task)(task.options, task_data).options == task.options


@pytest.mark.parametrize("name", SETTLED)
def test_every_chat_style_needs_a_template(task_data: Path, name: str) -> None:
    for style in NEEDS_TEMPLATE[name]:
        with pytest.raises(UsageError, check=wording):
            made(name, task_data, style=style).prompts(chat=False)


@pytest.mark.parametrize("name", SETTLED)
def test_only_a_known_problem_of_a_known_style_is_scored(task_data: Path, name: str) -> None:
    with pytest.raises(UsageError, check=wording):
        made(name, task_data).score(FIRST[name], "18")
    task = made(name, task_data, style="completion")
    for id in UNKNOWN[name]:
        with pytest.raises(UsageError, match=id):
            task.score(id, "18")
    for nothing in ("", " \n\t"):
        verdict = task.score(FIRST[name], nothing)
        assert (verdict.passed, verdict.reason, {*verdict.also.values()}) == (False, "empty", {False})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("humaneval", {"stile": "chat"}),
        ("gsm8k", {"style": "cllm", "shots": "1"}),
        ("gsm8k", {"style": "cot", "shots": "9"}),
        ("math500", {"style": "completion", "shots": "5"}),
        ("aime25", {"style": "completion", "shots": "5"}),
    ],
)
def test_an_option_that_cannot_be_is_named(task_data: Path, name: str, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, check=wording):
        made(name, task_data, **wrong)
