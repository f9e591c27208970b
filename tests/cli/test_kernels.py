"""From a plan to the engine's arguments, and from the engine's report to the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import models

from specbench.engine.cpu import library
from specbench.engine.engine import Engine
from specbench.runner.session import Kernels
from specbench.runner.setup import layer_backend


@pytest.mark.parametrize(("graphs", "value"), [("auto", None), ("on", True), ("off", False)])
@pytest.mark.parametrize(("compile", "native", "own"), [(True, "off", False), (False, "on", True)])
def test_the_plan_says_which_kernels(graphs: Any, value: bool | None, compile: bool, native: Any, own: bool) -> None:
    plan = models.plan([], attention="flash", graphs=graphs, compile=compile, native=native, deterministic=not compile)
    assert Kernels.of(plan.plan) == Kernels("flash", value, compile, own, not compile)


def test_the_choice_is_the_engines_where_the_user_made_none() -> None:
    many = models.plan([], limit=100, max_new_tokens=100).plan
    assert Kernels.of(many) == Kernels() == Kernels("auto", None, False, None, False)


def test_a_short_run_waits_for_no_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = models.plan([], limit=2, max_new_tokens=8).plan
    library.open_cpu_library()
    assert Kernels.of(few).native is None  # what is there already costs nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Kernels.of(few).native is False
    assert Kernels.of(few, "cuda").native is None  # nothing is built there before a run
    layer_backend.build_layers(few, lambda line: pytest.fail(line))


def test_what_the_engine_reports_is_printed_and_kept(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"attention": "reference", "why": "auto: no CUDA device", "graphs": 2, "capture_s": 0.5}
    report["late_captures"] = 0
    monkeypatch.setattr(Engine, "report", lambda self: report, raising=False)
    tiny = ("--model", "config:tiny", "--max-new-tokens", 4, "--limit", 1, "--no-score")
    result = cli.ok("run", *tiny, "--verbose", "--out", tmp_path)
    line = "attention: reference (auto: no CUDA device); 2 graphs captured in 0.5 s"
    assert result.err.count(line) == 1
    assert line not in result.out
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text())["engine"] == report
    assert cli("score", folder).code == 0
    assert json.loads(cli("show", folder, "--json").out)["summary"]["engine"] == report
    recorded = json.loads((folder / "run.json").read_text())
    assert (recorded["attention"], recorded["graphs"], recorded["compile"]) == ("auto", "auto", False)
