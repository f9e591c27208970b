"""Help that reads well at 80 columns, flags that scripts rely on, and an answer before one notices waiting."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support.processes import slowness
from support.wording import wording

from specbench.cli.app import app

#: Their options are the fields of a plan: --help shows the usual ones, --help-all every one.
PLANNED = {*("run", "sweep", "check-lossless", "profile", "quality", "train", "export-model")}
HEAVY = ("torch", "transformers", "pandas", "matplotlib", "numpy")
QUICK, PROMISED = 0.5, 1.2  # seconds, of a machine of the usual pace and of any


def commands() -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def flags() -> dict[str, list[str]]:
    """Each command's flags and arguments."""

    def name(parameter: Any) -> str:
        return parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name

    return {
        command: sorted({name(each) for each in made.params} - {"--help-all"}) for command, made in commands().items()
    }


def test_no_flag_was_renamed() -> None:
    """A script may have written any of them down."""
    assert wording("\n".join(f"{command}: {' '.join(names)}" for command, names in sorted(flags().items())))


@pytest.mark.parametrize("command", [[], *([name] for name in flags())], ids=lambda words: " ".join(words) or "(none)")
def test_help_fits_80_columns_and_shows_every_flag_whole(cli: Any, command: list[str]) -> None:
    whole = "--help-all" if {*command} & PLANNED else "--help"
    result = cli.ok(*command, whole)
    assert max(map(len, result.out.splitlines())) <= 80
    for word in flags()[command[0]] if command else flags():
        assert word in result.out.replace("│", " ").split() or f"{{{word}}}" in result.out, word
    assert result.err == ""


def test_without_arguments_comes_the_help_and_the_exit_code_of_bad_usage(cli: Any) -> None:
    result = cli()
    assert (result.code, result.out) == (2, cli("--help").out)


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["list", "methods"]], ids=" ".join)
def test_answers_at_once(command: list[str]) -> None:
    def seconds() -> float:
        # Of processor time: what else the machine does is not the command's.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "specbench", *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # What else a machine does makes any one start slower and none faster; a slow command is slow in every one.
    starts = []
    for _ in range(12):
        starts.append(seconds())
        if starts[-1] < QUICK or starts[-1] < min(PROMISED, QUICK * slowness()):
            return
    pytest.fail(f"specbench {' '.join(command)} takes {min(starts):.2f} s at best")


@pytest.mark.parametrize(
    ("commands", "never"),
    [
        (["--help", "claims", *(f"list {kind}" for kind in ("methods", "tasks", "models", "gpus"))], HEAVY),
        (["show nowhere", "train nope", "train jf --prompts gsm8k-test", "trajectories --prompts gsm8k-test"],
         HEAVY[:2]),
    ],
    ids=["tables", "mistakes"],
)  # fmt: skip
def test_imports_nothing_heavy(commands: list[str], never: tuple[str, ...]) -> None:
    code = (
        "import sys; from specbench.cli.app import main\n"
        f"for command in {commands}:\n"
        "    main(command.split())\n"
        f"    assert not {{*{never}}} & {{*sys.modules}}, command"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("former", ["export", "judge", "perplexity", "trajectories", "tune"])
def test_a_former_command_names_the_new_one(cli: Any, former: str) -> None:
    result = cli.refused(2, former, "--anything")
    assert result.startswith(f"error: {former} is now: specbench ")
    assert result.split("specbench ")[1].split()[0] in commands()


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["report", "RUN", "--summary"], "--summary"),
        (["report", "RUN", "--to", "csv", "--claims"], "--claims"),
        (["score", "RUN", "--base-url", "http://localhost:1/v1"], "--base-url"),
        (["score", "RUN", "--judge", "config:tiny", "--workers", 2], "--workers"),
        (["sweep", "--method", "pld", "--tune", "--search", "halving"], "--search"),
        (["sweep", "--method", "pld", "--tune", "--search", "grid"], "--search"),
        (["sweep", "--method", "pld", "--tune", "--held-out", 0], "--held-out"),
        (["sweep", "--method", "pld", "--tune", "--dry-run"], "--dry-run"),
        (["sweep", "--tune"], "--method"),
        (["train"], "METHOD"),
        (["train", "cllm", "--max-run", 10], "--max-run"),
        (["train", "cllm", "--states", "jacobi"], "--states"),
        (["train", "--collect", "--recipe", "cllm"], "--recipe"),
        (["train", "cllm", "--collect"], "METHOD"),
        (["quality", "config:tiny", "--context", 64], "--context"),
        (["quality", "config:tiny", "--text", "FILE", "--tasks", "arc_easy"], "--tasks"),
        (["quality", "config:tiny", "--text", "FILE", "--out", "."], "--out"),
        (["score", "RUN", "--trust-remote-code"], "--trust-remote-code"),
    ],
)
def test_an_option_of_another_mode_is_refused_by_name(cli: Any, tmp_path: Path, argv: list[Any], flag: str) -> None:
    file, run = tmp_path / "text.txt", tmp_path / "run"
    file.write_text("One apple.")
    run.mkdir()
    result = cli.refused(2, *({"FILE": file, "RUN": run}.get(word, word) for word in argv))
    assert flag in result or (flag == "METHOD" and "method" in result.lower())


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_help_lists_the_options_of_most_runs(cli: Any, command: str) -> None:
    words = cli.ok(command, "--help").out.split()
    assert {"--data-file", "--head", "--seed", "--max-new-tokens", "--limit", "--verbose"} <= {*words}
