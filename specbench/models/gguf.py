"""Cache dequantised copies of GGUF files: transformers parses a GGUF file in many seconds, the copy loads in one.

Copies are in ``$XDG_CACHE_HOME/specbench`` (``~/.cache/specbench``), keyed by the file's sha256 and the version of
transformers, so they can be deleted at any time and are never out of date.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specbench.common import UsageError
from specbench.models import gguf_header
from specbench.models.memory import check_memory

# Larger models are not cached, so that copies do not fill the disk; they are dequantised on every load.
_LARGEST = 2 << 30

# Peak memory of dequantising: bytes per parameter (float32 and half of that again), and bytes for the vocabulary.
# Measured with 135 million parameters: 995 MiB.
_UNPACKING, _VOCABULARY = 6, 256 << 20


def check(file: Path) -> None:
    """Refuse a file that is damaged or too large, or that transformers would silently load as a different model.

    Raises:
        UsageError: the header is damaged, or the file has factors of rotary frequencies (Llama 3.1 and later), which
            transformers ignores.
        EnvironmentRefused: there is not enough memory to dequantise it.
    """
    header = gguf_header.read(file)
    gguf_header.check_text(header, file)
    check_memory(header.parameters * _UNPACKING + _VOCABULARY, torch.device("cpu"), file.name)
    if "rope_freqs.weight" in header.tensors:
        raise UsageError(
            f"cannot load {file.name}: it scales rotary frequencies (Llama 3.1 and later), which transformers ignores "
            "in GGUF files; give the model's folder or hub id"
        )


def folder_of(file: Path) -> Path:
    """Return the path of a GGUF file's copy, which may not exist yet."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256") if hasattr(hashlib, "file_digest") else _digest(opened)
    return root / "specbench" / f"{file.stem}-{digest.hexdigest()[:16]}-transformers-{version('transformers')}"


def _digest(opened: Any) -> Any:
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    while block := opened.read(1 << 20):
        digest.update(block)
    return digest


def keep(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save a dequantised model in the cache; without space or permission, skip it silently."""
    if folder.exists() or sum(p.nbytes for p in model.parameters()) > _LARGEST:
        return
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
        tokenizer.save_pretrained(draft)
        model.save_pretrained(draft)
        os.replace(draft, folder)  # atomic: a killed process leaves only its draft
    except OSError:
        pass
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
