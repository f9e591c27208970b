"""Compile our C++ sources, once, on the machine that runs them.

Builds lie under ``$XDG_CACHE_HOME/specbench/native``, named after source, compiler, options and the CPU's instructions,
so they are never out of date. A build gets its name when it is finished. Files that another user could have written
are not loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from specbench.common.cache import cache_folder
from specbench.common.errors import EnvironmentRefused, one_line

_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_LIMIT = 120  # time limit of a build in seconds; it takes about ten
_MODE = 0o700  # permissions of kept files, whatever the umask


class Native:
    """A library built from one C++ source and the headers next to it.

    Args:
        options: compiler options, in addition to those of every build.
    """

    def __init__(self, source: Path, options: tuple[str, ...] = ()) -> None:
        self._source = source
        self._options = (*_OPTIONS, *options)

    @property
    def built(self) -> bool:
        """Whether it can be loaded without waiting for a compiler."""
        compiler = _compiler()
        return compiler is not None and self._built(compiler) is not None

    def load(self, say: Callable[[str], None] = lambda line: None) -> ctypes.CDLL:
        """Load the library, building it first if necessary."""
        compiler = _compiler()
        if compiler is None:
            asked = os.environ.get("CXX")
            raise EnvironmentRefused(f"no C++ compiler was found{f': CXX is {one_line(asked)}' if asked else ''}")
        place = self._built(compiler)
        if place is None:
            say(f"building {self._source.stem} for this CPU with {Path(compiler).name}, once; some ten seconds …")
            place = self._build(compiler)
        try:
            return ctypes.CDLL(str(place))
        except OSError as error:
            raise EnvironmentRefused(
                f"the library built by {compiler} does not load: {one_line(str(error))}"
            ) from error

    def _built(self, compiler: str) -> Path | None:
        """Path of a finished build; None if there is none."""
        name = self._name(compiler)
        for folder in (cache_folder("native"), *_kept):
            if folder is not None and _ours(folder) and _ours(folder / name) and _whole(folder / name):
                return folder / name
        return None

    def _name(self, compiler: str) -> str:
        """Name of the build; differs for everything that could change the library."""
        digest = hashlib.sha256()
        for part in (*self._options, _version(compiler), _instructions()):
            digest.update(part.encode() + b"\0")
        for file in [*sorted(self._source.parent.glob("*.h")), self._source]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return f"{self._source.stem}-{digest.hexdigest()[:24]}.so"

    def _build(self, compiler: str) -> Path:
        """Build, and return the path: in a folder of this process if the cache is not writable."""
        try:
            keep = _folder()
            with tempfile.TemporaryDirectory(prefix=".building-", dir=keep) as made:
                place = keep / self._name(compiler)
                draft = Path(made, place.name)
                self._compile(compiler, draft)
                draft.chmod(_MODE)
                # The digest first: a library without one, or with a different one, is built again.
                _seal(place).write_text(_digest(draft))
                os.replace(draft, place)
        except OSError as error:
            raise EnvironmentRefused(f"the library cannot be kept: {one_line(str(error))}") from error
        return place

    def _compile(self, compiler: str, to: Path) -> None:
        part = to.with_suffix(".o")
        # In two steps: a linker with the OpenMP option would add a second OpenMP library next to torch's.
        steps = (
            [compiler, *self._options, "-c", str(self._source), "-o", str(part)],
            [compiler, "-shared", str(part), "-o", str(to)],
        )
        for step in steps:
            try:
                code, stderr = _run(step)
            except subprocess.TimeoutExpired:
                raise EnvironmentRefused(f"{compiler} did not end within {_LIMIT} s") from None
            except OSError as error:
                raise EnvironmentRefused(f"{compiler} does not run: {one_line(str(error))}") from error
            if code:
                lines = [line for line in stderr.splitlines() if "error" in line.lower()] or [stderr]
                raise EnvironmentRefused(f"{compiler} fails: {one_line(lines[0], 160) or code}")


def _run(step: list[str]) -> tuple[int, str]:
    """Run a step of a build; return its exit status and its stderr.

    A compiler consists of several processes, so it gets its own process group, and all end if the step is abandoned.
    """
    english = {**os.environ, "LC_ALL": "C"}  # the word "error" distinguishes errors from warnings
    with subprocess.Popen(
        step,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=english,
        start_new_session=True,
    ) as process:
        try:
            _, stderr = process.communicate(timeout=_LIMIT)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, stderr


def _compiler() -> str | None:
    """Path of the machine's C++ compiler; $CXX overrides it."""
    asked = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [asked] if asked else ["c++", "g++", "clang++"])), None)


@cache
def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return compiler
    return f"{compiler} {done.stdout}"


@cache
def _instructions() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kinds = ("flags", "Features", "model", "model name", "CPU part", "cpu family")
    chosen = {line for line in lines if line.split(":")[0].strip() in kinds}
    return "\n".join([platform.machine(), platform.processor(), *sorted(chosen)])


_kept: list[Path] = []
_own: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _folder() -> Path:
    """Folder for builds: the cache, or a folder of this process if the cache is not writable."""
    keep = cache_folder("native")
    if keep is not None:
        with contextlib.suppress(OSError):
            keep.mkdir(parents=True, exist_ok=True)
            if keep.stat().st_uid == os.geteuid():
                keep.chmod(_MODE)
            if _ours(keep):
                tempfile.TemporaryFile(dir=keep).close()
                return keep
    if not _kept:
        _own.append(tempfile.TemporaryDirectory(prefix="specbench-native-"))
        _kept.append(Path(_own[0].name))
    return _kept[0]


def _seal(place: Path) -> Path:
    return place.with_suffix(".sha256")


def _ours(place: Path) -> bool:
    """Whether only this user can have written a file: loaded code has all of this user's rights."""
    try:
        found = place.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _whole(place: Path) -> bool:
    """Whether a finished build exists there, unchanged."""
    try:
        return _seal(place).read_text() == _digest(place)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
