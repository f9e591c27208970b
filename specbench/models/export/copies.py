"""Cache exported weights for the other engines of a run, so that each copy is written only once per machine.

Each copy is a folder whose name contains a hash of everything that its content depends on. It gets this name once it is
complete, and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import (
    EnvironmentRefused,
    UsageError,
    cache_folder,
    check_writable,
    read_json_object,
    validate,
    write_json_atomic,
    write_lock,
)
from specbench.models.adapters import fingerprint
from specbench.models.export.exported import (
    WEIGHTS,
    Exported,
    Format,
    digest_of,
    drafted,
    precision_of,
    remove,
    sha256_of,
)
from specbench.models.export.gguf_file import export_gguf
from specbench.models.export.hf_folder import export_hf
from specbench.models.loaded_model import LoadedModel

#: File next to a copy that records sizes and hashes of what was written.
RECORD = "exported.json"

_VERSION = 1  # version of the exported content; a new version makes all copies again
_NAMES: dict[Format, str] = {"gguf": "weights.gguf", "hf": "checkpoint"}
_NOT_IN_KEY = ("_name_or_path", "architectures", "dtype", "transformers_version")
_TODO = "delete its folder, and it will be written again"


class CopiedFile(BaseModel):
    """A file of a copy."""

    model_config = ConfigDict(extra="forbid", strict=True)

    bytes: int = Field(ge=0)
    mtime_ns: int
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Record(BaseModel):
    """Files of a copy by their paths in its folder; a file is hashed again only if its size or time has changed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, CopiedFile] = Field(min_length=1)


def exported(model: LoadedModel, kind: Format, dtype: str) -> Exported:
    """Return the copy of a model's weights for other engines: written if missing, checked if it exists.

    A GGUF file gets a vocabulary of placeholders: its engine exchanges token ids only.

    Args:
        kind: "gguf" or "hf".
        dtype: "float32" or "bfloat16".
    """
    precision = precision_of(model, dtype)
    written = str(precision).removeprefix("torch.")
    sums = fingerprint(model.model, precision)
    name = _NAMES[kind]

    def make(draft: Path) -> None:
        if kind == "gguf":
            export_gguf(model, draft / name, dtype=written, vocabulary="placeholders")
        else:
            export_hf(model, draft / name, dtype=written)

    folder, found = kept(f"{kind}-{written}-{_key(model, kind, written, sums)}", make)
    if kind == "gguf":
        whole, size = found[name].sha256, found[name].bytes
    else:
        weights = {Path(file).name: each for file, each in found.items() if file.endswith(WEIGHTS)}
        whole = digest_of({file: each.sha256 for file, each in weights.items()})
        size = sum(each.bytes for each in weights.values())
    return Exported(folder / name, kind, written, whole, size, sums)


def kept(name: str, make: Callable[[Path], None]) -> tuple[Path, Mapping[str, CopiedFile]]:
    """Return a folder of the cache and its files by their paths in it: written if missing, checked if it exists.

    Args:
        name: must contain a hash of everything that the content depends on.
        make: writes the content into a folder that does not exist.
    """
    root = cache_folder("exports")
    if root is None:
        raise EnvironmentRefused(
            "cannot export weights: there is no cache folder; set XDG_CACHE_HOME to a folder with enough space"
        )
    check_writable(root)
    folder = root / name
    with write_lock(root):  # a second process waits here, and then finds the first one's copy
        for draft in root.glob(".*.tmp"):  # left by a killed process, since this one holds the lock
            remove(draft)
        found = _checked(folder)
        if found is None:
            with drafted(folder) as draft:
                make(draft)
                _record(draft)
            found = _checked(folder)
    if found is None:
        raise EnvironmentRefused(
            f"cannot export weights to {folder}: it reads back differently from what was written; check its disk"
        )
    return folder, found


def _key(model: LoadedModel, kind: Format, dtype: str, sums: str) -> str:
    """Return a hash over everything that a copy's content depends on, including configuration such as the rope base."""
    about: list[Any] = [_VERSION, kind, dtype, sums, _settings(model.model.config)]
    if kind == "hf":
        about += [
            version("transformers"),
            sorted(model.stop_ids),
            _settings(getattr(model.model, "generation_config", None)),
        ]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _settings(config: Any) -> dict[str, Any]:
    values = {} if config is None else config.to_dict()
    return {name: value for name, value in values.items() if name not in _NOT_IN_KEY}


def _record(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    made = Record(files={path.relative_to(folder).as_posix(): _file(path) for path in files})
    write_json_atomic(folder / RECORD, made.model_dump())


def _file(path: Path) -> CopiedFile:
    stat = path.stat()
    return CopiedFile(bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=sha256_of(path))


def read_record(file: Path) -> Record:
    """Read the record of a copy."""
    return validate(Record, read_json_object(file, _TODO), file, _TODO)


def _checked(folder: Path) -> dict[str, CopiedFile] | None:
    """Return the files of an intact copy; remove a damaged one and return None.

    A file whose size or time differs from the record is compared by its hash.
    """
    try:
        found = read_record(folder / RECORD).files
        touched = False
        for name, wanted in found.items():
            stat = (folder / name).stat()
            if (stat.st_size, stat.st_mtime_ns) == (wanted.bytes, wanted.mtime_ns):
                continue
            touched = True
            if _file(folder / name).sha256 != wanted.sha256:
                raise UsageError(f"cannot use {folder / name}: it has changed since it was written; {_TODO}")
        if touched:
            _record(folder)
    except (UsageError, OSError):
        remove(folder)
        return None
    return found
