"""Adapters as PEFT writes them, merged into the weights that they were made for.

An adapter of ours brings a ``card.json`` with the weights it was trained on: on other weights of the same name it would
be silently worse than none.
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

CARD = "card.json"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_MISSING = "Found missing adapter keys"  # how PEFT's warning begins; it would go on with noise in their place


def merged(model: Any, folder: Path, name: str) -> Any:
    """The model with an adapter's part added to its weights: as fast as without.

    Args:
        model: the base, a transformers causal LM; its weights are changed.

    Raises:
        UsageError: it was made for other weights or for a model of another shape, is damaged, or is of a kind that
            cannot be merged.
    """
    try:
        from peft import PeftModel  # here: it takes a second, which only adapters are worth
    except ImportError as error:
        raise EnvironmentRefused(f"{name} is an adapter and PEFT is not installed; pip install peft") from error
    checkpoint.check_files(folder)
    _check(model, folder, name)
    _check_weights(folder, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations between PEFT and transformers
            warnings.filterwarnings("error", _MISSING, UserWarning)
            return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
        raise
    except Exception as error:  # PEFT lets through whatever a file makes of it
        reason = one_line(str(error), 160) or type(error).__name__
        raise UsageError(f"adapter {name} does not go onto its base: {reason}") from error


def _check_weights(folder: Path, name: str) -> None:
    """Looks at an adapter's weights by their header; PEFT would take a pickle, and look for missing ones on the hub."""
    file, todo = folder / WEIGHTS, f"take a whole copy of adapter {name}"
    if not file.is_file():
        other = next(folder.glob("adapter_model.*"), None)
        if other is not None:
            raise UsageError(
                f"adapter {name} has its weights in {one_line(other.name, 80)} alone, and a pickle can run anything "
                f"when it is read; give a copy with {WEIGHTS}"
            )
        raise UsageError(f"adapter {name} has no weights (no {WEIGHTS} in it); take a whole copy of it")
    stored = weights.headers([file], f"adapter {name} does not go onto its base: {todo}")
    check_memory(sum(4 * held.count for held in stored.values()), torch.device("cpu"), name)
    # PEFT makes its matrices by the configuration, before it reads their sizes.
    config = read_json_object(folder / CONFIG, todo)
    if config.get("layer_replication"):
        raise UsageError(f"adapter {name} does not go onto its base: it repeats layers, so it is no adapter of weights")
    widest = max((size for held in stored.values() for size in held.shape), default=0)
    ranks = config.get("rank_pattern")
    for rank in (config.get("r", 0), *(ranks.values() if isinstance(ranks, dict) else ())):
        if isinstance(rank, (int, float)) and rank > widest:
            raise damaged(folder / CONFIG, f"a rank of {short_number(rank)}, more than its tensors have", todo)


def _check(model: Any, folder: Path, name: str) -> None:
    """Compares the base with the one it was trained on, where a card says which that was."""
    file, todo = folder / CARD, f"take a whole copy of adapter {name}"
    if not file.exists():
        return
    trained = read_json_object(file, todo).get("base_fingerprints", {})
    if not isinstance(trained, dict) or not all(isinstance(sums, str) for sums in trained.values()):
        raise damaged(file, "its base_fingerprints are no sums by precision", todo)
    here = fingerprints(model)
    other = [dtype for dtype in here if dtype in trained and here[dtype] != trained[dtype]]
    if other:
        raise UsageError(
            f"adapter {name} was trained on other weights than those here under its base's name "
            f"(fingerprint {trained[other[0]][:12]}, here {here[other[0]][:12]} in {other[0]}); "
            "give it the base that its card names, or train one for these"
        )


def fingerprint(model: Any, dtype: torch.dtype | None = None) -> str:
    """sha256 over name, shape and up to 1024 evenly spread values of every parameter.

    A hash of the files would differ between formats of the same weights and take minutes for large ones; any training
    step changes nearly every value, so samples tell checkpoints apart.

    Args:
        dtype: of the values, where it is not the parameters' own.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        sample = _sample(parameter).to(dtype or parameter.dtype)
        digest.update(f"{name}{tuple(parameter.shape)}{sample.dtype}".encode())
        digest.update(sample.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 1024)][:1024]


def fingerprints(model: Any) -> dict[str, str]:
    """The fingerprint by precision: that of the model, and those that another load of the same file would have.

    Weights in float32 are what was in the file, or were made from it without loss; what they round to is known.
    """
    own = model.dtype
    known = (torch.float32, torch.bfloat16, torch.float16) if own is torch.float32 else (own,)
    return {str(dtype).removeprefix("torch."): fingerprint(model, dtype) for dtype in known}
