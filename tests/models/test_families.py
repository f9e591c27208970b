"""Every causal language model class of transformers is exact or refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import families


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "qwen3_next", "mamba2", "deepseek_v3", "phimoe"])
def test_some_families(kind: str) -> None:
    (committed,) = (one for one in _committed() if one["model_type"] == kind)
    assert families.tried(kind, families.classes()[kind])["result"] == committed["result"]


def test_tokens_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = families.generated
    monkeypatch.setattr(families, "generated", lambda model, ids: [(token + 1) % 131 for token in own(model, ids)])
    assert families.tried("llama", "LlamaForCausalLM")["result"] == "broken"


@pytest.mark.slow
def test_no_family_is_lost() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.families", "--check"],
        cwd=families.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr


def _committed() -> list[dict[str, str]]:
    return list(json.loads(families.RESULTS.read_text())["families"])
