"""Help that reads well at 80 columns, flags that scripts rely on, and an answer before one notices waiting."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

import pytest
import typer
from support.processes import slowness
from support.wording import wording

from specbench.cli.app import app

_MODEL = ["--dtype", "--device", "--revision", "--trust-remote-code"]
_WHAT = ["--method", "--task", "--model"]
_OPTIONS = ["--set", "--task-set"]
_SAMPLING = ["--top-k", "--top-p"]
_DRAW = ["--prompt-seed", "--first"]
_KERNELS = ["--attention", "--graphs", "--compile", "--native"]
_DECODING = ["--threads", "--quiet", "--deterministic", "--step-timeout"]

# Every name a script may have written down: renaming or dropping one breaks somebody, so it has to be done here too.
FLAGS = {
    "run": [
        *(*_WHAT, *_MODEL, *_OPTIONS, *_SAMPLING, "--gpu", "--limit", "--max-new-tokens", "--temperature", "--seed"),
        *_DRAW,
        *_KERNELS,
        *("--repeats", "--concurrency", "--data-dir", "--data-file", "--preset", "--out", "--trace", "--json"),
        *(
            "--simulate-acceptance",
            "--head",
            "--project",
            "--profile",
            "--base",
            "--backend-url",
            "--again",
            "--patience",
            "--dry-run",
        ),
        *("--no-score", *_DECODING),
    ],
    "tune": [
        *("--method", "--task", "--model", "--gpu", "--grid", "--limit", "--held-out", "--max-new-tokens", "--seed"),
        *_DRAW,
        *(*_OPTIONS, "--head", *_MODEL, *_KERNELS, "--data-dir", "--data-file", "--out", "--json"),
        *("--temperature", *_SAMPLING, "--grid-file", "--patience", *_DECODING),
    ],
    "check-lossless": [
        *(*_WHAT, *_MODEL, *_OPTIONS, *_SAMPLING, "--temperatures", "--seeds", "--limit", "--max-new-tokens"),
        *_DRAW,
        *("--concurrency", "--data-dir", "--data-file", "--json", "--head", *_KERNELS, "--gpu", *_DECODING),
    ],
    "judge": [
        *(
            "RUN",
            "--judge",
            "--base-url",
            "--api-key-env",
            "--timeout",
            "--judge-workers",
            "--max-new-tokens",
            "--export",
            "--import",
        ),
        *(*_MODEL, "--data-dir", "--json"),
    ],
    "score": ["RUN", "--workers", "--data-dir", "--json"],
    "show": [
        *("RUN", "--requests", "--request", "--method", "--trajectory", "--round", "--race", "--speed", "--out"),
        "--json",
    ],
    "export": ["RUN...", "--to", "--out", "--summary", "--positions", "--columns"],
    "export-model": [
        *("MODEL", "--to", "--dtype", "--vocabulary", "--out", "--revision", "--trust-remote-code", "--quiet", "--json")
    ],
    "compare": ["RUN", "--fail-under", "--over-ar", "--prompts", "--json"],
    "list": ["kind", "--json"],
    "claims": ["--method", "--task", "--check", "--json"],
    "doctor": ["--out", "--watch", "--model", "--json"],
    "sweep": [
        *(*_WHAT, *_MODEL, *_OPTIONS, *_SAMPLING, "--gpu", "--limit", "--max-new-tokens", "--temperature", "--seed"),
        *_DRAW,
        *(*_KERNELS, "--data-dir", "--data-file", "--out", "--json", "--simulate-acceptance", "--head", "--dry-run"),
        *("--grid", "--grid-file", "--held-out", "--search", "--until-ci", "--executor", "--workers", "--yes"),
        *("--no-score", "--profile", "--patience", *_DECODING),
        *("--train", "--train-grid", "--train-set", "--train-prompts", "--train-answers", "--train-limit"),
        *("--train-held-out", "--train-tokens", "--max-hours", "--trained"),
    ],
    "profile": [
        *("--model", "--gpu", "--rows", "--contexts", "--slots", "--seconds", "--nodes", *_MODEL, *_KERNELS, "--out"),
        "--json",
    ],
    "train": [
        *("METHOD", "--prompts", "--model", "--out", "--set", "--limit", "--held-out", "--texts", "--max-new-tokens"),
        *_DRAW,
        *("--temperature", "--concurrency", "--answers", "--seed", *_MODEL, "--data-dir", "--json"),
        *("--trajectories", "--given", "--recipe", "--quiet"),
    ],
    "perplexity": [*("--text", "--model", "--base", "--context", "--stride", "--tokens", *_MODEL, "--quiet", "--json")],
    "quality": [
        *("MODEL", "--tasks", "--include", "--limit", "--shots", "--chat", "--max-length", "--concurrency", "--out"),
        *(*_MODEL, "--card", "--json", "--quiet"),
    ],
    "report": ["RUNS", "--out", "--claims", "--json"],
    "trajectories": [
        *("--prompts", "--model", "--out", "--answers", "--block-size", "--states", "--init", "--augment"),
        *(
            "--keep-circles",
            "--max-run",
            "--max-repeats",
            "--limit",
            "--max-new-tokens",
            "--temperature",
            "--concurrency",
            "--seed",
        ),
        *_DRAW,
        *("--shard", "--rows", *_MODEL, "--data-dir", "--json", "--quiet"),
    ],
    "new-method": ["NAME", "--into", "--json"],
}
#: Their options are the fields of a plan: --help shows the usual ones, --help-all every one.
PLANNED = {*("run", "sweep", "tune", "check-lossless", "profile", "perplexity", "quality", "train", "trajectories")}
PLANNED |= {"export-model"}
HEAVY = ("torch", "transformers", "pandas", "matplotlib", "numpy")
QUICK, PROMISED = 0.5, 1.2  # seconds, of a machine of the usual pace and of any


def commands() -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_no_flag_was_renamed() -> None:
    def name(parameter: Any) -> str:
        return parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name

    found = {
        command: {name(p) for p in made.params} - ({"--help-all"} if command in PLANNED else set())
        for command, made in commands().items()
    }
    assert found == {command: set(flags) for command, flags in FLAGS.items()}


def test_where_things_go_unless_it_is_said() -> None:
    defaults = {
        command: str(option.default)
        for command, made in commands().items()
        for option in made.params
        if "--out" in option.opts and option.default is not None
    }
    runs = dict.fromkeys(["run", "sweep", "tune", "doctor"], "results")
    assert {command: defaults[command] for command in (*runs, "report")} == {**runs, "report": "reports"}


@pytest.mark.parametrize("command", [[], *([name] for name in FLAGS)], ids=lambda words: " ".join(words) or "(none)")
def test_help_fits_80_columns_and_shows_every_flag_whole(cli: Any, command: list[str]) -> None:
    whole = "--help-all" if {*command} & PLANNED else "--help"
    said = cli.ok(*command, whole)
    assert max(map(len, said.out.splitlines())) <= 80
    for word in FLAGS[command[0]] if command else FLAGS:
        assert word in said.out.replace("│", " ").split() or f"{{{word}}}" in said.out, word
    assert said.err == ""


@pytest.mark.parametrize("command", sorted(PLANNED))
def test_the_help_of_a_command_with_many_options_fits_a_screen(cli: Any, command: str) -> None:
    said = cli.ok(command, "--help")
    lines = said.out.splitlines()
    assert (max(map(len, lines)) <= 80, len(lines) <= 50, "--help-all" in said.out, said.err) == (True, True, True, "")
    assert cli(command, "--help").out == said.out != cli(command, "--help-all").out, "nothing stays shown"


def test_the_help_of_run_names_what_lists_the_options_of_a_method(cli: Any) -> None:
    assert wording(" ".join(cli("run", "--help").out.split()))
    said = cli("list", "jf")
    assert (said.code, said.err) == (0, "")
    assert "num_blocks        K, k   2" in said.out
    assert "(1 to 512)" in " ".join(said.out.split())
    for name, lines in {
        "suffix": [
            "cached_requests requests 0 answers of earlier requests that are kept; 0",
            "fallback – – method that drafts",
        ],
        "recycling": ["budget B 81 rows at most, root included", "retrieve – – method that looks text up and"],
        "sam": ["corpus – – file of texts to look up too", "min_match – 5 with fallback: least tokens"],
        "logitspec": ["max_ngram – 3 most tokens to match"],
    }.items():
        told = " ".join(cli.ok("list", name).out.split())
        assert all(line in told for line in lines), told
    assert json.loads(cli("list", "humaneval", "--json").out)[0]["option"] == "style"
    assert cli("list", "jff").error == "error: unknown listing 'jff'; did you mean jf?"


def test_without_arguments_comes_the_help_and_the_exit_code_of_bad_usage(cli: Any) -> None:
    said = cli()
    assert (said.code, said.out) == (2, cli("--help").out)


def test_lists_fit_80_columns(cli: Any) -> None:
    for kind in ("methods", "engines", "tasks", "presets", "models", "gpus"):
        said = cli.ok("list", kind)
        assert max(map(len, said.out.splitlines())) <= 80
        assert "…" not in said.out
    boards = {board["gpu"]: board["TDP W"] for board in json.loads(cli("list", "gpus", "--json").out)}
    assert (boards["h200"], boards["l4"]) == (700, 72)


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
