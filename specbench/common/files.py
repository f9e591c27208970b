"""Write files and folders so that a kill, a full disk or a power cut leaves the old or the new content, never half.

New folders are named ``<utc>-<stem>-<digest8>``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from specbench.common.errors import EnvironmentRefused

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no space, no quota, file size limit: the same for the user


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` so that ``path`` has either the old or the complete new content, even after a power cut."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: a rename across file systems is a copy
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # a name that is too long cannot even be looked up
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_failed(error, path) from error
        raise


def write_json_atomic(path: Path, obj: Any) -> None:
    """Write ``obj`` as JSON so that ``path`` has either the old or the complete new content, even after a power cut."""
    write_atomic(path, json.dumps(obj, indent=2, allow_nan=False).encode() + b"\n")


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8 as :func:`write_json_atomic` writes JSON."""
    write_atomic(path, text.encode())


def make_folder(folder: Path) -> None:
    """Create a folder, and its parents, if they are missing.

    Raises:
        OSError: it cannot be created (pathlib's recursion cannot handle a thousand levels).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder)) from None


def check_writable(out: Path) -> None:
    """Create ``out`` if it is missing, so that an unwritable folder is noticed before minutes are spent."""
    try:
        make_folder(out)
        if not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise write_failed(error, out) from error


def check_can_make(out: Path) -> None:
    """Like :func:`check_writable` without creating folders, so that a command that is refused later leaves none."""
    there = next(place for place in (out, *out.absolute().parents) if _is_there(place))
    code = errno.ENOTDIR if not there.is_dir() else 0 if os.access(there, os.W_OK | os.X_OK) else errno.EACCES
    if code:
        raise write_failed(OSError(code, os.strerror(code)), out)


def _is_there(place: Path) -> bool:
    """"""
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise write_failed(error, place) from error
    return True


def sync_folder(folder: Path) -> None:
    """Make names created in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_failed(error: OSError, path: Path, kept: int | None = None) -> EnvironmentRefused:
    """The error for a failed write: what failed, what is safe, what to do."""
    full = error.errno in _FULL
    what = f"disk full while writing {path}" if full else f"cannot write {path} ({error.strerror})"
    safe = "" if kept is None else f"{kept} requests are kept, "
    todo = "free space and repeat the same command" if full else "fix that and repeat the same command"
    return EnvironmentRefused(f"{what}; {safe}{todo}")


def safe_name(stem: str) -> str:
    """A text for use in a file name: other characters become "-", and long texts are cut."""
    return re.sub(r"[^A-Za-z0-9._+=@-]+", "-", stem)[:150]


def folder_name(stem: str, digest: str) -> str:
    return f"{_utc():%Y%m%dT%H%M%SZ}-{safe_name(stem)}-{digest[:8]}"


def _utc() -> datetime:
    return datetime.now(timezone.utc)


def write_folder(out: Path, stem: str, digest: str, write: Callable[[Path], None]) -> Path:
    """A new folder ``<utc>-<stem>-<digest8>`` that gets its name only when it is complete."""
    name = folder_name(stem, digest)
    draft = out / f".{name}.{os.getpid()}.tmp"
    try:
        draft.mkdir(parents=True)
        write(draft)
        path = rename_to_free_name(draft, out / name)
        sync_folder(out)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise write_failed(error, out / name) from error
        raise
    return path


def rename_to_free_name(draft: Path, wanted: Path) -> Path:
    """Give the draft folder its name, with "-2", "-3" … if the same run was already started in the same second."""
    path, number = wanted, 1
    while True:
        try:
            return draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")


@contextlib.contextmanager
def sole_use(path: Path, todo: str = "wait for it, or choose another --out") -> Iterator[None]:
    """Keep other processes out of a folder, or away from a file, inside the ``with`` block.

    Args:
        todo: what to do if another process uses it, as an imperative.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EnvironmentRefused(f"{path} is in use by another specbench process; {todo}") from None
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process is between reading and writing a file of ``folder``; for short moments only."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; run folders refuse it already
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
