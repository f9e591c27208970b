"""Merge PEFT adapters into their base models, and compute fingerprints of weights.

An adapter of ``specbench train`` has a ``card.json`` with the fingerprint of its base model: on other weights of the
same name it would silently make the model worse.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.common import (
    EnvironmentRefused,
    SpecbenchError,
    UsageError,
    damaged,
    one_line,
    read_json_object,
    short_number,
)
from specbench.models import checkpoint, weights
from specbench.models.memory import check_memory
from specbench.models.names import CARD
from specbench.models.stored import stored

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_MISSING = "Found missing adapter keys"  # start of PEFT's warning, after which it would use random values


def merged(model: Any, folder: Path, name: str) -> Any:
    """Merge an adapter into the weights of its base model, so that decoding is as fast as without an adapter.

    Args:
        model: the base, a transformers causal LM; its weights are changed.

    Raises:
        UsageError: the adapter was made for other weights or for another shape, is damaged, or is of a type that
            cannot be merged.
    """
    try:
        from peft import PeftModel  # takes a second to import, so only where there is an adapter
    except ImportError as error:
        raise EnvironmentRefused(f"cannot load adapter {name}: PEFT is not installed; run pip install peft") from error
    checkpoint.check_files(folder)
    _check(model, folder, name)
    _check_weights(folder, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings of PEFT and transformers
            warnings.filterwarnings("error", _MISSING, UserWarning)
            return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
        raise
    except Exception as error:  # a bad file may make PEFT raise any error
        reason = one_line(str(error), 160) or type(error).__name__
        raise UsageError(
            f"cannot merge adapter {name} into its base: {reason}; use a complete copy of an adapter for this base"
        ) from error


def _check_weights(folder: Path, name: str) -> None:
    """Check the header of an adapter's weights. PEFT alone would load pickles, and search missing files on the hub."""
    file, todo = folder / WEIGHTS, f"use a complete copy of adapter {name}"
    if not file.is_file():
        other = next(folder.glob("adapter_model.*"), None)
        if other is not None:
            raise UsageError(
                f"cannot load adapter {name}: its weights are only in {one_line(other.name, 80)}, a pickle, which can "
                f"run any code when it is read; give a copy with {WEIGHTS}"
            )
        raise UsageError(f"cannot load adapter {name}: it has no {WEIGHTS}; use a complete copy of it")
    stored = weights.headers([file], todo)
    check_memory(sum(4 * held.count for held in stored.values()), torch.device("cpu"), name)
    # PEFT allocates its matrices according to the configuration, before it reads the stored sizes.
    config = read_json_object(folder / CONFIG, todo)
    if config.get("layer_replication"):
        raise UsageError(
            f"cannot merge adapter {name} into its base: it repeats layers (layer_replication), which is not "
            "supported; choose another adapter"
        )
    widest = max((size for held in stored.values() for size in held.shape), default=0)
    ranks = config.get("rank_pattern")
    for rank in (config.get("r", 0), *(ranks.values() if isinstance(ranks, dict) else ())):
        if isinstance(rank, (int, float)) and rank > widest:
            raise damaged(folder / CONFIG, f"rank {short_number(rank)} is larger than every size of its tensors", todo)


def _check(model: Any, folder: Path, name: str) -> None:
    """Refuse an adapter whose card names another fingerprint of its base model."""
    file, todo = folder / CARD, f"use a complete copy of adapter {name}"
    if not file.exists():
        return
    trained = read_json_object(file, todo).get("base_fingerprints", {})
    if not isinstance(trained, dict) or not all(isinstance(sums, str) for sums in trained.values()):
        raise damaged(file, "its base_fingerprints do not map precisions to hashes", todo)
    here = fingerprints(model)
    other = [dtype for dtype in here if dtype in trained and here[dtype] != trained[dtype]]
    if other:
        raise UsageError(
            f"cannot merge adapter {name}: it was trained on other weights than this base has "
            f"(fingerprint {trained[other[0]][:12]}, here {here[other[0]][:12]} in {other[0]}); "
            "give the base that its card names, or train an adapter for this base"
        )


def fingerprint(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return a sha256 over name, shape and up to 1024 evenly spread values of every parameter.

    A hash of the files would differ between formats of the same weights and take minutes for large ones. A training
    step changes nearly every value, so samples are enough to distinguish checkpoints.

    Args:
        dtype: convert values to this precision first; None keeps the parameters' own.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(stored(model), key=lambda each: each[0]):
        sample = _sample(parameter).to(dtype or parameter.dtype)
        digest.update(f"{name}{tuple(parameter.shape)}{sample.dtype}".encode())
        digest.update(sample.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 1024)][:1024]


def fingerprints(model: Any) -> dict[str, str]:
    """Return the model's fingerprint in every precision in which its file could be loaded with known values.

    Weights in float32 hold the file's values exactly, so their rounded values in bfloat16 and float16 are known too.
    """
    own = model.dtype
    known = (torch.float32, torch.bfloat16, torch.float16) if own is torch.float32 else (own,)
    return {str(dtype).removeprefix("torch."): fingerprint(model, dtype) for dtype in known}
