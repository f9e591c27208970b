"""New folders with names that say when, what and which: ``<utc>-<stem>-<digest8>``."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from specbench.files import refused, sync_folder


def safe_name(stem: str) -> str:
    """A text as part of a file name: what does not belong there becomes "-", and what is too long is cut."""
    return re.sub(r"[^A-Za-z0-9._+=@-]+", "-", stem)[:150]


def folder_name(stem: str, digest: str) -> str:
    return f"{_utc():%Y%m%dT%H%M%SZ}-{safe_name(stem)}-{digest[:8]}"


def _utc() -> datetime:
    return datetime.now(timezone.utc)


def write_folder(out: Path, stem: str, digest: str, write: Callable[[Path], None]) -> Path:
    """A new folder ``<utc>-<stem>-<digest8>`` that has its name only once everything is in it.

    Args:
        out: parent folder; made when missing.
        stem, digest: as for :meth:`RunFolder.create`.
        write: writes the files into the folder it is given.

    Raises:
        EnvironmentRefused: the disk is full or ``out`` cannot be written; nothing is left behind.
    """
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
            raise refused(error, out / name) from error
        raise
    return path


def rename_to_free_name(draft: Path, wanted: Path) -> Path:
    """Gives the draft its name, with "-2", "-3" … when the same run was already started in the same second."""
    path, number = wanted, 1
    while True:
        try:
            return draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
