"""Methods and tasks that end the command: never a success, always named, with what was finished kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import asserting, decoders, processes

from specbench.cli.app import main
from specbench.common.errors import PluginFault
from specbench.evals.data import DATA_DIR
from specbench.evals.grading import scoring
from specbench.hardware import environment
from specbench.methods.ar import decoder as autoregressive
from specbench.models.loader import load
from specbench.results.folder import RunFolder

FAULT = 6


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """HumanEval from its package, which is read in no time, and no one asks git."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(DATA_DIR, raising=False)
        patched.setattr(environment, "git_state", lambda root: ("c" * 40, False))
        load("config:tiny")  # what that imports, no child has to import again
        yield


def raising(code: int | str) -> Callable[..., Any]:
    """A function that ends the process, whichever module calls it."""

    def leave(*given: Any) -> Any:
        raise SystemExit(code)

    return leave


TASK = """
import os, sys
from specbench.common.options import Options as Base
from specbench.evals.task import Prompt, Unscored

class Options(Base):
    pass

class Task(Unscored):
    def __init__(self, options, data_dir=None): self.options = options
    def prompts(self, chat): return [Prompt("a", "text", False)]
"""


def install(site: Path, code: str, metric: str = "") -> Path:
    """Write what ``pip install specbench-leaving`` would leave in site-packages: a task called ``leave``."""
    package = site / "leaving"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text(code)
    (package / "task.toml").write_text(
        'title = "Leaving"\nsummary = "Leaves"\nlossless = true\nversion = 1\nmax_new_tokens = 4\n'
        f'metric = "{metric}"\n'
    )
    info = site / "specbench_leaving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specbench-leaving\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.tasks]\nleave = leaving\n")
    return site


def run(site: Path, *argv: object) -> asserting.Forked:
    what = ("--model", "config:tiny", "--limit", 3, "--max-new-tokens", 4, "--out", site.parent / "runs")

    def call() -> int:
        with processes.visible(site):
            return main(["run", *map(str, (*what, *argv))])

    # Where a scorer finds it too, which is a process of its own.
    return asserting.call(
        site.parent / "output", call, cwd=site.parent, env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    ).wait()


ROOT = Path(__file__).parents[2]


def test_without_plain_decoding_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def begin(self: Any, prompt: Any) -> None:
        begun.append(1)
        if len(begun) == 3:  # after the warm-up
            raise OSError("no luck")

    monkeypatch.setattr(autoregressive.Decoder, "begin", begin)
    done = run(tmp_path / "site", "--method", "pld")
    assert done.code == FAULT
    assert done.err.splitlines()[-1].startswith("error: method 'ar' (from specbench) failed in begin (OSError: no luck")
    (made,) = (tmp_path / "runs").iterdir()
    found = RunFolder.load(made)
    assert not found.finished
    assert [record.method for record in found.records()].count("ar") == 1


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(0)",
        TASK.replace("self.options = options", "sys.exit()"),
        TASK.replace("return [Prompt", "raise SystemExit(0); return [Prompt"),
    ],
    ids=["import", "making", "prompts"],
)
def test_a_task(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = install(tmp_path / "site", code)
    with processes.visible(site):
        result = main(["run", "--model", "config:tiny", "--task", "leave", "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert (result, error.partition(" ended the")[0]) == (FAULT, "error: task 'leave' (from specbench-leaving)")
    assert not (tmp_path / "runs").exists()


SCORED = """
import os, sys
from pathlib import Path
from specbench.common import Options as Base, Prompt
from specbench.evals import Verdict

class Options(Base):
    pass

class Task:
    def __init__(self, options, data_dir=None): self.options, self.versions, self.isolation = options, {}, []
    def prompts(self, chat): return [Prompt("a", "text", False)]
    def score(self, prompt_id, text): return Verdict(True, "ok")
"""


@pytest.mark.parametrize(
    "code",
    [
        SCORED.replace("return Verdict", "os._exit(0); return Verdict"),
        SCORED.replace("def prompts", "if 'specbench.evals' in sys.orig_argv: sys.exit(0)\n    def prompts"),
    ],
    ids=["scoring", "import"],
)
def test_a_task_that_ends_its_scorer(code: str, tmp_path: Path) -> None:
    site = install(tmp_path / "site", code, "pass@1")
    done = run(site, "--task", "leave")
    assert (done.code, "ended the" in done.err) == (FAULT, True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "DONE").exists()
    assert len(list(RunFolder.load(folder).records())) == 2


@pytest.mark.parametrize("call", ["__init__", "begin", "draft", "observe", "end", "measures", "top_k", "taps"])
def test_every_call_of_a_decoder(call: str) -> None:
    method = decoders.toy(decoder=type("Leaving", (decoders.Decoder,), {call: raising(0)}))
    records = decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(method, [decoders.request(1, 4)])
    with pytest.raises(PluginFault, match=r"'toy'.*SystemExit\(0\)"):
        list(records)


JUNK_PROMPTS = {
    "[3]": "prompt 0 is int, not a Prompt",
    "3": "failed (TypeError: 'int' object is not iterable",
    "[Prompt('a', 3, False)]": "prompt 0 has something else than text",
    "[Prompt('a', 'a', False, history=((1, 2),))]": "prompt 0 has something else than text",
    "[Prompt('a', 'a', False, temperature=float('nan'))]": "prompt 0 has temperature nan",
}


@pytest.mark.parametrize("prompts", JUNK_PROMPTS)
def test_prompts_that_are_none(prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = install(tmp_path / "site", TASK.replace('[Prompt("a", "text", False)]', prompts))
    with processes.visible(site):
        result = main(["run", "--model", "config:tiny", "--task", "leave", "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert (result, error.partition(")")[0]) == (FAULT, "error: task 'leave' (from specbench-leaving")
    assert JUNK_PROMPTS[prompts] in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        ("None", "score returned NoneType, not a Verdict"),
        ("Verdict('yes', 'ok')", "its verdict must consist of True, False and texts"),
        ("Verdict(True, 'ok', also={'x': float('nan')})", "its verdict must consist of True, False"),
        ("Verdict(True, 3)", "its verdict must consist of True, False and texts"),
        ("1 / 0", "failed (ZeroDivisionError: division by zero at task.py line"),
    ],
)
def test_verdicts_that_are_none(verdict: str, result: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"schema_version": 2, "task": {"name": "leave", "options": {}}}')
    (folder / "requests.jsonl").write_text('{"request_id": "ar|a|0", "prompt_id": "a", "text": "x"}\n')
    site = install(tmp_path / "site", SCORED.replace('Verdict(True, "ok")', verdict), "pass@1")
    with processes.visible(site), pytest.raises(PluginFault) as caught:
        scoring.score_run(folder)
    assert str(caught.value).startswith("task 'leave' (from specbench-leaving) failed (")
    assert result.removeprefix("failed (") in str(caught.value)
    assert not (folder / "verdicts.jsonl").exists()
