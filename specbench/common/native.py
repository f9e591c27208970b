"""Native code: a C++ source of ours, compiled on the machine that runs it and kept for the next time.

A wheel would have to hold a build for every kind of CPU. The builds lie under ``$XDG_CACHE_HOME/specbench/native``
(``~/.cache/specbench/native``), named by what they depend on: source, compiler, options and the CPU's instructions. So
they can be deleted at any time and are never out of date. A build appears under its name when it is finished, and not
before: one that was killed, or two at once, leave nothing that is broken. What a killed one has left beside it, a later
one clears away. None is loaded that another user could have put there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from specbench.common.cache import cache_folder
from specbench.common.errors import EnvironmentRefused, one_line

_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_LIMIT = 120  # seconds of a build; it takes about ten
_DRAFTS = ".building-"  # what folders of builds that are not finished begin with
_MODE = 0o700  # of what is kept, whatever the umask
_ABANDONED = 3600  # seconds after which such a folder is nobody's: far longer than a build may take


class Native:
    """A library of one C++ source, the headers next to it included.

    Args:
        source: the file.
        options: of the compiler, beside those of every build.
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
        """Loads the library, which is built first where it has not been.

        Args:
            say: takes a line before a build.

        Raises:
            EnvironmentRefused: there is no compiler, or it fails; in one line, without advice.
        """
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
            raise EnvironmentRefused(f"what {compiler} built does not load: {one_line(str(error))}") from error

    def _built(self, compiler: str) -> Path | None:
        """Where a finished build lies; None where there is none."""
        name = self._name(compiler)
        for folder in [_cache(), *([_own_folder()] if _kept else [])]:
            if folder is not None and _ours(folder) and _ours(folder / name) and _whole(folder / name):
                return folder / name
        return None

    def _name(self, compiler: str) -> str:
        """That of the build: another one for all that could make another library."""
        digest = hashlib.sha256()
        for part in (*self._options, _version(compiler), _instructions()):
            digest.update(part.encode() + b"\0")
        for file in [*sorted(self._source.parent.glob("*.h")), self._source]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return f"{self._source.stem}-{digest.hexdigest()[:24]}.so"

    def _build(self, compiler: str) -> Path:
        """Builds; returns where it lies, which is a folder of this process's own where the cache takes no files."""
        try:
            keep, folder = _draft_folder()
        except OSError as error:
            raise EnvironmentRefused(f"there is no place to build in: {one_line(str(error))}") from error
        place = keep / self._name(compiler)
        draft = folder / f"{place.name}.draft"
        try:
            with _at_work(folder):
                self._compile(compiler, draft)
                with draft.open("rb+") as written:
                    os.fsync(written.fileno())
                draft.chmod(_MODE)
                # The digest first: a library without one, or with another's, is built again.
                _seal(place).write_text(_digest(draft))
                os.replace(draft, place)
        except OSError as error:
            raise EnvironmentRefused(f"the library cannot be kept: {one_line(str(error))}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return place

    def _compile(self, compiler: str, to: Path) -> None:
        part = to.with_suffix(".o")
        # In two steps: a linker that is told of OpenMP would bring a second one beside torch's.
        steps = (
            [compiler, *self._options, "-c", str(self._source), "-o", str(part)],
            [compiler, "-shared", str(part), "-o", str(to)],
        )
        for step in steps:
            try:
                code, said = _run(step)
            except subprocess.TimeoutExpired:
                raise EnvironmentRefused(f"{compiler} did not end within {_LIMIT} s") from None
            except OSError as error:
                raise EnvironmentRefused(f"{compiler} does not run: {one_line(str(error))}") from error
            if code:
                lines = [line for line in said.splitlines() if "error" in line.lower()] or [said]
                raise EnvironmentRefused(f"{compiler} fails: {one_line(lines[0], 160) or code}")


def _run(step: list[str]) -> tuple[int, str]:
    """Runs a step of a build; returns its exit status and what it complained of.

    A compiler is several processes. They are a group of their own, so that all end with a step that is given up.
    """
    english = {**os.environ, "LC_ALL": "C"}  # errors are told from warnings by that word
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
            _, said = process.communicate(timeout=_LIMIT)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


def _compiler() -> str | None:
    """Path of the machine's C++ compiler; $CXX says which."""
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    return None


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


def _cache() -> Path | None:
    """The folder of all builds; None where there is no cache."""
    return cache_folder("native")


def _draft_folder() -> tuple[Path, Path]:
    """Where a build is to be kept, and a new folder on the same file system to make it in.

    Raises:
        OSError: there is no place for temporary files either.
    """
    keep = _cache()
    if keep is not None:
        with contextlib.suppress(OSError):
            keep.mkdir(parents=True, exist_ok=True)
            if keep.stat().st_uid == os.geteuid():
                keep.chmod(_MODE)
            if _ours(keep):
                folder = Path(tempfile.mkdtemp(prefix=_DRAFTS, dir=keep))
                _clear(keep)
                return keep, folder
    return _own_folder(), Path(tempfile.mkdtemp(prefix=_DRAFTS, dir=_own_folder()))


def _clear(keep: Path) -> None:
    """Removes what killed builds have left; by age alone, a clock that jumps ahead would end builds at work."""
    for folder in keep.glob(f"{_DRAFTS}*"):
        with contextlib.suppress(OSError):  # another process was first, or is at work in it
            if time.time() - folder.stat().st_mtime > _ABANDONED:
                with _at_work(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """Holds a draft's folder.

    Raises:
        BlockingIOError: another process does.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks: age has to do
        yield
    finally:
        os.close(fd)


@cache
def _own_folder() -> Path:
    """A folder of this process's own, for where nothing can be kept."""
    folder = tempfile.TemporaryDirectory(prefix="specbench-native-")
    _kept.append(folder)  # removed when the process ends
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _seal(place: Path) -> Path:
    return place.with_suffix(".sha256")


def _ours(place: Path) -> bool:
    """Whether nobody but this user can have put something there: what is loaded does all that this user may."""
    try:
        found = place.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _whole(place: Path) -> bool:
    """Whether a finished build lies there, as it was written."""
    try:
        return _seal(place).read_text() == _digest(place)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
