"""Which weights of the target a recipe trains: a LoRA adapter's, or all; and what is kept of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from specbench.errors import UsageError
from specbench.training.settings import WeightOptions

_KEPT = torch.bfloat16  # of an adapter, as most published ones are


class Weights:
    """The target in training: what learns has a gradient and is in float32, everything else has none.

    Args:
        model: a transformers causal LM without any gradient; it is changed.
        options: adapter or full, and the adapter's shape.
        base: what ``--model`` called it, so that the adapter finds it again.
        seed: of an adapter's initial weights.
        half: products are in bfloat16, so what does not learn may be too: it is then not rounded anew in every forward.

    Attributes:
        model: the transformers model, or PEFT's around it.

    Raises:
        UsageError: the adapter's targets are no layers of this model.
    """

    def __init__(self, model: Any, options: WeightOptions, base: str, seed: int, half: bool = False) -> None:
        self._dtype: torch.dtype = model.dtype
        self._full = options.full
        self._exact: list[tuple[nn.Parameter, Tensor]] = []
        if options.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if options.full:
            self.model: Any = model.float().requires_grad_(True)
            return
        self.model = _adapted(model, options, seed)
        self.model.peft_config["default"].base_model_name_or_path = base
        if half:
            for parameter in self.model.parameters():
                if not parameter.requires_grad:
                    self._exact.append((parameter, parameter.data))
                    parameter.data = parameter.data.to(torch.bfloat16)

    @contextmanager
    def as_decoded(self) -> Iterator[Any]:
        """The transformers model with what was learnt so far in its weights, for as long as this lasts.

        Afterwards the weights are what they were, bit by bit: subtracting an adapter's part again would not be exact,
        and a training that is looked at more often would end elsewhere.
        """
        if self._full:
            yield self.model
            return
        own = []

        def put(parameter: Any, value: Tensor) -> None:
            own.append((parameter, parameter.data))
            parameter.data = value

        try:
            with torch.no_grad(), self.model.disable_adapter():
                for parameter, exact in self._exact:
                    put(parameter, exact)
                adapted: list[Any] = [layer for layer in self.model.modules() if isinstance(layer, LoraLayer)]
                for layer in adapted:
                    weight = layer.get_base_layer().weight
                    put(weight, weight.data + layer.get_delta_weight("default").to(weight.dtype))
                yield self.model.get_base_model()
        finally:
            for parameter, before in reversed(own):
                parameter.data = before

    def settle(self) -> None:
        """Rounds what was learnt to what is kept of it, so that what is measured is what is kept."""
        kept = self._dtype if self._full else _KEPT
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(kept).to(parameter.dtype)

    def keep(self, folder: Path, tokenizer: Any) -> None:
        """Writes what ``--model`` loads: an adapter in bfloat16, or a checkpoint in the target's own precision.

        Args:
            folder: receives the files.
            tokenizer: goes with a checkpoint.
        """
        if not self._full:
            kept = {name: value.to(_KEPT) for name, value in self.model.state_dict().items() if "lora_" in name}
            self.model.save_pretrained(str(folder), state_dict=kept, save_embedding_layers=False)
            return
        self.model.to(self._dtype).save_pretrained(folder)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)


def _adapted(model: Any, options: WeightOptions, seed: int) -> Any:
    """The model with a LoRA adapter around its layers, which the seed alone decides."""
    names = options.lora_targets
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]  # a float divides as well
        lora_dropout=options.lora_dropout,
        target_modules=names if names == "all-linear" else names.split("+"),
        task_type="CAUSAL_LM",
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by a name that it will lose
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            reason = " ".join(str(error).split())[:160]
            raise UsageError(f"lora_targets={names} does not go with this model: {reason}") from error
