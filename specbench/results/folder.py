"""The run folder: what a run leaves on disk so that a kill at any moment loses at most the request in flight.

``<out>/<utc>-<stem>-<digest8>/`` holds ``run.json`` (from the first moment the folder has its name), ``requests.jsonl``
(one line per request, on disk before the next request starts; those of a stateful row that was broken off go to
``requests.restarted.jsonl``), where steps are captured ``steps.json`` (what their rows
are padded to), on a CPU ``bandwidth.json`` (what memory gave, on disk as it is read), ``watch.json`` (what the machine
did beside it), ``engines.json`` (the other engines of the run), ``likelihoods.jsonl`` (how likely its texts are to a
model) and at the end ``summary.json``, then ``DONE``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from specbench.common import EnvironmentRefused, UsageError
from specbench.common.files import (
    folder_name,
    refused,
    rename_to_free_name,
    sync_folder,
    write_atomic,
    write_json_atomic,
)
from specbench.common.reading import Model, damaged, fitted, in_64_bits, read_json_object, schema_version, whole
from specbench.results.bandwidth import Bandwidth
from specbench.results.calibration import StoredTimes
from specbench.results.engines import Engines
from specbench.results.request_log import RequestLog, complete_lines, read_requests, set_aside
from specbench.results.run_file import REPEAT, RUN, read_run_file
from specbench.results.schema import SCHEMA_VERSION, RequestRecord
from specbench.results.summary_schema import RunSummary
from specbench.results.versions import assert_of_today, line_of, record_of, summary_json, summary_of
from specbench.results.watch import Watch

_LOCK, _REQUESTS, _STEPS, _SUMMARY, _DONE = ".lock", "requests.jsonl", "steps.json", "summary.json", "DONE"
_TIMES = "times.json"
_BANDWIDTH, _WATCH, _ENGINES = "bandwidth.json", "watch.json", "engines.json"
_AGAIN = "run it again"


class RunFolder:
    """One run on disk. ``create`` and ``find_unfinished`` give it locked for writing, ``load`` and ``find_finished``
    only for reading.

    Use it as a context manager: leaving it releases the lock. The kernel releases it too when the process dies.
    """

    def __init__(self, path: Path, run: dict[str, Any], lock: int | None = None) -> None:
        self.path = path
        self.run = run
        self._lock = lock
        self._log: RequestLog | None = None

    @classmethod
    def create(cls, out: Path, stem: str, digest: str, run: Mapping[str, Any]) -> RunFolder:
        """A new folder, with ``run.json`` in it and locked before anyone can see it.

        Args:
            out: parent folder; made when missing.
            stem: what the run is, "<method>-<task>"; characters that do not belong in a file name become "-".
            digest: hash of the resolved configuration in hex; its first 8 characters end the folder's name, all of it
                goes into ``run.json`` under "digest".
            run: further content of ``run.json``; "schema_version" is added.

        Raises:
            EnvironmentRefused: the disk is full or ``out`` cannot be written.
        """
        return cls._make(out / folder_name(stem, digest), digest, run, rename_to_free_name)

    @classmethod
    def at(cls, path: Path, digest: str, run: Mapping[str, Any]) -> RunFolder:
        """The folder of exactly that name, locked for writing: a new one, or what is there, finished or not.

        Args:
            path: where it is, or will be.
            digest, run: as for :meth:`create`, for a new one.

        Raises:
            UsageError: what is there is something else.
            EnvironmentRefused: another process is writing to it, or the disk is full.
        """
        if not (path / RUN).exists():
            try:
                return cls._make(path, digest, run, Path.rename)
            except EnvironmentRefused:
                if not (path / RUN).exists():  # else another process was first
                    raise
        found = cls.reopen(path)
        if found.run.get("digest") != digest:
            found.close()
            raise UsageError(f"{path} holds another run; choose another --out")
        return found

    def go_on(self, run: Mapping[str, Any]) -> None:
        """Replaces the content of ``run.json``; a finished run is unfinished from here on.

        Args:
            run: as for :meth:`create`; the digest stays.

        Raises:
            UsageError: it is of an older schema, see :attr:`schema`.
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        content = {**run, "schema_version": SCHEMA_VERSION, "digest": self.run["digest"]}
        (self.path / _DONE).unlink(missing_ok=True)
        write_json_atomic(self.path / RUN, content)
        self.run = content

    @classmethod
    def _make(
        cls, wanted: Path, digest: str, run: Mapping[str, Any], rename: Callable[[Path, Path], Path]
    ) -> RunFolder:
        """A new folder, written under another name first."""
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
                raise refused(error, wanted) from error
            raise
        return cls(path, content, lock)

    @classmethod
    def find_unfinished(cls, out: Path, digest: str) -> RunFolder | None:
        """The newest folder of this configuration without ``DONE``, locked, so that the run can go on in it.

        Raises:
            UsageError: it is of an older schema.
            EnvironmentRefused: another process is writing to it.
        """
        for path in sorted(out.glob(f"*-{digest[:8]}*"), reverse=True):  # names begin with the time
            try:
                run = read_run_file(path)
            except (UsageError, OSError):
                continue  # not a run, or damaged: nothing to go on from
            if run.get("digest") != digest or (path / _DONE).exists():
                continue
            lock = _acquire(path)
            if not (path / _DONE).exists():
                found = cls(path, run, lock)
                try:
                    found._assert_goes_on()
                except UsageError:
                    found.close()
                    raise
                return found
            os.close(lock)  # its writer finished between the two looks
        return None

    @classmethod
    def find_finished(
        cls, out: Path, digest: str, suits: Callable[[RunFolder], bool] = lambda found: True
    ) -> RunFolder | None:
        """The newest folder of this configuration with ``DONE``, to read; one that cannot be read does not count.

        Args:
            suits: says whether such a run is looked for; a UsageError of it is a no.
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
        """A run to read, finished or not, also while it is being written.

        Raises:
            UsageError: not a run folder, a damaged ``run.json``, or a newer schema.
        """
        if not os.path.isfile(path / RUN):  # which takes any path; that of Path raises where a folder is shut
            raise UsageError(f"{path} is not a run folder (it has no {RUN}); name a folder that specbench run wrote")
        run = read_run_file(path)
        schema_version(run, path / RUN, SCHEMA_VERSION, REPEAT)
        return cls(path, run)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """A run to add a file to, finished or not; locked, so that two writers do not meet.

        Raises:
            UsageError: as :meth:`load`.
            EnvironmentRefused: another process is writing to it.
        """
        loaded = cls.load(path)
        return cls(path, loaded.run, _acquire(path))

    @property
    def schema(self) -> int:
        """Version of its files. One of an older schema is read, scored and judged as it is, and gets no new requests:
        these would have other names than those that it has."""
        return schema_version(self.run, self.path / RUN, SCHEMA_VERSION, REPEAT)

    @property
    def begun(self) -> datetime:
        """When the run was made.

        Raises:
            UsageError: ``run.json`` does not say it.
        """
        said = self.run.get("created_utc")
        if said is None:
            raise damaged(self.path / RUN, "it has no created_utc", REPEAT)
        return datetime.fromisoformat(said)

    def assert_of_today(self) -> None:
        """Refuses what would put requests of today's schema beside those of an older one.

        Raises:
            UsageError: it is of an older schema; says which version wrote it.
        """
        assert_of_today(self.path, self.run, self.schema)

    def _assert_goes_on(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.path} was opened for reading")
        self.assert_of_today()

    @property
    def log(self) -> RequestLog:
        """The log to append to; opened at first use, which repairs a torn last line.

        Raises:
            UsageError: it is of an older schema.
        """
        if self._log is None:
            self._assert_goes_on()
            self._log = RequestLog(self.path / _REQUESTS)
        return self._log

    def restart(self, request_ids: Collection[str]) -> None:
        """Sets requests aside, which are then to be decoded again; before the log is opened.

        Raises:
            UsageError, EnvironmentRefused: as :func:`specbench.results.request_log.set_aside`.
        """
        assert self._log is None, "the log is open"
        self._assert_goes_on()
        set_aside(self.requests_path, request_ids)

    @property
    def finished(self) -> bool:
        """Whether the run got to its end."""
        return (self.path / _DONE).exists()

    def records(self) -> Iterator[RequestRecord]:
        """The recorded requests, one after the other: a hundred thousand of them take a gigabyte together.

        Raises:
            UsageError: one does not fit; names the line and the field.
        """
        schema = self.schema
        # Who writes is repeating the command already, and decodes what is missing.
        todo = _AGAIN if self._lock is None else "delete that line to go on without its request"
        for where, line in complete_lines(self.requests_path, todo):
            yield record_of(line, schema, where, todo)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The same as they are written, with today's names but unchecked: for who needs little of each.

        Raises:
            UsageError: a line is no JSON object, or has names of two schemas.
        """
        schema = self.schema
        for where, line in read_requests(self.requests_path, _AGAIN):
            yield line_of(line, schema, where, _AGAIN)

    @property
    def requests_path(self) -> Path:
        """Where they are."""
        return self.path / _REQUESTS

    def summary(self) -> RunSummary | None:
        """Content of ``summary.json``; None when there is none yet.

        Raises:
            UsageError: it does not fit; names the field.
        """
        path = self.path / _SUMMARY
        if not os.path.lexists(path):
            return None
        content = read_json_object(path, REPEAT)
        in_64_bits(content, path, REPEAT)
        return summary_of(content, self.schema, path, REPEAT)

    def steps(self) -> list[list[dict[str, Any]]]:
        """What each engine of the run measured of its steps, by which it chose what rows are padded to.

        Raises:
            UsageError: the file is damaged.
        """
        path = self.path / _STEPS
        if not path.is_file():
            return []
        found = read_json_object(path, _AGAIN).get("engines")
        todo = f"delete it and {_AGAIN}"
        if not isinstance(found, list) or not all(isinstance(steps, list) for steps in found):
            raise damaged(path, "it has no list of engines", todo)
        if not all(_says_padding(step) for steps in found for step in steps):
            raise damaged(path, "it does not say what rows are padded to", todo)
        return found

    def products(self) -> list[list[dict[str, Any]]]:
        """What each engine of the run settled of its products; empty of runs that settled nothing.

        Raises:
            UsageError: the file is damaged.
        """
        path = self.path / _STEPS
        if not path.is_file():
            return []
        found = read_json_object(path, _AGAIN).get("products", [])
        if not isinstance(found, list) or not all(
            isinstance(shapes, list) and all(map(_says_product, shapes)) for shapes in found
        ):
            raise damaged(path, "it does not say what computes products", f"delete it and {_AGAIN}")
        return found

    def keep_steps(
        self, engines: Sequence[Sequence[Mapping[str, Any]]], products: Sequence[Sequence[Mapping[str, Any]]] = ()
    ) -> None:
        """Writes :meth:`steps` and :meth:`products`, for when the run is resumed.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        content = {"engines": [list(steps) for steps in engines]}
        if any(products):
            content["products"] = [list(shapes) for shapes in products]
        write_json_atomic(self.path / _STEPS, content)

    def times(self) -> dict[str, StoredTimes]:
        """The times that automatic settings of the run were chosen by, by name; empty where none was.

        Raises:
            UsageError: the file is damaged.
        """
        path, todo = self.path / _TIMES, f"delete it and {_AGAIN}"
        if not path.is_file():
            return {}
        found = read_json_object(path, todo)
        return {what: fitted(StoredTimes, each, path, todo) for what, each in found.items()}

    def keep_times(self, times: Mapping[str, StoredTimes]) -> None:
        """Writes :meth:`times`.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        write_json_atomic(self.path / _TIMES, {what: each.model_dump(mode="json") for what, each in times.items()})

    def bandwidth(self) -> Bandwidth | None:
        """What was read of memory so far; None where it was not to be read.

        Raises:
            UsageError: the file is damaged.
        """
        return self._spared(Bandwidth, _BANDWIDTH)

    def keep_bandwidth(self, found: Bandwidth) -> None:
        """Writes :meth:`bandwidth`.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        write_json_atomic(self.path / _BANDWIDTH, found.written())

    def watch(self) -> Watch | None:
        """What the machine did so far while the run decoded; None where nobody looked.

        Raises:
            UsageError: the file is damaged.
        """
        return self._spared(Watch, _WATCH)

    def keep_watch(self, found: Watch) -> None:
        """Writes :meth:`watch`.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        write_json_atomic(self.path / _WATCH, found.written())

    def engines(self) -> Engines:
        """What is known of the run's other engines; empty where there are none.

        Raises:
            UsageError: the file is damaged.
        """
        path = self.path / _ENGINES
        return fitted(Engines, read_json_object(path, REPEAT), path, REPEAT) if os.path.lexists(path) else Engines()

    def keep_engines(self, found: Engines) -> None:
        """Writes :meth:`engines`.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        self._assert_goes_on()
        write_json_atomic(self.path / _ENGINES, found.model_dump(mode="json"))

    def _spared(self, kind: type[Model], name: str) -> Model | None:
        """A file of figures that the run can do without."""
        path, todo = self.path / name, "delete it to do without its figures"
        return fitted(kind, read_json_object(path, todo), path, todo) if os.path.lexists(path) else None

    def finish(self, summary: RunSummary) -> None:
        """Writes ``summary.json``, then ``DONE``, and closes the folder.

        Raises:
            UsageError: it is of an older schema.
            EnvironmentRefused: the disk is full; the run stays unfinished and keeps its requests.
        """
        self._assert_goes_on()
        self.write_summary(summary)
        write_atomic(self.path / _DONE, b"")
        (self.path / _LOCK).unlink(missing_ok=True)
        self.close()

    def write_summary(self, summary: RunSummary) -> None:
        """Writes ``summary.json``, with the names of the run's own schema.

        Raises:
            EnvironmentRefused: the disk is full.
        """
        write_json_atomic(self.path / _SUMMARY, summary_json(summary, self.schema))

    def close(self) -> None:
        """Closes the log and releases the lock; a second call does nothing."""
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


def _says_padding(step: Any) -> bool:
    padded = step.get("padded_to") if isinstance(step, dict) else None
    return isinstance(padded, dict) and all(
        whole(rows) is not None and type(bucket) is int and bucket > 0 for rows, bucket in padded.items()
    )


def _says_product(shape: Any) -> bool:
    if not isinstance(shape, dict) or shape.get("kernel") not in ("own", "torch"):
        return False
    sizes = [shape.get("out"), shape.get("in")]
    timed, why_not = shape.get("timed"), shape.get("why_not")
    if not isinstance(timed, list) or not isinstance(shape.get("torch_s"), list) or not isinstance(why_not, str):
        return False
    if not all(isinstance(each, dict) and isinstance(each.get("seconds"), list) for each in timed):
        return False
    cut = [each.get("config") for each in timed] + ([shape.get("config")] if shape["kernel"] == "own" else [])
    return all(type(size) is int and size > 0 for size in sizes) and all(
        isinstance(each, dict)
        and each.keys() == {"block_n", "block_k", "splits", "warps", "stages"}
        and all(type(number) is int and number > 0 for number in each.values())
        for each in cut
    )


def _acquire(folder: Path) -> int:
    """Locks a run folder for this process; the lock lives as long as the returned descriptor."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise refused(error, folder / _LOCK) from error
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
