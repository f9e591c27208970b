"""Quantise the linear layers of a loaded model with torchao, and describe how a model is quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from specbench.common import EnvironmentRefused, UsageError, one_line, unknown_name

#: Name of ``--quantize`` -> torchao's configuration. Inputs of the layers keep their precision.
QUANTISED: Mapping[str, str] = {
    "int8": "Int8WeightOnlyConfig",
    "int4": "Int4WeightOnlyConfig",
    "fp8": "Float8WeightOnlyConfig",
}

#: Attribute of a model whose checkpoint was quantised and whose weights are not: the checkpoint's method.
UNPACKED = "unpacked_from"


def quantize(model: Any, name: str) -> None:
    """Quantise every linear layer except the LM head, in place.

    Raises:
        UsageError: the name is unknown, the model is quantised already, or torchao cannot quantise it here.
        EnvironmentRefused: torchao is not installed.
    """
    if name not in QUANTISED:
        raise unknown_name("quantisation", name, QUANTISED)
    if (before := how(model)) is not None:
        raise UsageError(f"cannot use --quantize {name}: the model is quantised already ({before}); leave it out")
    try:
        from torchao import quantization
    except ImportError as error:
        raise EnvironmentRefused(
            f"cannot use --quantize {name}: torchao is not installed; pip install torchao"
        ) from error
    head = model.get_output_embeddings()
    config = getattr(quantization, QUANTISED[name])()

    def chosen(module: nn.Module, _: str) -> bool:
        return type(module) is nn.Linear and module is not head

    try:
        quantization.quantize_(model, config, filter_fn=chosen)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        why = one_line(str(error), 160) or type(error).__name__
        raise UsageError(f"cannot use --quantize {name} with this model on this device: torchao: {why}") from error


def how(model: Any) -> str | None:
    """Return how a model's linear layers are or were quantised, in words; None if they never were."""
    if unpacked := getattr(model, UNPACKED, None):
        return f"{unpacked}, unpacked"
    config = getattr(model.config, "quantization_config", None)
    if getattr(model, "hf_quantizer", None) is not None and config is not None:
        values = config if isinstance(config, dict) else config.to_dict()
        method = str(getattr(values.get("quant_method"), "value", values.get("quant_method")))
        bits = next((bits for bits in (4, 8) if values.get(f"load_in_{bits}bit") or values.get("bits") == bits), None)
        return f"{method}{f', {bits} bits' if bits else ''}"
    kinds = {type(p).__name__ for p in model.parameters() if is_traceable_wrapper_subclass(p)}
    return f"torchao, {', '.join(sorted(kinds))}" if kinds else None
