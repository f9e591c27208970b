"""Logit processors of a plan: grammar files, biases, and combinations that cannot work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.asserting import refusal

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.options import parse_flags
from specbench.planning import Plan, check_ready, grammar_source, resolve
from specbench.planning.grammar import read_grammar
from specbench.results import GrammarSpec, SamplingSpec


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.json", '{"type": "integer"}', "json"),
        ("a.lark", 'start: "yes" | "no"', "lark"),
        ("a.regex", "[0-9]+\n", "regex"),
    ],
)
def test_each_kind_of_grammar_is_read(tmp_path: Path, name: str, text: str, kind: str) -> None:
    llguidance = pytest.importorskip("llguidance")
    found = read_grammar(file(tmp_path, name, text))
    assert (found.kind, found.text) == (kind, text.rstrip("\n") if kind == "regex" else text)
    assert llguidance.LLMatcher.validate_grammar(grammar_source(found)) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "x"),
        ("a.json", "{"),
        ("a.json", "[1]"),
        ("a.json", "[" * 200_000),
        ("a.json", '{"type": "strng"}'),
        ("a.lark", "start: unknown"),
        ("a.regex", "("),
    ],
)
def test_a_wrong_grammar_is_refused_before_loading(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("llguidance")
    plan = parse_flags(Plan, {"grammar": file(tmp_path, name, text), "out": tmp_path})
    assert "--grammar" in refusal(UsageError, lambda: check_ready(resolve(plan)))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    found = refusal(EnvironmentRefused, grammar_source, GrammarSpec(kind="regex", text="a"))
    assert "llguidance" in found


def test_a_schema_that_is_no_json_is_named(tmp_path: Path) -> None:
    found = refusal(UsageError, read_grammar, file(tmp_path, "a.json", '{"type":'))
    assert "a.json" in found
    assert "JSON" in found


@pytest.mark.parametrize("written", ["7", "7=", "=1", "7=x", "7=nan", "7=101", f"{'7' * 5000}=1", "\udce9=1"])
def test_a_wrong_bias_is_refused(written: str) -> None:
    assert "--logit-bias" in refusal(UsageError, parse_flags, Plan, {"logit_bias": (written,)})


def test_a_token_has_one_bias() -> None:
    assert "--logit-bias" in refusal(UsageError, parse_flags, Plan, {"logit_bias": ("7=1", "7=2")})
    assert parse_flags(Plan, {"logit_bias": ("7=1", "==-2.5")}).sampling.logit_bias == {"7": 1, "=": -2.5}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"method": "ar,hf:ar", "min_p": 0.1}, "--min-p"),
        ({"method": "ar,vllm:ar", "logit_bias": ("3=1",)}, "--logit-bias"),
        ({"grammar": "a.regex", "simulate": ("3",)}, "--grammar"),
    ],
)
def test_combinations_that_cannot_work_are_refused(tmp_path: Path, more: dict[str, Any], named: str) -> None:
    if "grammar" in more:
        more = {**more, "grammar": file(tmp_path, more["grammar"], "a+")}
    assert named in refusal(UsageError, lambda: resolve(parse_flags(Plan, more)))


def test_processors_that_are_off_are_not_recorded() -> None:
    plain = SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0)
    assert plain.model_dump() == {"temperature": 0, "top_k": 0, "top_p": 1, "seed": 0}
    assert (plain.processors, plain.words) == ({}, "")
    on = SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0, presence_penalty=-0.5, logit_bias={"7": 1.0})
    assert on.processors == {"presence_penalty": -0.5, "logit_bias": {"7": 1.0}}
    assert SamplingSpec.model_validate(on.model_dump()) == on
