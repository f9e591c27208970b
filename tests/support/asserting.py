"""Small things that tests of every room assert with: known values, published data files, commands in a child."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from specbench.cli.app import main
from specbench.common.errors import SpecbenchError

# ------------------------------
# a value that the test knows to be there, for a type that says it may not be; and the line of a refusal.
from specbench.common.prompt import Prompt
from specbench.evals.data import DATA_DIR

T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


def refusal(error: type[SpecbenchError], call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """The message of that error, after checking that it is one line."""
    with pytest.raises(error) as caught:
        call(*arguments, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------
# Where the data files lie that no package brings.


FOLDER = os.environ.get(DATA_DIR)  # at import: tests take the variable away


def data_folder(*names: str) -> Path:
    """The folder of data files; the test is skipped where it lacks one of ``names``."""
    if not FOLDER or not all(Path(FOLDER, name).is_file() for name in names):
        pytest.skip(f"{DATA_DIR} names no folder with {', '.join(names)}")
    return Path(FOLDER)


# ------------------------------
# a command in a child of this process, which has torch already; importing it anew takes 5 s.


@dataclass
class Forked:
    """A command that runs in a child, with its output in files of a folder; ``code`` is negative for a signal."""

    folder: Path
    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = 120) -> Forked:
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                self.kill()
                raise TimeoutError(f"still running after {seconds:g} s: {self.err}")
            time.sleep(0.005)
        return self

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()


def start(folder: Path, *argv: object, **where: Any) -> Forked:
    """``specbench argv`` in a child; see :func:`call`."""
    return call(folder, lambda: main([str(arg) for arg in argv]), **where)


def call(
    folder: Path,
    function: Callable[[], int],
    *,
    answers: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] = {},
) -> Forked:
    """A function in a child, whose exit status is what it returns; ``answers`` are typed at its terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stdin").write_text(answers)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        return Forked(folder, pid)
    code = 70  # the child, from here on; nothing may come back from it into pytest
    try:
        torch.set_num_threads(1)  # the others of a pool are not forked, and would be waited for
        for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            file = (folder / name).open(mode)
            os.dup2(file.fileno(), number)
            setattr(sys, name, file)
        os.environ.update(env)
        if cwd is not None:
            os.chdir(cwd)
        code = function()
    except BaseException:
        traceback.print_exc()  # or nothing would say why it ended
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def killed(folder: Path, *argv: object, when: Callable[[], bool], delay: float = 0) -> None:
    """Starts ``specbench argv`` and kills it, without a chance to tidy up, ``delay`` seconds after something is so."""
    process = start(folder, *argv)
    until = time.monotonic() + 120
    while not when():
        assert process.poll() is None, process.err
        assert time.monotonic() < until
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    assert process.code == -signal.SIGKILL, "it ended before it was killed"


def asked(prompt: Prompt) -> list[Any]:
    """All that a prompt says, as JSON writes it; fields that most prompts do not have are left out where empty."""
    rare = ("messages", "tools", "otherwise", "recorded", "grown_from", "reference")
    return [value for field in fields(prompt) if (value := getattr(prompt, field.name)) or field.name not in rare]
