"""Arguments of chat templates: how they are written, that they reach the prompts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.common import UsageError
from specbench.common.prompt import Prompt
from specbench.models.loader import load
from specbench.models.template_args import parse_template_args
from specbench.planning.plan import Plan

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}|{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no {% endif %}{{ effort | default('') }}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, byte_tokenizer(template=TEMPLATE))
    return tmp_path


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ([], {}),
        (["enable_thinking=false"], {"enable_thinking": False}),
        (["reasoning_effort=high", "n=3"], {"reasoning_effort": "high", "n": 3}),
        (['tools=[{"name": "f"}]', "at = b=c", "empty="], {"tools": [{"name": "f"}], "at": " b=c", "empty": ""}),
    ],
)
def test_values_are_json_or_text(written: list[str], parsed: dict[str, Any]) -> None:
    assert parse_template_args(written) == parsed
    assert Plan(chat_template_arg=written).template_args == parsed


@pytest.mark.parametrize("written", [["x"], ["=1"], ["a b=1"], ["messages=[]"], ["chat_template=x"], ["a=1", "a=2"]])
def test_arguments_that_cannot_be_set_are_refused(written: list[str]) -> None:
    with pytest.raises(UsageError, check=wording):
        parse_template_args(written)


def test_arguments_reach_every_prompt_and_the_record(folder: Path) -> None:
    plain = load(str(folder))
    given = load(str(folder), template_args={"enable_thinking": False, "effort": "low"})
    ask = Prompt("a", "hi", True)
    assert plain.decode(plain.encode(ask)) == "hi|"
    assert given.decode(given.encode(ask)) == "hi|no low"
    assert given.write_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False) == "hino low"
    assert given.spec.model_dump()["template_args"] == {"enable_thinking": False, "effort": "low"}
    assert "template_args" not in plain.spec.model_dump()


def test_arguments_that_the_template_does_not_use_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="enable_thinkin ", check=wording):
        load(str(folder), template_args={"enable_thinkin": False})
    save(tmp_path / "bare")
    with pytest.raises(UsageError, match="no chat template", check=wording):
        load(str(tmp_path / "bare"), template_args={"enable_thinking": False})
