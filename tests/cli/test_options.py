"""One field of a plan is one option: of the command line, of Python and of the record."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from support import runs
from support.wording import wording
from transformers import LlamaModel

from specbench.cli import options
from specbench.cli.app import app
from specbench.common.errors import UsageError
from specbench.common.options import flag, parse_flags
from specbench.planning.plan import Plan, command
from specbench.planning.resolving import resolve


def parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a command line, as ``run`` gets it."""
    found: list[Plan] = []

    def stop(plan: Plan) -> Any:
        found.append(plan)
        return iter(())

    monkeypatch.setattr("specbench.runner.run_plans.run_plan", stop)
    _, *argv = shlex.split(line)
    with typer.main.get_command(app).make_context("specbench", argv) as context:
        context.command.invoke(context)
    return found[0]


class Wider(Plan):
    """A run with one more option."""

    stride: int = flag(3, "--stride", help="A new one.", ge=1)


def test_a_further_field_is_a_further_option(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Wider] = []

    @options.takes(Wider, shown=("stride", "method", "settings"), without=("task",))
    def it(plan: Wider, as_json: bool = options.JSON) -> None:
        """Does it."""
        seen.append(plan)

    wider = typer.Typer()
    wider.command()(it)
    run = typer.main.get_command(wider)
    run.main(["--stride", "5", "--method", "pld", "--set", "pld.k=2", "--set", "pld.order=3"], standalone_mode=False)
    assert (seen[0].stride, seen[0].method, list(seen[0].settings)) == (5, "pld", ["pld.k=2", "pld.order=3"])
    run.main([], standalone_mode=False)
    assert seen[1] == Wider()
    with pytest.raises(UsageError, check=wording):
        run.main(["--stride", "0"], standalone_mode=False)
    run.main(["--help"], standalone_mode=False)
    assert "--model" not in capsys.readouterr().out
    run.main(["--help-all"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "--model" in shown
    assert shown.index("--stride") < shown.index("--method")
    assert "│ --task " not in shown
    assert Wider(stride=4).recorded() == {"stride": 4}


def test_the_defaults_of_the_command_line_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("specbench run", monkeypatch) == Plan()
    assert Plan().recorded() == {}
    assert Plan().command() == "specbench run"


FULL: dict[str, Any] = {
    "method": "jf,pld", "task": "gsm8k", "model": "config:tiny", "limit": 7, "prompt_seed": 3, "max_new_tokens": 9,
    "temperature": 0.7, "top_k": 4, "top_p": 0.9, "seed": 5, "settings": ["jf.n=16", "pld.k=2"],
    "task_settings": ["gsm8k.style=cot"], "dtype": "float32", "device": "cpu", "attention": "reference",
    "graphs": "off", "compile": True, "trust_remote_code": True, "repeats": 2, "concurrency": 3, "trace": True,
    "base": "none", "deterministic": True,
}  # fmt: skip


def test_a_recorded_plan_gives_the_command_that_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = parse_flags(Plan, FULL)
    assert parsed(plan.command(), monkeypatch) == plan
    assert set(FULL) == set(plan.recorded())
    assert command(json.loads(json.dumps(plan.recorded()))) == plan.command()


@pytest.mark.parametrize(
    "values",
    [
        {}, FULL, {"model": "smollm2-135m-jf"}, {"preset": "jf-paper-gsm8k", "model": "config:tiny"},
        {"model": "smollm2-135m", "method": "jetspec", "head": "someone/head"},
    ],
    ids=["nothing", "all", "alias", "preset", "head"],
)  # fmt: skip
def test_a_resolved_plan_resolves_to_itself(values: dict[str, Any]) -> None:
    first = resolve(parse_flags(Plan, values))
    again = resolve(first.plan)
    assert (again.methods, again.specs(), again.base) == (first.methods, first.specs(), first.base)
    assert [(t.card.name, t.options) for t in again.tasks] == [(t.card.name, t.options) for t in first.tasks]
    assert again.plan == first.plan
    assert not [note for note in again.notes if "--set" in note or "--task-set" in note], "nothing is left to be set"


def test_a_record_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    head, file = tmp_path / "head", tmp_path / "mine.jsonl"
    head.mkdir()
    file.write_text("")
    plan = parse_flags(
        Plan,
        {
            "model": str(head), "settings": [f"jetspec.head={head}", "jf.n=4"], "data_file": file,
            "data_dir": tmp_path, "out": tmp_path, "profile": tmp_path, "task": "prompts",
        },
    )  # fmt: skip
    recorded = plan.recorded()
    assert str(tmp_path) not in json.dumps(recorded)
    assert (recorded["model"], recorded["data_file"]) == ("head", "mine.jsonl")
    assert recorded["settings"] == ["jetspec.head=head", "jf.n=4"]


def test_it_stands_in_the_run(cli: Any, tmp_path: Path) -> None:
    result = cli.ok(
        "run", "--model", "config:tiny", "--limit", 1, "--max-new-tokens", 4, "--out", tmp_path, "--no-score"
    )
    (folder,) = tmp_path.iterdir()
    assert runs.config_on_disk(folder)["plan"] == {
        "method": "ar,jacobi", "task": "humaneval", "max_new_tokens": 4, "limit": 1, "model": "config:tiny",
        "base": "none",
    }  # fmt: skip
    assert not (folder / "verdicts.jsonl").exists(), "--no-score"
    assert wording.sentences(result.out)


@pytest.mark.parametrize("command", [["run"], ["sweep", "--method", "jacobi", "--grid", "n=2"], ["check-lossless"]])
def test_threads_are_those_of_the_steps(cli: Any, tmp_path: Path, monkeypatch: Any, command: list[str]) -> None:
    """The option that was added by its field and its use alone."""
    before, seen = torch.get_num_threads(), set()
    forward = LlamaModel.forward

    def seeing(self: LlamaModel, *given: Any, **more: Any) -> Any:
        seen.add(torch.get_num_threads())
        return forward(self, *given, **more)

    monkeypatch.setattr(LlamaModel, "forward", seeing)
    asked = ("--model", "config:tiny", "--limit", 1, "--max-new-tokens", 3, "--threads", before + 1)
    out = () if command[0] == "check-lossless" else ("--out", tmp_path, "--no-score")
    try:
        cli.ok(*command, *asked, *out)
        assert seen == {before + 1}
    finally:
        torch.set_num_threads(before)


BEFORE_TORCH = [
    ("--repeats 1000000000000", 2, "--repeats 1000000000000: give an integer from 1 to 1,000"),
    ("--dtype float31", 2, "unknown dtype"),
    ("--device gpu", 2, "unknown device 'gpu'"),
    ("--out file", 3, "file (Not a directory)"),
    ("--data-dir .", 2, "has no file"),
    ("--task prompts --data-file file", 2, "file line 1 is damaged (not JSON"),
    ("--project b200 --profile .", 2, "profile.json"),
    ("--task=", 2, "--task is empty; see specbench list tasks"),
    ("--method jf --set n=512 --set pool=64 --concurrency 64", 3, "are free; lower block_size or pool_size"),
    ("--graphs on --device cpu", 3, "CUDA graphs need a CUDA device; use --graphs auto"),
]


def test_what_can_be_known_is_known_before_torch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    program = (
        "import sys; from specbench.cli import main\n"
        "for line in sys.stdin:\n"
        "    print(main(['run', '--model', 'config:tiny', *line.split()]), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input="".join(f"{arguments}\n" for arguments, *_ in BEFORE_TORCH),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{code} False" for _, code, _ in BEFORE_TORCH], done.stderr
    for (_, _, sentence), result in zip(BEFORE_TORCH, done.stderr.splitlines(), strict=True):
        assert sentence in result
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "a refused command leaves nothing"
