"""Find the data files of tasks, and check that they are the files that the task was written for.

A file without a published hash is recorded as it was read, and every figure from it is reported as unverified.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.common import (
    EnvironmentRefused,
    UsageError,
    damaged,
    first_fault,
    open_file,
    read_json_lines,
    toml,
    unreadable,
    validate,
)
from specbench.evals.rows import FORMATS, TODO, check_size, numbered, row_place
from specbench.results import TaskData

Row = TypeVar("Row", bound=BaseModel)

_CARD = "fix it or install its package again"

DATA_DIR = "SPECBENCH_DATA"
"""Environment variable that names a folder of data files."""


class Package(BaseModel):
    """A file that an installed distribution ships."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: str
    path: str


class Hub(BaseModel):
    """A file of a data set on the Hugging Face hub.

    Attributes:
        revision: commit, never a branch, because a branch would let the file change. Only a file without a hash may
            leave it out: then the newest commit is used and recorded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")
    path: str


class DataFile(BaseModel):
    """One ``[[data]]`` table of a ``task.toml``.

    Attributes:
        name: name of the file in ``--data-dir``; it may include folders.
        also: further names, tried after ``name``: the same rows in another format.
        size: bytes; given together with ``sha256`` or not at all.
        sha256: of the file as published, compressed or not. Without it, any file with valid rows is accepted.
        package, hub: other sources of the file.
        url: address of exactly this file, used if no other source has it; the result is checked like any other.
        asks: in a benchmark file, the field of a row that holds the question; a list if rows differ in that field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    also: list[str] = []
    size: int | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    licence: str
    source: str
    package: Package | None = None
    hub: Hub | None = None
    url: str | None = None
    asks: str | list[str] = ""

    @model_validator(mode="after")
    def _is_known_or_not(self) -> DataFile:
        if (self.size is None) != (self.sha256 is None):
            raise ValueError("size and sha256 go together; give both, or neither if they are not known")
        if self.sha256 is None and self.url is not None:
            raise ValueError("a url needs size and sha256, because nothing else identifies what it returns")
        if self.sha256 is not None and self.also:
            raise ValueError("one hash cannot be that of several files; leave out also, or size and sha256")
        if self.sha256 is not None and self.hub is not None and self.hub.revision is None:
            raise ValueError("hub.revision is missing, the commit at which the file has that sha256")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the file can have in a folder, in the order in which they are tried."""
        return (self.name, *self.also)


def manifest(card: Path) -> list[DataFile]:
    """The data files that a ``task.toml`` declares, in order."""
    tables = toml.read(card, _CARD).get("data", [])
    if not isinstance(tables, list):
        raise damaged(card, "data must be a list of [[data]] tables", _CARD)
    return [validate(DataFile, table, f"{card} [[data]] {number}", _CARD) for number, table in enumerate(tables, 1)]


def resolve_file(file: DataFile, data_dir: Path | None = None) -> Path:
    """The path of ``file``: from ``data_dir``, ``SPECBENCH_DATA``, an installed package, the hub, or its URL.

    The first place that has it, under the first of its names. A file from a URL is kept in the user's cache. Each file
    found is recorded, see :func:`recorded`.

    Args:
        data_dir: the user's explicit choice; if given, only this folder is searched.

    Raises:
        UsageError: ``data_dir`` lacks the file, or the file's hash is not the one that the task requires.
        EnvironmentRefused: no place has it.
    """
    path, name, revision = _found(file, data_dir)
    size, sha256 = _checked(path, file)
    _record(TaskData(name=name, sha256=sha256, bytes=size, revision=revision, verified=file.sha256 is not None))
    return path


def user_file(path: Path) -> Path:
    """Record a data file that the user named, as :func:`resolve` does; its content is not checked."""
    size, sha256 = digest(path)
    _record(TaskData(name=path.name, sha256=sha256, bytes=size, revision=None, verified=False))
    return path


_recording: ContextVar[dict[str, TaskData] | None] = ContextVar("_recording", default=None)


@contextmanager
def recording_files() -> Iterator[dict[str, TaskData]]:
    """Collect the data files that are resolved inside the ``with`` block, by name, in order."""
    files: dict[str, TaskData] = {}
    token = _recording.set(files)
    try:
        yield files
    finally:
        _recording.reset(token)


def _record(found: TaskData) -> None:
    if (files := _recording.get()) is not None:
        files[found.name] = found


def is_present(file: DataFile, data_dir: Path | None = None) -> bool:
    """Whether ``resolve`` finds the file without going online, for data that a task can do without."""
    if data_dir is not None:
        return any((data_dir / name).is_file() for name in file.names)
    return any(path.is_file() for path in (*_local(file).values(), *_kept(file)))


def _found(file: DataFile, data_dir: Path | None) -> tuple[Path, str, str | None]:
    """(path, name under which it was found, commit of the hub)."""
    if data_dir is not None:
        for name in file.names:
            if (data_dir / name).is_file():
                return data_dir / name, name, None
        raise UsageError(
            f"{data_dir} has no file {' or '.join(file.names)}; name the folder that holds it, or leave --data-dir out"
        )
    for name, path in _local(file).items():
        if path.is_file():
            return path, name, None
    if file.hub is None and file.url:
        return _from_url(file), file.name, None
    path = _from_hub(file)
    at = _SNAPSHOT.search(path.as_posix())
    return path, file.name, at[1] if at else None


# The hub's client keeps a file under its commit, even when it was asked for a branch.
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/")


def _kept(file: DataFile) -> list[Path]:
    """The file's path in the user's cache, to which it is downloaded from its URL if necessary."""
    if file.sha256 is None:
        return []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "specbench", "data")
    return [cache / f"{file.sha256[:12]}-{file.name}"]


def _from_url(file: DataFile) -> Path:
    """Fetch ``file.url`` into the cache, completely or not at all."""
    import urllib.request  # imported here: it takes a tenth of a second, and most users have the file

    assert file.url is not None
    assert file.size is not None
    (path,) = _kept(file)
    kept = path.parent
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(file.url, timeout=30) as answer:
            content = answer.read(file.size + 1)  # stop reading a wrong file as soon as it is too long
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept, delete=False) as draft:
            draft.write(content)
        fetched = _checked_content(Path(draft.name), file)
        os.replace(fetched, path)
    except OSError as error:  # urllib's own errors are of this kind
        raise EnvironmentRefused(
            f"{file.name} is not on this machine and {file.url} gave {type(error).__name__}: go online, or set "
            f"{DATA_DIR} or --data-dir to a folder that holds it"
        ) from error
    return path


def _checked_content(path: Path, file: DataFile) -> Path:
    try:
        _checked(path, file)
    except UsageError:
        path.unlink(missing_ok=True)
        raise UsageError(
            f"{file.url} no longer gives the {file.name} of this task; set {DATA_DIR} to a folder that holds the file "
            f"with sha256 {file.sha256}"
        ) from None
    return path


def _local(file: DataFile) -> dict[str, Path]:
    """Paths where the file may be on this machine."""
    folder = os.environ.get(DATA_DIR)
    places = {name: Path(folder, name) for name in file.names} if folder else {}
    if not file.package or any(path.is_file() for path in places.values()):
        return places
    try:
        distribution = importlib.metadata.distribution(file.package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return places
    return {**places, file.name: Path(str(distribution.locate_file(file.package.path)))}  # without importing it


def _from_hub(file: DataFile) -> Path:
    ways = [f"pip install {file.package.distribution}"] if file.package else []
    ways.append(f"set {DATA_DIR} or --data-dir to a folder that holds it (published at {file.source})")
    if file.hub is None:
        raise EnvironmentRefused(f"{file.name} is not on this machine: {', or '.join(ways)}")
    try:
        from huggingface_hub import hf_hub_download  # takes half a second, and is only needed here

        return Path(hf_hub_download(file.hub.repo, file.hub.path, repo_type="dataset", revision=file.hub.revision))
    except Exception as error:  # the hub's client raises exceptions of many kinds; users need only one
        ways.append(f"go online, it comes from the hub data set {file.hub.repo}")
        raise EnvironmentRefused(
            f"{file.name} is not on this machine and the hub gave {type(error).__name__}: {', or '.join(ways)}"
        ) from error


def _checked(path: Path, file: DataFile) -> tuple[int, str]:
    """:func:`digest`, checked against the published hash if there is one."""
    size, found = digest(path)
    if file.sha256 is not None and (size, found) != (file.size, file.sha256):
        raise UsageError(
            f"{path} is not the {file.name} of this task: sha256 {found} ({size} bytes), "
            f"expected {file.sha256} ({file.size} bytes); get it from {file.source}"
        )
    return size, found


def digest(path: Path) -> tuple[int, str]:
    """(bytes, sha256) of a file."""
    size, sha256 = 0, hashlib.sha256()
    with open_file(path, TODO) as stream:
        check_size(path, os.fstat(stream.fileno()).st_size)
        try:
            while block := stream.read(1 << 20):
                sha256.update(block)
                size += len(block)
        except OSError as error:
            raise unreadable(path, str(error.strerror), TODO) from None
    return size, sha256.hexdigest()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a ``.jsonl`` or ``.jsonl.gz`` file, in order; blank lines are skipped."""
    return [row for _, row in read_json_lines(path, TODO, nan=True)]


