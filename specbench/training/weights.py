"""Which weights of the target a recipe trains: a LoRA adapter's, or all; and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer

from specbench.errors import UsageError
from specbench.training.settings import WeightOptions

_KEPT = torch.bfloat16  # of an adapter, as most published ones are


def trainable(model: Any, options: WeightOptions, base: str, seed: int) -> Any:
    """The model with the weights that are to be trained: in float32, and the only ones with a gradient.

    Args:
        model: a transformers causal LM without any; it is changed.
        options: adapter or full, and the adapter's shape.
        base: what ``--model`` called it, so that the adapter finds it again.
        seed: of an adapter's initial weights.

    Returns:
        The model itself, or one of PEFT's around it.

    Raises:
        UsageError: the adapter's targets are no layers of this model.
    """
    if options.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if options.full:
        return model.float().requires_grad_(True)
    names = options.lora_targets
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]  # a float divides as well
        lora_dropout=options.lora_dropout,
        target_modules=names if names == "all-linear" else names.split("+"),
        task_type="CAUSAL_LM",
    )
    # Decided by the seed alone, whatever was drawn before.
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            wrapped = get_peft_model(model, config)
        except ValueError as error:
            reason = " ".join(str(error).split())[:160]
            raise UsageError(f"lora_targets={names} does not go with this model: {reason}") from error
    wrapped.peft_config["default"].base_model_name_or_path = base
    return wrapped


@contextmanager
def as_decoded(model: Any) -> Iterator[Any]:
    """The transformers model with what was learnt so far in its weights, for as long as this lasts.

    Afterwards the weights are what they were, bit by bit: subtracting an adapter's part again would not be exact, and a
    training that is looked at more often would end elsewhere.
    """
    if not isinstance(model, PeftModel):
        yield model
        return
    own = []
    try:
        with torch.no_grad(), model.disable_adapter():
            for layer in model.modules():
                if isinstance(layer, LoraLayer):
                    weight: Any = layer.get_base_layer().weight
                    delta: Any = layer.get_delta_weight
                    own.append((weight, weight.data))
                    weight.data = weight.data + delta("default").to(weight.dtype)
            yield model.get_base_model()
    finally:
        for weight, before in own:
            weight.data = before


def settle(model: Any) -> None:
    """Rounds an adapter to what is kept of it, so that what is measured is what is kept."""
    if isinstance(model, PeftModel):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(_KEPT).to(parameter.dtype)


def keep(model: Any, tokenizer: Any, dtype: torch.dtype, folder: Path) -> None:
    """Writes what ``--model`` loads: an adapter in bfloat16, or a checkpoint.

    Args:
        model: from :func:`trainable`.
        tokenizer: goes with a checkpoint.
        dtype: of a checkpoint.
        folder: receives the files.
    """
    if isinstance(model, PeftModel):
        kept = {name: value.to(_KEPT) for name, value in model.state_dict().items() if "lora_" in name}
        model.save_pretrained(str(folder), state_dict=kept, save_embedding_layers=False)
        return
    state = {name: value.to(dtype) for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=state)
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
