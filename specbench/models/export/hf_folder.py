"""A checkpoint as transformers writes one, which vLLM loads too; its weights read back and compared."""

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
    """Writes a model into a folder: configuration, generation configuration, weights and tokenizer.

    An adapter is merged into its base when it is loaded, so it needs no file of its own. Dummy weights have no
    tokenizer: engines are given ids of them.

    Args:
        model: of any family whose weights transformers stores under the names that it computes with.
    """
    precision = precision_of(model, dtype)
    if model.model.is_remote_code():
        raise UsageError(
            f"{model.spec.name} is computed by code that comes with it, which other engines have not; give them its "
            "own folder"
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
    """What a checkpoint holds of a model, rounded; weights under two names stay one tensor, and are stored once."""
    rounded: dict[object, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return rounded.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().to(precision))

    return {name: once(tensor) for name, tensor in model.state_dict().items()}


def _say_precision(file: Path, precision: torch.dtype) -> None:
    """The configuration says what the files hold: not what the model was loaded in, or unpacked from."""
    config = checkpoint.read_config(file)
    config.pop("quantization_config", None)
    write_json_atomic(file, {**config, "dtype": str(precision).removeprefix("torch.")})


def _compare(files: list[Path], weights: dict[str, Tensor], model: LoadedModel) -> None:
    """Reads files and holds every value against the model's."""
    missing = {id(tensor): name for name, tensor in weights.items()}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                if name not in weights:
                    raise UsageError(
                        f"transformers stores {name} of {model.spec.name}, which the model holds in another layout, so "
                        "that the two cannot be compared; give other engines the checkpoint itself"
                    )
                read, wanted = opened.get_tensor(name), weights[name]
                if not same_bits(read, wanted.cpu()):
                    raise differs(file, name)
                missing.pop(id(wanted), None)
    if missing:
        raise differs(files[0].parent if files else Path(), min(missing.values()))