def names_file(name: str) -> bool:
    """Whether a name stands for a data file: it has a suffix that :func:`each_row` reads, or the path exists."""
    return name.endswith(FORMATS) or Path(name).exists()


def file_stem(name: str) -> str:
    """The name of a data file without its folder and suffix."""
    own = Path(name).name
    return next((own.removesuffix(suffix) for suffix in FORMATS if own.endswith(suffix)), Path(own).stem)


def each_row(path: Path, kind: type[Row], *, own: str = "") -> Iterator[tuple[int, Row]]:
    """Yield the rows of a data file as models, each with the number of its line or row.

    Args:
        path: ``.jsonl``, ``.jsonl.gz``, ``.json`` (a list) or ``.parquet``.
        kind: the model; its ``extra`` setting decides whether unknown fields are allowed.
        own: for a user's own file: advice for error messages, such as the allowed fields.
    """
    for number, row in numbered(path, own or TODO):
        if not own:
            yield number, validate(kind, row, row_place(path, number), TODO)
            continue
        try:
            made = kind.model_validate(row)
        except ValidationError as error:
            raise UsageError(f"cannot use {row_place(path, number)}: {first_fault(error)}; {own}") from None
        yield number, made


def read_rows(path: Path, kind: type[Row], *, own: str = "") -> list[tuple[int, Row]]:
    """All of :func:`each_row` at once."""
    return list(each_row(path, kind, own=own))


def by_field(path: Path, rows: Iterable[tuple[int, Row]], field: str) -> dict[Any, Row]:
    """Rows of :func:`read_rows` by the value of a field, in their order."""
    found: dict[Any, Row] = {}
    for number, row in rows:
        value = getattr(row, field)
        if value in found:
            raise damaged(row_place(path, number), f"field '{field}': {value} is there twice", TODO)
        found[value] = row
    return found
