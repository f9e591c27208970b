"""One prompt of a run against transformers' own generate: once, off the clock, and a refusal where they part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import decoders, models
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.hardware import environment
from specbench.planning.methods import plan_methods
from specbench.planning.plan import Plan
from specbench.runner.grades import own_generate
from specbench.runner.grades.own_generate import check_generate
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.stop import StopRule

PROMPT = [5, 6, 7, 8]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "specbench" / "generate-checks"


@pytest.fixture
def session() -> Any:
    model = models.tiny_llama(64)
    model.generation_config.repetition_penalty = 1.5  # of the model's own, which no row applies
    model.generation_config.eos_token_id = [*range(64)]
    sampling = Sampling(temperature=0.9, seed=3)
    with Session(decoders.loaded(model, "tiny"), plan_methods(["ar"], []), sampling, capacity=64) as made:
        yield made


def asked(budget: int = 24) -> Any:
    rule = StopRule(frozenset(), (), budget, str)
    requests = {name: Request(name, 0, ids, rule) for name, ids in (("long", PROMPT * 3), ("short", PROMPT))}
    return SimpleNamespace(prompts=requests, request=requests.get, budget=budget)


def captured(dirty: bool = False) -> environment.Environment:
    return environment.capture("cpu").model_copy(update={"git_dirty": dirty})


def test_equal_tokens_are_recorded_and_asked_once(session: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, own = Plan(), session.engine.model.generation_config
    found = check_generate(plan, session, asked(), captured())
    assert found.written() == {"tokens": 16, "prompt": "short"}
    assert session.engine.sampling.temperature == 0.9
    assert session.engine.model.generation_config is own
    monkeypatch.setattr(Engine, "greedy", lambda *_: pytest.fail("asked again"))
    assert check_generate(plan, session, asked(), captured()) == found
    (file,) = cache.iterdir()
    for damage in ("", "[]", '{"x": 1}'):
        file.write_text(damage)
        with pytest.raises(pytest.fail.Exception, check=wording):
            check_generate(plan, session, asked(), captured())


def test_code_that_is_not_committed_is_asked_each_time(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_generate(Plan(), session, asked(), captured(dirty=True))
    monkeypatch.setattr(Engine, "greedy", lambda *_: pytest.fail("asked again"))
    with pytest.raises(pytest.fail.Exception, check=wording):
        check_generate(Plan(), session, asked(), captured(dirty=True))


def test_another_token_is_refused_unless_it_is_a_tie(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = session.engine.greedy(PROMPT, 16)
    wrong = [*text[:5], (text[5] + 1) % 64, *text[6:]]
    monkeypatch.setattr(Engine, "greedy", lambda *_: wrong)
    with pytest.raises(EnvironmentRefused) as refused:
        check_generate(Plan(), session, asked(), captured())
    assert "\n" not in str(refused.value)
    assert all(word in str(refused.value) for word in ("tiny", "short", f"is {wrong[5]} ", f"{text[5]} by"))
    monkeypatch.setattr(own_generate, "_TIE", 1e9)
    assert check_generate(Plan(), session, asked(), captured()).tie == 5
