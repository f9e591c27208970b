"""Export a model as a transformers checkpoint, which vLLM loads too; read the weights back and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from specbench.common import UsageError, write_json_atomic
from specbench.models import checkpoint
from specbench.models.adapters import fingerprint
from specbench.models.export.exported import (
    WEIGHTS,
    Exported,
    differs,
    digest_of,
    drafted,
    precision_of,
    same_bits,
    sha256_of,
)
from specbench.models.loaded_model import ByteTokenizer, LoadedModel


def export_hf(model: LoadedModel, folder: Path, *, dtype: str) -> Exported:
    """Write a model into a folder: configuration, generation configuration, weights and tokenizer.

    Adapters were merged into their base when loaded, so they need no separate file. Dummy weights have no tokenizer:
    engines get token ids.

    Args:
        model: any family whose weights transformers stores under its parameters' names.
    """
    precision = precision_of(model, dtype)
    if model.model.is_remote_code():
        raise UsageError(
            f"cannot export {model.spec.name}: it needs Python code from its folder, which other engines do not have; "
            "give them that folder"
        )
    with drafted(folder) as draft:
        draft.mkdir()
        weights = _weights(model.model, precision)
        model.model.save_pretrained(draft, state_dict=dict(weights))
        _say_precision(draft / checkpoint.CONFIG, precision)
        if not isinstance(model.tokenizer, ByteTokenizer):
            model.tokenizer.save_pretrained(draft)
        files = sorted(draft.glob(f"*{WEIGHTS}"))
        _compare(files, weights, model)
        return Exported(
            path=folder,
            format="hf",
            dtype=str(precision).removeprefix("torch."),
            sha256=digest_of({file.name: sha256_of(file) for file in files}),
            bytes=sum(file.stat().st_size for file in files),
            fingerprint=fingerprint(model.model, precision),
        )


def _weights(model: Any, precision: torch.dtype) -> dict[str, Tensor]:
    """Return a model's rounded weights by name; a weight with two names stays one tensor, which is stored once."""
    rounded: dict[object, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return rounded.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().to(precision))

    return {name: once(tensor) for name, tensor in model.state_dict().items()}


def _say_precision(file: Path, precision: torch.dtype) -> None:
    """Set the precision in the configuration to that of the files, and remove a quantisation that was undone."""
    config = checkpoint.read_config(file)
    config.pop("quantization_config", None)
    write_json_atomic(file, {**config, "dtype": str(precision).removeprefix("torch.")})


def _compare(files: list[Path], weights: dict[str, Tensor], model: LoadedModel) -> None:
    """Read the files and compare every value with the model's."""
    missing = {id(tensor): name for name, tensor in weights.items()}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is not a dict
                if name not in weights:
                    raise UsageError(
                        f"cannot export {model.spec.name}: transformers stores {name} in another layout than the "
                        "model's, so they cannot be compared; give other engines the original checkpoint"
                    )
                read, wanted = opened.get_tensor(name), weights[name]
                if not same_bits(read, wanted.cpu()):
                    raise differs(file, name)
                missing.pop(id(wanted), None)
    if missing:
        raise differs(files[0].parent if files else Path(), min(missing.values()))
