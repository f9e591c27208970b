"""Options that recipes have in common: the loop's, and those of weights that are fine-tuned."""

from __future__ import annotations

from typing import Literal

from specbench.options import Options, option

#: Options that may differ when a training goes on: they are no part of what is learnt.
FREE = frozenset({"log_every", "eval_every", "save_every", "watched", "activation_checkpointing"})


class LoopOptions(Options):
    """Options of :func:`specbench.training.loop.fit`."""

    epochs: float = option(1.0, help="passes over the texts", gt=0)
    steps: int = option(0, help="steps in place of epochs; 0 is by epochs", ge=0)
    batch: int = option(1, help="texts of a step, on each device", ge=1)
    accumulation: int = option(1, help="batches whose gradients make one step", ge=1)
    lr: float = option(1e-4, help="learning rate, after warm-up and before its cosine", gt=0)
    warmup: float = option(0.03, help="share of the steps", ge=0, le=1)
    weight_decay: float = option(0.0, help="of AdamW", ge=0)
    beta1: float = option(0.9, help="of AdamW", ge=0, lt=1)
    beta2: float = option(0.999, help="of AdamW", ge=0, lt=1)
    clip: float = option(1.0, help="largest norm of the gradient", gt=0)
    bf16: bool | None = option(None, help="products in bfloat16; default is on CUDA, and on CPUs that have it")
    log_every: int = option(10, help="steps", ge=1)
    eval_every: int = option(200, help="steps between looks at held-out texts", ge=1)
    save_every: int = option(200, help="steps between checkpoints", ge=1)


class WeightOptions(LoopOptions):
    """Options of :func:`specbench.training.finetune.finetune`."""

    full: bool = option(False, help="train all weights and keep a checkpoint; default is a LoRA adapter")
    lora_rank: int = option(16, "r", help="of the adapter", ge=1)
    lora_alpha: float = option(32.0, help="of the adapter: its part is scaled by alpha/rank", gt=0)
    lora_dropout: float = option(0.0, help="of the adapter's input", ge=0, lt=1)
    lora_targets: str = option("all-linear", help="names of layers, joined by +; all-linear leaves the LM head out")
    activation_checkpointing: bool = option(
        False, "checkpointing", help="compute activations again in the backward pass: less memory, a third more time"
    )
    attention: Literal["auto", "sdpa", "eager", "flex_attention"] = option(
        "auto", help="of training; auto: flex_attention on CUDA where blocks are masked, eager for bfloat16 on a CPU"
    )
    watched: int = option(8, help="held-out prompts decoded at each look; before and after training all are", ge=1)
