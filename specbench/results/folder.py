"""The folder of a run on disk. If the process is killed, at most the request in flight is lost.

``<out>/<utc>-<stem>-<digest8>/`` holds ``run.json`` (from the start), ``requests.jsonl`` (a line per request, on disk
before the next one starts; interrupted requests of a stateful row move to ``requests.restarted.jsonl``), the
attachments (:mod:`specbench.results.attachment`), and at the end ``summary.json``, then ``DONE``.

Readers raise UsageError for a damaged file and name the field; writers raise EnvironmentRefused for a full disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from specbench.common import (
    EnvironmentRefused,
    UsageError,
    damaged,
    first_fault,
    folder_name,
    in_64_bits,
    read_json_object,
    rename_to_free_name,
    schema_version,
    sync_folder,
    validate,
    write_atomic,
    write_failed,
    write_json_atomic,
)
from specbench.results.attachment import Attachment, T
from specbench.results.request_log import RequestLog, complete_lines, read_requests, set_aside
from specbench.results.request_schema import RequestRecord
from specbench.results.run_file import REPEAT, RUN, read_run_file
from specbench.results.schema import SCHEMA_VERSION
from specbench.results.summary_schema import RunSummary

_LOCK, _REQUESTS, _SUMMARY, _DONE = ".lock", "requests.jsonl", "summary.json", "DONE"
_AGAIN = "run it again"


class RunFolder:
    """One run on disk. ``create`` and ``find_unfinished`` lock it for writing; ``load`` and ``find_finished`` read it.

    As a context manager it releases the lock at the end; the kernel also releases it when the process dies.
    """

    def __init__(self, path: Path, run: dict[str, Any], lock: int | None = None) -> None:
        self.path = path
        self.run = run
        self._lock = lock
        self._log: RequestLog | None = None

    @classmethod
    def create(cls, out: Path, stem: str, digest: str, run: Mapping[str, Any]) -> RunFolder:
        """Create a folder with ``run.json``. It is locked before other processes can see it.

        Args:
            out: parent folder, created if missing.
            stem: "<method>-<task>"; characters that do not suit a file name become "-".
            digest: hash of the resolved configuration in hex; the folder's name ends with its first 8 characters.
        """
        return cls._make(out / folder_name(stem, digest), digest, run, rename_to_free_name)

    @classmethod
    def at(cls, path: Path, digest: str, run: Mapping[str, Any]) -> RunFolder:
        """Open the folder at ``path`` locked for writing, finished or not; create it if it does not exist."""
        if not (path / RUN).exists():
            try:
                return cls._make(path, digest, run, Path.rename)
            except EnvironmentRefused:
                if not (path / RUN).exists():  # otherwise another process created it first
                    raise
        found = cls.reopen(path)
        if found.run.get("digest") != digest:
            found.close()
            raise UsageError(f"cannot use {path}: it holds another run; choose another --out")
        return found

    def go_on(self, run: Mapping[str, Any]) -> None:
        """Replace the content of ``run.json`` except its digest, and mark the run as unfinished."""
        self._assert_writable()
        content = {**run, "schema_version": SCHEMA_VERSION, "digest": self.run["digest"]}
        (self.path / _DONE).unlink(missing_ok=True)
        write_json_atomic(self.path / RUN, content)
        self.run = content

    @classmethod
    def _make(
        cls, wanted: Path, digest: str, run: Mapping[str, Any], rename: Callable[[Path, Path], Path]
    ) -> RunFolder:
        """Create a folder: write it under a temporary name, then rename it."""
        draft = wanted.with_name(f".{wanted.name}.{os.getpid()}.tmp")
        content = {**run, "schema_version": SCHEMA_VERSION, "digest": digest}
        lock = None
        try:
            draft.mkdir(parents=True)
            lock = _acquire(draft)
            write_json_atomic(draft / RUN, content)
            path = rename(draft, wanted)
            sync_folder(wanted.parent)
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError):
                raise write_failed(error, wanted) from error
            raise
        return cls(path, content, lock)

    @classmethod
    def find_unfinished(cls, out: Path, digest: str) -> RunFolder | None:
        """The newest unfinished folder of this configuration, locked; raises EnvironmentRefused if it is in use."""
        for path in sorted(out.glob(f"*-{digest[:8]}*"), reverse=True):  # names begin with the time
            try:
                run = cls.load(path).run
            except (UsageError, OSError):
                continue  # not a run, damaged, or another version: it cannot be resumed
            if run.get("digest") != digest or (path / _DONE).exists():
                continue
            lock = _acquire(path)
            if not (path / _DONE).exists():
                return cls(path, run, lock)
            os.close(lock)  # another process finished it in the meantime
        return None

    @classmethod
    def find_finished(
        cls, out: Path, digest: str, suits: Callable[[RunFolder], bool] = lambda found: True
    ) -> RunFolder | None:
        """The newest finished folder of this configuration that ``suits`` accepts.

        Unreadable folders, and those for which ``suits`` raises UsageError, are skipped.
        """
        for path in sorted(out.glob(f"*-{digest[:8]}*"), reverse=True):
            try:
                found = cls.load(path)
                if found.run.get("digest") == digest and found.finished and found.summary() and suits(found):
                    return found
            except (UsageError, OSError):
                continue
        return None

    @classmethod
    def load(cls, path: Path) -> RunFolder:
        """Open a run for reading, also while it is being written.

        Raises UsageError if the folder is not a run or has another schema.
        """
        if not os.path.isfile(path / RUN):  # Path.is_file would raise if a parent folder cannot be read
            raise UsageError(
                f"cannot read {path}: it is not a run folder (it has no {RUN}); name a folder that specbench run wrote"
            )
        run = read_run_file(path)
        if (schema := schema_version(run, path / RUN, SCHEMA_VERSION, REPEAT)) != SCHEMA_VERSION:
            raise UsageError(
                f"cannot read {path}: its schema is {schema} and this version reads {SCHEMA_VERSION}; {REPEAT}"
            )
        return cls(path, run)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open a run locked for writing, finished or not, to add files to it."""
        loaded = cls.load(path)
        return cls(path, loaded.run, _acquire(path))

    @property
    def begun(self) -> datetime:
        """Start of the run."""
        created = self.run.get("created_utc")
        if created is None:
            raise damaged(self.path / RUN, "it has no created_utc", REPEAT)
        return datetime.fromisoformat(created)

    def _assert_writable(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.path} was opened for reading")

    @property
    def log(self) -> RequestLog:
        """The log to append to. It is opened at first use; opening cuts off an incomplete last line."""
        if self._log is None:
            self._assert_writable()
            self._log = RequestLog(self.path / _REQUESTS)
        return self._log

    def restart(self, request_ids: Collection[str]) -> None:
        """Move requests out of the log so that they are decoded again. Call it before the log is opened."""
        assert self._log is None, "the log is open"
        self._assert_writable()
        set_aside(self.requests_path, request_ids)

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return (self.path / _DONE).exists()

    def records(self) -> Iterator[RequestRecord]:
        """Iterate over the recorded requests; a hundred thousand at once would take a gigabyte."""
        # A process with the lock is already resuming the run and would decode the missing request.
        todo = _AGAIN if self._lock is None else "delete that line to go on without its request"
        for where, line in complete_lines(self.requests_path, todo):
            try:  # parsing without an intermediate dictionary takes half the time
                yield RequestRecord.model_validate_json(line)
            except ValidationError as error:
                raise damaged(where, first_fault(error), todo) from None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Iterate over the recorded requests as dictionaries, without validation."""
        return (line for _, line in read_requests(self.requests_path, _AGAIN))

    @property
    def requests_path(self) -> Path:
        """Path of ``requests.jsonl``."""
        return self.path / _REQUESTS

    def summary(self) -> RunSummary | None:
        """Return the content of ``summary.json``, or None if it does not exist yet."""
        path = self.path / _SUMMARY
        if not os.path.lexists(path):
            return None
        content = read_json_object(path, REPEAT)
        in_64_bits(content, path, REPEAT)
        return validate(RunSummary, content, path, REPEAT)

    def read(self, what: Attachment[T]) -> T | None:
        """Return the content of an attachment, or None if the run does not have it."""
        return what.read(self.path)

    def write(self, what: Attachment[T], value: T) -> None:
        """Write an attachment."""
        self._assert_writable()
        what.write(self.path, value)

    def finish(self, summary: RunSummary) -> None:
        """Write ``summary.json``, then ``DONE``, and close the folder."""
        self._assert_writable()
        self.write_summary(summary)
        write_atomic(self.path / _DONE, b"")
        (self.path / _LOCK).unlink(missing_ok=True)
        self.close()

    def write_summary(self, summary: RunSummary) -> None:
        """Write ``summary.json``."""
        write_json_atomic(self.path / _SUMMARY, summary.written())

    def close(self) -> None:
        """Close the log and release the lock. Closing twice is safe."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            if self.finished:  # a finished run has no lock file; an unfinished one keeps it for the next writer
                (self.path / _LOCK).unlink(missing_ok=True)
            os.close(self._lock)
        self._log = self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _acquire(folder: Path) -> int:
    """Lock a run folder for this process and return the file descriptor that holds the lock."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_failed(error, folder / _LOCK) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EnvironmentRefused(
            f"{folder} is in use by another specbench process; wait for it or choose another --out"
        ) from error
    except OSError as error:
        os.close(lock)
        raise EnvironmentRefused(
            f"the file system of {folder} has no locks ({error.strerror}); choose an --out on a local disk"
        ) from error
    return lock
