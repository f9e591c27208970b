"""Files with a model's weights as they were written, and how they come to be there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused, UsageError, make_folder, sync_folder, unknown_name, write_failed
from specbench.models.loaded_model import LoadedModel
from specbench.models.names import DTYPES, EXPORTED

Format = Literal["gguf", "hf"]

#: How the weight files of a folder are called.
WEIGHTS = ".safetensors"

_INTEGERS = {2: torch.int16, 4: torch.int32}  # bytes of a value -> what has its bits


@dataclass(frozen=True)
class Exported:
    """A copy of a model's weights for other engines.

    Attributes:
        path: a GGUF file, or a folder as transformers writes one.
        sha256: of the file; of a folder :func:`digest_of` its weight files.
        bytes: of the file; of a folder those of its weight files together.
        fingerprint: of the weights in that precision, equal for equal values in any format, as ``ModelSpec`` has it.
    """

    path: Path
    format: Format
    dtype: str
    sha256: str
    bytes: int
    fingerprint: str


def precision_of(model: LoadedModel, dtype: str) -> torch.dtype:
    """The precision that a model's weights are to be written in."""
    found = DTYPES.get(dtype)
    if found not in EXPORTED:
        raise unknown_name("precision of an export", dtype, EXPORTED)
    if model.spec.dtype == "int8":
        raise UsageError(
            f"{model.spec.name} was loaded with weights of int8, which the formats of other engines hold otherwise; "
            "load it in float32 or bfloat16 to export it"
        )
    return cast(torch.dtype, getattr(torch, found))


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; what is there takes its place at the end, or is removed after an error."""
    check_free(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: a rename across file systems is a copy
    try:
        make_folder(path.parent)
        remove(draft)  # of a process that was killed and had this one's number
        yield draft
        for file in [draft, *draft.rglob("*")]:
            _sync(file)
        check_free(path)  # it took a while
        draft.rename(path)
        sync_folder(path.parent)
    except BaseException as error:
        remove(draft)
        if isinstance(error, OSError):
            raise write_failed(_with_reason(error), path) from error
        raise


def _sync(path: Path) -> None:
    """Makes the content of a file, or the names in a folder, survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_free(path: Path) -> None:
    """Refuses to write over what is there."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"cannot write {path}: it exists; choose another name or move it away")


def remove(path: Path) -> None:
    """Removes a file or a folder as far as that goes; there may be none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _with_reason(error: OSError) -> OSError:
    """numpy says of a write that ended early how many values are missing, and not why; no room is why it does."""
    return error if error.errno is not None else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sha256_of(file: Path) -> str:
    """sha256 of a file's content."""
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(sums: Mapping[str, str]) -> str:
    """One sha256 for a folder's weight files: over the lines ``<sha256>  <name>``, by name, as ``sha256sum`` prints."""
    return hashlib.sha256("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()).hexdigest()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one precision and shape hold the same bits; a NaN equals itself, and 0 is not -0."""
    bits = _INTEGERS[one.element_size()]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.view(bits), other.view(bits))


def differs(path: Path, name: str) -> EnvironmentRefused:
    """The error for a file that does not hold what was written to it."""
    return EnvironmentRefused(f"{path} was written and holds other values of {name} when read again; check its disk")
