"""Every mistake gives one line that says what to do, the exit code of its kind, and leaves nothing behind."""

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
    ("argv", "expected"),
    [
        ("--method jacoby", "unknown method 'jacoby'; did you mean jacobi?"),
        ("--method ,", "--method names nothing; see specbench list methods"),
        ("--task humanevil", "unknown task 'humanevil'; did you mean humaneval?"),
        ("--task=", "--task names nothing; see specbench list tasks"),
        ("--method=", "--method names nothing; see specbench list methods"),
        ("--concurrency 1000000000", "--concurrency 1000000000: input should be less than or equal to 4096"),
        ("--repeats 1000000000000", "--repeats 1000000000000: input should be less than or equal to 1000"),
        ("--max-new-tokens 10000000000", "--max-new-tokens 10000000000: input should be less than or equal to 1048576"),
        ("--step-timeout -1", "--step-timeout -1.0: input should be greater than or equal to 0"),
        ("--step-timeout nan", "--step-timeout nan: input should be a finite number"),
        ("--device meta", "unknown device 'meta'; write cpu, cuda, cuda:N or auto"),
        ("--device mps:1", "unknown device 'mps:1'; write cpu, cuda, cuda:N or auto"),
        ("--task ,", "--task names nothing; see specbench list tasks"),
        ("--model smolm2", "unknown model 'smolm2'; did you mean smollm2-135m or smollm2-135m-jf or smollm2-135m-msn?"),
        ("--model config:tyny", "unknown config 'tyny'; did you mean tiny?"),
        ("--model nowhere/model.gguf", "model file nowhere/model.gguf does not exist"),
        ("--model ./nowhere", "model folder ./nowhere does not exist"),
        ("--set jacobi.block_sise=4", "unknown option of jacobi 'block_sise'; did you mean block_size?"),
        ("--set lookahead.n=4", "(it must be in --method) 'lookahead'; known: ar, jacobi"),
        ("--set jacobi.n", "write METHOD.OPTION=VALUE"),
        ("--set jacobi.n=four", "option 'block_size' of jacobi: Input should be a valid integer"),
        ("--set jacobi.n=0", "option 'block_size' of jacobi: Input should be greater than or equal to 1"),
        ("--set jacobi.n=4 --set jacobi.n=5", "option 'n' of jacobi is set twice"),
        ("--set jacobi.n=4 --set jacobi.block_size=4", "option 'block_size' of jacobi is set twice"),
        ("--task-set humaneval.stile=chat", "unknown option of humaneval 'stile'; did you mean style?"),
        ("--task-set humaneval.style=auto --task-set humaneval.style=chat", "option 'style' of humaneval is set twice"),
        ("--task-set humaneval.style=chat", "style=chat needs a model with a chat template"),
        ("--max-new-tokens 0", "--max-new-tokens "),
        ("--max-new-tokens many", "'--max-new-tokens'"),
        ("--max-new-tokens 9000", "has 217 tokens and --max-new-tokens is 9000, but config:tiny takes 8192 in all"),
        ("--limit 0", "--limit "),
        ("--prompt-seed -1", "--prompt-seed "),
        ("--limit 2 --first --prompt-seed 0", "--first takes prompts in the order of the data, by no seed; leave one"),
        ("--repeats 0", "--repeats "),
        ("--concurrency 0", "--concurrency "),
        ("--temperature -1", "--temperature "),
        ("--temperature nan", "--temperature "),
        ("--temperature inf", "--temperature inf: input should be a finite number"),
        ("--top-p 0", "--top-p 0.0: input should be greater than 0"),
        ("--top-p nan", "input should be a finite number"),
        ("--seed 9223372036854775808", "--seed 9223372036854775808: input should be less than 9223372036854775808"),
        ("--dtype float31", "unknown dtype 'float31'; did you mean float32 or float16"),
        ("--attention flahs", "unknown --attention value 'flahs'; did you mean flash"),
        ("--attention sdpa", "unknown --attention value 'sdpa'; known: auto, flash, flash3, flash4, reference, triton"),
        ("--graphs maybe", "unknown --graphs value 'maybe'; known: auto, off, on"),
        ("--simulate-acceptance four", "write MEAN[:SPREAD] or LABEL=MEAN[:SPREAD], as in --simulate-acceptance 4:1.5"),
        ("--simulate-acceptance 4: --json", "write MEAN[:SPREAD]"),
        ("--simulate-acceptance 4,", "write MEAN[:SPREAD]"),
        ("--simulate-acceptance 0.5", "a forward emits 1 token at least, so MEAN is 1 or more"),
        ("--simulate-acceptance nan", "so MEAN is 1 or more"),
        ("--simulate-acceptance inf", "so MEAN is 1 or more"),
        ("--simulate-acceptance 3.4:0", "with a mean of 3.4 SPREAD is 0.49 or more; or leave it out"),
        ("--simulate-acceptance 3:-1", "with a mean of 3 SPREAD is 0.00 or more"),
        ("--simulate-acceptance 3:nan", "with a mean of 3 SPREAD is 0.00 or more"),
        ("--simulate-acceptance 3:inf", "with a mean of 3 SPREAD is 0.00 or more"),
        ("--simulate-acceptance 3:6", "jacobi emits 1 to 16 tokens a forward: with a mean of 3 SPREAD is 5.09 or less"),
        ("--simulate-acceptance 1:1", "with a mean of 1 SPREAD is 0 or less"),
        ("--simulate-acceptance 17", "jacobi drafts at most 16 rows, so it cannot emit 17 tokens a forward; lower"),
        ("--simulate-acceptance 3 --simulate-acceptance 4", "every method is set twice; keep one"),
        ("--simulate-acceptance jacobi=3,jacobi=4", "jacobi is set twice; keep one"),
        ("--simulate-acceptance jacoby=3", "(it must be in --method) 'jacoby'; did you mean jacobi?"),
        ("--simulate-acceptance ar=3", "ar emits one token a forward; leave it out"),
        ("--simulate-acceptance 3 --method ar", "goes with a method that drafts; name one in --method"),
        ("--revision main", "--revision goes with a hub id"),
        ("--gpu b2000", "unknown GPU 'b2000'; did you mean b200"),
        ("--data-dir nowhere", "dir 'nowhere' does not exist. See specbench run --help."),
        ("--max-tokens 4", "No such option: --max-tokens"),
        ("jacobi", "Got unexpected extra argument"),
    ],
)
def test_a_mistake_in_the_command(cli: Any, tmp_path: Path, argv: str, expected: str) -> None:
    assert expected in refused(cli, tmp_path / "out", USAGE, *argv.split())


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["list", "method"], "unknown listing 'method'; did you mean methods or math or models?"),
        (["list"], "Missing argument 'kind'"),
        (["show"], "Missing argument 'RUN'. See specbench show --help."),
        (["show", "nowhere"], "nowhere is not a run folder"),
        (["chek-lossless"], "No such command 'chek-lossless'. Did you mean 'check-lossless'?"),
        (["run", "--first"], "--first says which prompts --limit takes; give --limit N, or leave --first out for all"),
        (["sweep", "--grid", "n=2,4", "--first"], "--first says which prompts --limit takes"),
        (["train", "jetspec", "--prompts", "gsm8k-train", "--first"], "--first says which prompts --limit takes"),
        (["trajectories", "--prompts", "gsm8k-train", "--first"], "--first says which prompts --limit takes"),
        ([*CHECK, "--first", "--prompt-seed", "1"], "by no seed; leave one of --first, --prompt-seed out"),
        (["tune", "--method", "jacobi", "--first", "--prompt-seed", "1"], "by no seed; leave one of"),
        ([*CHECK, "--temperatures", "hot"], "'hot' is no list of numbers; write them as 0,0.7,1"),
        ([*CHECK, "--temperatures", "-1"], "--temperature -1.0: input should be greater than or equal to 0"),
        ([*CHECK, "--attention", "tritn"], "unknown --attention value 'tritn'; did you mean triton?"),
        ([*CHECK, "--simulate-acceptance", "4"], "No such option: --simulate-acceptance"),
        ([*CHECK, "--method", "jacoby"], "unknown method 'jacoby'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_other_commands(cli: Any, argv: list[object], expected: str) -> None:
    assert expected in cli.refused(USAGE, *argv)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--gpu b200", "--gpu b200 but this machine has "),
        ("--device cuda:99", "device 'cuda:99' is not available here"),
        ("--graphs on", "CUDA graphs need a CUDA device; use --graphs auto"),
        ("--graphs on --device cpu --model nobody/nothing", "CUDA graphs need a CUDA device; use --graphs auto"),
        ("--model nobody/nothing", "nobody/nothing cannot be had from the hub"),
    ],
)
def test_a_machine_that_cannot(cli: Any, tmp_path: Path, monkeypatch: Any, argv: str, expected: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # or a B200 would make the first one right
    assert expected in refused(cli, tmp_path / "out", ENVIRONMENT, *argv.split())


@pytest.fixture(scope="module")
def finished(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(cli.made(tmp_path_factory.mktemp("runs"), *TINY, "--no-score"))


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", '{"schema_version": 999}', "written by a newer specbench"),
        ("requests.jsonl", "{}\n", "is damaged (field 'request_id': Field required); run it again"),
        ("requests.jsonl", "}\n", "requests.jsonl line 1 is damaged"),
        ("verdicts.jsonl", "}\n", "verdicts.jsonl line 1 is damaged"),
        ("summary.json", "", "summary.json is damaged"),
    ],
)
def test_a_damaged_run(cli: Any, finished: Path, tmp_path: Path, file: str, content: str, expected: str) -> None:
    folder = shutil.copytree(finished, tmp_path / finished.name)
    (folder / file).write_text(content)
    assert expected in cli.refused(USAGE, "show", folder)


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
    # A regular file whose first byte nobody can read, root neither.
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
    if file == "verdicts.jsonl":  # a run that was broken off before them: nothing else is left to write
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


def test_a_path_that_the_system_refuses_is_one_line_wherever_it_comes_up(cli: Any, tmp_path: Path) -> None:
    name = "1" * 300
    said = cli.refused(ENVIRONMENT, "new-method", "mine", "--into", tmp_path / name)
    assert said.endswith(f"{name}/specbench-mine cannot be used (File name too long); name another path, or mend it")
    error = cli.refused(USAGE, "new-method", "a", "\u202egnihton\x1b[2J")
    assert error == "error: Got unexpected extra argument(s) ( gnihton\\x1b[2J). See specbench new-method --help."


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x']"), "let TMPDIR name another"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; free what this machine lacks"),
    ],
)
def test_what_a_machine_lacks_is_one_line_wherever_it_comes_up(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def lacking() -> None:
        raise error

    monkeypatch.setattr(output, "stdout", lacking)
    assert said in cli.refused(ENVIRONMENT, "list", "methods")


def test_what_only_we_can_mend_keeps_its_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise OSError("no number, no name")

    monkeypatch.setattr(output, "stdout", wrong)
    with pytest.raises(OSError, check=wording):
        cli("list", "methods")
