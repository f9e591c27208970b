"""GGUF files unpacked once: parsing one takes transformers many seconds, loading the same weights plain takes one.

The copy lies under ``$XDG_CACHE_HOME/specbench`` (``~/.cache/specbench``), keyed by the file's sha256 and the version
of transformers that unpacked it, so it can be deleted at any time and is never out of date.
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

# A larger model would fill a disk unasked; it is unpacked in memory on every load.
_LARGEST = 2 << 30

# Bytes of memory that unpacking takes at its peak: float32 and half of that again for each parameter, and the
# vocabulary's; measured on 135 million parameters: 995 MiB.
_UNPACKING, _BESIDE = 6, 256 << 20


def check(file: Path) -> None:
    """Refuses a file that is damaged or too large, or of which transformers would make another model without a word.

    Raises:
        UsageError: its header is damaged, or factors of its rotary frequencies, as Llama 3.1 and later have them, would
            be left out.
    """
    header = gguf_header.read(file)
    gguf_header.check_text(header, file)
    check_memory(header.parameters * _UNPACKING + _BESIDE, torch.device("cpu"), file.name)
    if "rope_freqs.weight" in header.tensors:
        raise UsageError(
            f"{file.name} scales its rotary frequencies, as Llama 3.1 and later do, which transformers leaves out when "
            "it reads a GGUF file; give the model's folder or hub id"
        )


def folder_of(file: Path) -> Path:
    """Where the unpacked copy of a GGUF file is, or would be."""
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
    """Saves an unpacked model for the next time. Best effort: without space or permission there is just no copy."""
    if folder.exists() or sum(p.nbytes for p in model.parameters()) > _LARGEST:
        return
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
        tokenizer.save_pretrained(draft)
        model.save_pretrained(draft)
        os.replace(draft, folder)  # complete or not there: a killed process leaves only its draft
    except OSError:
        pass
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
