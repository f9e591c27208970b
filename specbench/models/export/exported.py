"""Describe exported weights, and write them atomically."""

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

Format = Literal["gguf", "hf"]  # those that are written here

#: Suffix of the weight files in a folder.
WEIGHTS = ".safetensors"

_INTEGERS = {2: torch.int16, 4: torch.int32}  # bytes of a value -> integer type of that size


@dataclass(frozen=True)
class Exported:
    """A copy of a model's weights for other engines.

    Attributes:
        path: a GGUF file, or a folder in transformers' format.
        sha256: hash of the file; for a folder, :func:`digest_of` its weight files.
        bytes: size of the file; for a folder, the sum over its weight files.
        fingerprint: fingerprint of the weights in this precision, as in ``ModelSpec``: the same in every format.
    """

    path: Path
    format: Format | Literal["openvino"]
    dtype: str
    sha256: str
    bytes: int
    fingerprint: str


def precision_of(model: LoadedModel, dtype: str) -> torch.dtype:
    """Return the precision in which a model's weights are written."""
    found = DTYPES.get(dtype)
    if found not in EXPORTED:
        raise unknown_name("precision", dtype, EXPORTED, "of an export")
    if model.spec.dtype == "int8":
        raise UsageError(
            f"cannot export {model.spec.name} in int8: other engines' formats store 8-bit weights differently; load it "
            "with --dtype float32 or bfloat16"
        )
    return cast(torch.dtype, getattr(torch, found))


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it to ``path`` at the end, or remove it after an error."""
    check_free(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: a rename across file systems is a copy
    try:
        make_folder(path.parent)
        remove(draft)  # left by a killed process with the same process id
        yield draft
        for file in [draft, *draft.rglob("*")]:
            _sync(file)
        check_free(path)  # it may have been created in the meantime
        draft.rename(path)
        sync_folder(path.parent)
    except BaseException as error:
        remove(draft)
        if isinstance(error, OSError):
            raise write_failed(_with_reason(error), path) from error
        raise


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_free(path: Path) -> None:
    """Refuse to overwrite an existing path."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"cannot write {path}: it exists; choose another name or move it away")


def remove(path: Path) -> None:
    """Remove a file or folder if it exists, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _with_reason(error: OSError) -> OSError:
    """Give numpy's error for an incomplete write its reason: a full disk."""
    return error if error.errno is not None else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file's content."""
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(sums: Mapping[str, str]) -> str:
    """Return one sha256 for several files: over lines ``<sha256>  <name>`` as of ``sha256sum``, sorted by name."""
    return hashlib.sha256("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()).hexdigest()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bits; a NaN equals itself, and 0 differs from -0."""
    bits = _INTEGERS[one.element_size()]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.view(bits), other.view(bits))


def differs(path: Path, name: str) -> EnvironmentRefused:
    """Return the error for a file that reads back differently from what was written."""
    return EnvironmentRefused(
        f"cannot export weights to {path}: {name} reads back differently from what was written; check its disk"
    )
