"""Fuzz command lines: every command with hostile options, in this process, with all actions disabled.

A case is a list of arguments in JSON. Loading a model, measuring, starting a program and opening a connection are
errors. Cases run in a folder with a small run and the files that options name.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from support import runs

from fuzz.cases import Kind, Kinds
from fuzz.files import MEMORY
from specbench.cli.app import app, main
from specbench.common.errors import SpecbenchError

#: The exit codes of the README.
CODES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 130, 143})

_HALVES = frozenset(map(chr, range(0xD800, 0xE000)))

#: Commands that read what is there and measure nothing.
READERS = ("show", "compare", "report", "list", "claims", "score", "run", "sweep", "train", "quality")

_LONG_NUMBER = "9" * 100_000
_NUMBERS = (
    "0", "1", "-1", "-0", "2", "8", "1e3", "1e999", "-1e999", "nan", "inf", "-inf", "1_000", "٣", "²", "½", "０",
    "0x10", "1.5",
    " 1", "1 ", "+1", "1e-400", "", "true", "None", str(2**31), str(2**63), str(-(2**63)), str(10**30),
    "1" * 4301, _LONG_NUMBER,
)  # fmt: skip
_PATHS = (
    "run", "run:ar", "run:jf", "run:x", "sweep", "latest", "latest:jf", "nowhere", ".", "..", "", " ", "loop",
    "loop/x", "pipe",
    "file", "file/x", "mine.jsonl", "grid.yaml", "grid.json", "grid.toml", "bad.yaml", "run/run.json", "\0", "a\0b",
    "a\nb",
    "\x1b]0;t\x07", "\u202e", "[/x]", "é", "\udc80", "n" * 255, "n" * 256, "n" * 5000, "d/" * 2000 + "x", "-", "--",
    "~",
    "~daemon", "$HOME", "*", "/dev/null", "/dev/null/x", "/dev/full", "/proc/self/mem", "/proc/nowhere/x", "hf:x",
    "config:tiny",
    "config:mine.json", "config:", "tiny", "smollm2-135m", "a/b", "a/b/c", "../../..", "C:\\x", "file:///x", "x.gguf",
)  # fmt: skip
_TEXTS = (
    "ar", "jf", "jacobi", "pld", "lookahead", "ar,jf", "jf,jf", "j", "", ",", "a,,b", "jf=x", "hf:ar", "vllm:ar",
    "llama.cpp:ar",
    "openai:ar", "openai", "humaneval", "prompts", "mt-bench", "gsm8k,prompts", "auto", "cpu", "cuda", "cuda:9",
    "meta", "cuda:-1",
    "float32", "bfloat16", "int8", "b200", "a100-80gb", "n=4", "jf.n=4", "jf.n=", "=", "n==", ".n=1", "jf.=1",
    "x.y.z=1", "n=nan",
    "n=" + _LONG_NUMBER, "n=1,2,3", "n=1:9:2", "n=1:9:0", "n=9:1:1", "n=1:1e9:1e-9", "n=1:nan:1", "n=inf:1:1",
    "n=-inf:inf:1",
    "n=1:99999999999999999999:1", "n=" + "1," * 3000, "concurrency=1,2", "concurrency=0", "preset=paper",
    "jf.preset=nope",
    "prompts.style=chat", "humaneval.x=1", "jf=0.8", "jf:0.8", "0.8", "1.1", "-0.1", "jf=nan", "jf=1e999", "0.5,0.5",
    "csv", "json",
    "html", "md", "methods", "models", "gpus", "http://localhost:1/v1", "http://[::1", "http://[::1]:99999",
    "http://x:y@z/v1",
    "ftp://x", "http://", "http:///v1", "http://\n", "http://é.invalid/v1", "http://x.invalid:" + "9" * 50,
    "https://x/v1?k=1#y",
    "http://" + "x" * 300, "HOME", "SECRET", "A B", "a=b", "\0", "a\nb", "\x1b[31m", "[/bold]", "{x}", "%s", "%",
    "\\", "'", '"',
    "\udcff", "\ud800", "🦜" * 100, "x" * 100_000, "gsm8k/0", "p/0", "jf|p/0|0", "0", "-1", "^", "(", "[", "*",
)  # fmt: skip
# So that some lines get further than their first option.
_USUAL = {
    "--model": ("config:tiny",), "--task": ("prompts", "prompts", "humaneval", "gsm8k"), "--data-file": ("mine.jsonl",),
    "--method": ("jf", "ar,jf", "pld"), "--out": ("out",), "--grid": ("n=2,4", "jf.n=2:4:1"),
    "--grid-file": ("grid.yaml",),
    "--limit": ("1",), "--judge": ("m",), "--base-url": ("http://127.0.0.1:9/v1",), "--export": ("out",),
}  # fmt: skip
_PLACES = {"run": "run", "runs": "run", "sides": "run", "folder": "run", "sources": "run", "kind": "methods"}


class _NoModel(SpecbenchError):
    """Where a model would be loaded."""


@cache
def _known() -> dict[str, list[tuple[str, str, bool]]]:
    """The parameters of each command: name, flag (empty for an argument), and whether it takes a value."""
    group: Any = typer.main.get_command(app)
    return {
        name: [
            (
                str(each.name),
                next((flag for flag in each.opts if flag.startswith("--")), ""),
                not getattr(each, "is_flag", False),
            )
            for each in command.params
        ]
        for name, command in group.commands.items()
    }


def _value(draw: random.Random, name: str, flag: str) -> str:
    if draw.random() < 0.5 and (usual := _USUAL.get(flag) or (_PLACES.get(name) and (_PLACES[name],))):
        return draw.choice(usual)
    value = draw.choice(draw.choice((_NUMBERS, _PATHS, _TEXTS)))
    if draw.random() < 0.1:
        at = draw.randint(0, len(value))
        value = value[:at] + draw.choice(("\0", "\n", "=", ",", ":", "é", "\x1b", "/", ".", " ", "9", "-")) + value[at:]
    return value


def line(draw: random.Random, commands: tuple[str, ...] = ()) -> list[str]:
    """A command line."""
    command = draw.choice(commands or tuple(_known()))
    args = [command]
    known = _known()[command]
    for name, flag, _ in known:
        if not flag and draw.random() < 0.9:
            args += [_value(draw, name, "") for _ in range(draw.choice((1, 1, 1, 2)))]
    wanted = [each for each in known if each[1]]
    some = draw.sample(wanted, min(len(wanted), draw.randint(0, 5)))
    some += [each for each in wanted if each[1] in ("--model", "--out") and draw.random() < 0.9 and each not in some]
    for name, flag, takes in some:
        value = _value(draw, name, flag)
        args += [flag] if not takes else [f"{flag}={value}"] if draw.random() < 0.3 else [flag, value]
    return args


def _varied(draw: random.Random, content: bytes) -> bytes:
    """Another line, or this one with an argument replaced, removed, repeated or moved."""
    if draw.random() < 0.7:
        return _written(line(draw))
    try:
        args = _taken(content)
    except ValueError:
        return _written(line(draw))
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(len(args)) if args else 0
        match draw.randrange(4):
            case 0 if args:
                del args[at]
            case 1 if args:
                args.insert(draw.randint(0, len(args)), args[at])
            case 2 if args:
                args[at] = draw.choice(draw.choice((_NUMBERS, _PATHS, _TEXTS)))
            case _:
                args.insert(at, draw.choice(("--", "-h", "--help-all", "--version", "-", "--json", "--dry-run", "--x")))
    return _written(args)


def _written(args: list[str]) -> bytes:
    return json.dumps(args).encode()


def _taken(content: bytes) -> list[str]:
    args = json.loads(content)
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise ValueError("not a list of texts")
    return [inside(each) for each in args]


def inside(arg: str) -> str:
    """Change an argument so that its path stays in the folder, because the user may have write access everywhere."""
    flag, sign, value = arg.partition("=") if arg.startswith("--") else ("", "", arg)
    beyond = (value.lstrip().startswith("/") and value not in _PATHS) or ("../" in value and value not in _PATHS)
    return f"{flag}{sign}./{value.replace('..', '.').lstrip(' /')}" if beyond or value.startswith("~/") else arg


# -------------------------------------------------------------------------------------------------------------- place


def furnish(here: Path) -> None:
    """Makes what command lines name: a finished run, a sweep, and some files that are none."""
    for place, files in (("run", runs.a_run()), ("sweep", runs.a_sweep())):
        for name, content in files.items():
            (here / place / name).parent.mkdir(parents=True, exist_ok=True)
            (here / place / name).write_bytes(content)
    (here / "run" / "DONE").touch()
    (here / "sweep" / "c1" / "DONE").touch()
    (here / "loop").symlink_to("loop")
    os.mkfifo(here / "pipe")
    (here / "file").write_text("x")
    (here / "mine.jsonl").write_text('{"prompt": "Hi"}\n{"prompt": "Ho"}\n')
    (here / "grid.yaml").write_text("grid: {n: [2, 4]}\n")
    (here / "grid.json").write_text('{"grid": {"n": "2:4:1"}}')
    (here / "grid.toml").write_text("[grid]\nn = [2]\n")
    (here / "bad.yaml").write_text("grid: *x\n")
    (here / "mine.json").write_text('{"model_type": "llama"}')


@contextmanager
def _idle() -> Iterator[None]:
    """Whatever works, asks or starts something is an error."""

    def no_model(*args: Any, **options: Any) -> Any:
        raise _NoModel("no model is loaded here")

    from specbench.models import loader
    from specbench.quality import tasks
    from specbench.runner import loading

    with ExitStack() as stack:
        for where, name in (
            (loader, "load"), (loading, "load"), (loading, "load_model"), (loading, "load_models"),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(where, name, no_model))
        for target, error in (
            ("specbench.models.load", no_model), ("specbench.profiling.measure_profile", no_model),
            ("specbench.profiling.doctor_checks", no_model), ("specbench.profiling.quiet_checks", no_model),
        ):  # fmt: skip
            stack.enter_context(mock.patch(target, error, create=True))
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", side_effect=FileNotFoundError(2, "none")))
        stack.enter_context(mock.patch.object(socket.socket, "connect", side_effect=ConnectionRefusedError(111, "no")))
        stack.enter_context(mock.patch.object(socket, "getaddrinfo", side_effect=socket.gaierror(-2, "unknown")))
        stack.enter_context(mock.patch.object(time, "sleep"))
        stack.enter_context(mock.patch.object(tasks, "_manager", no_model))  # lm-eval's own list takes seconds
        yield


@contextmanager
def _standing_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def checked(code: int, out: str, err: str) -> None:
    """What a command line may answer.

    Raises:
        AssertionError: it says something else.
        UsageError: its error line, where there is one.
    """
    assert code in CODES, f"exit code {code}"
    for stream in (out, err):
        # Half of a pair is written as an escape by the streams of a process.
        found = sorted({each for each in stream if not each.isprintable()} - {"\n"} - _HALVES)
        assert not found, f"not printable: {found}"
    assert "Traceback" not in err, err[-600:]
    lines = [each for each in err.splitlines() if each.startswith("error: ")]
    assert len(lines) == (code != 0) or (code == 2 and not err) or code in (1, 4, 5), f"{code} and {lines} of {err!r}"
    if lines:
        raise SpecbenchError(f"{code} {lines[0]}")


def answered(args: list[str], here: Path) -> tuple[int, str, str]:
    """Exit code and streams of a command line in a folder, in this process."""
    out, err = io.StringIO(), io.StringIO()
    # Each gets through main() what it would get from a shell; a signal's handler is not left to the next one.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with _standing_in(here), _idle(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(args)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code, out.getvalue(), err.getvalue()


def _read(content: bytes) -> None:
    try:
        args = _taken(content)
    except ValueError:  # bytes that no shell can pass as a command line
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        here = Path(folder, "x", "here")
        here.mkdir(parents=True)
        furnish(here)
        checked(*answered(args, here))


def command_lines() -> Kinds:
    """All commands."""
    good = ["show", "run", "--json"]
    return {"command line": Kind(lambda: _written(good), _read, vary=_varied)}
