"""The five long-running commands, small enough for a minute of chaos, and the results of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

#: Of a tiny random model, whose answers never change: what a run comes to after chaos is what it came to without.
MODEL = ("--model", "config:tiny")
_HEAD = ("--set", "layers=1", "--set", "block_size=4", "--set", "steps=6", "--set", "batch=2", "--set", "bf16=false")

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: its word.
        argv: arguments of ``specbench``; ``{out}`` is the output folder, ``{url}`` the address of the judge.
        results: what it came to, by request; compared with that of another execution.
        before: makes what it needs in its folder.
    """

    name: str
    argv: tuple[str, ...]
    results: Callable[[Path], Content]
    before: Command | None = None

    def line(self, out: Path, url: str = "", more: tuple[str, ...] = ()) -> list[str]:
        """The whole command line."""
        return [
            sys.executable,
            "-m",
            "specbench",
            *(part.format(out=out, url=url, made=_made(out)) for part in self.argv),
            *more,
        ]


def _made(out: Path) -> str:
    """The newest run's folder below another one."""
    return str(max(out.glob("runs/*"), default=out / "runs"))


def _lines(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(out.rglob(name)) for line in file.read_text().splitlines()]


def _answers(out: Path) -> Content:
    return {each["request_id"]: each["output_ids"] for each in _lines(out, "requests.jsonl")}


def _verdicts(out: Path) -> Content:
    return {each["request"]: each["passed"] for each in _lines(out, "verdicts.jsonl")}


def _ratings(out: Path) -> Content:
    return {each["request"]: each["rating"] for each in _lines(out, "judgments.jsonl")}


def _trained(out: Path) -> Content:
    (card,) = out.rglob("card.json")
    found = json.loads(card.read_text())
    return {name: found[name] for name in ("method", "steps", "texts", "held_out_texts", "options")}


def commands(prompts: Path) -> dict[str, Command]:
    """The five commands by name; ``prompts`` is a JSONL file."""
    mine = ("--task", "prompts", "--data-file", str(prompts))
    run = Command(
        "run",
        ("run", *MODEL, "--method", "pld,jacobi", *mine, "--max-new-tokens", "64", "--out", "{out}/runs"),
        _answers,
    )
    answered = Command(
        "answers",
        ("run", *MODEL, "--method", "pld", "--task", "humaneval", "--limit", "24", "--max-new-tokens", "16",
         "--no-score", "--out", "{out}/runs"),
        _answers,
    )  # fmt: skip
    talked = Command(
        "talks",
        ("run", *MODEL, "--method", "pld", "--task", "mt-bench", "--limit", "8", "--max-new-tokens", "8", "--out",
         "{out}/runs"),
        _answers,
    )  # fmt: skip
    return {
        "run": run,
        "sweep": Command(
            "sweep",
            ("sweep", *MODEL, "--method", "jacobi", "--grid", "jacobi.n=2,4", *mine, "--max-new-tokens", "48",
             "--held-out", "0", "--yes", "--out", "{out}/runs"),
            _answers,
        ),
        "score": Command("score", ("score", "{made}", "--workers", "1"), _verdicts, answered),
        "judge": Command("judge", ("score", "{made}", "--judge", "tiny", "--base-url", "{url}"), _ratings, talked),
        "train": Command(
            "train",
            ("train", "jetspec", *MODEL, "--prompts", str(prompts), "--out", "{out}/trained", *_HEAD, "--held-out", "2",
             "--max-new-tokens", "12"),
            _trained,
        ),
    }  # fmt: skip


@dataclass
class Ended:
    """How an execution ended.

    Attributes:
        code: as a shell has it, 128 and more for a signal.
        err, out: what it wrote.
        seconds: it took.
    """

    code: int
    err: str
    out: str
    seconds: float


@dataclass
class Stage:
    """Where commands are executed.

    Attributes:
        folder: of everything.
        url: of the judge.
        env: of all processes.
    """

    folder: Path
    url: str
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """That of a command."""
        return {
            **os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120",
            "PYTHONPATH": str(ROOT), **self.env, **(more or {}),
        }  # fmt: skip

    def start(
        self, command: Command, out: Path, more: tuple[str, ...] = (), env: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        """Begins a command in a process group of its own, as a shell does."""
        return subprocess.Popen(
            command.line(out, self.url, more), cwd=self.folder, env=self.environment(env), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **how,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str], began: float, limit_s: float = 180.0) -> Ended:
        """Waits for it.

        Raises:
            AssertionError: it hangs.
        """
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"it hangs after {limit_s:g} s; its output: {err[-600:]}") from None
        code = process.returncode
        return Ended(128 - code if code < 0 else code, err, out, time.monotonic() - began)

    def run(self, command: Command, out: Path, *more: str, env: Mapping[str, str] | None = None, **how: Any) -> Ended:
        """Executes a command to its end."""
        began = time.monotonic()
        return self.end(self.start(command, out, more, env, **how), began)

    def prepared(self, command: Command, name: str) -> Path:
        """A new folder with what a command needs."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if command.before is not None:
            kept = self.folder / f"before-{command.name}"
            if not kept.exists():
                ended = self.run(command.before, kept)
                assert ended.code == 0, f"{command.before.name}: {ended.code} {ended.err[-600:]}"
            shutil.copytree(kept, out, dirs_exist_ok=True)
        return out
