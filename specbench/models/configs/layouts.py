"""Read checkpoints of published diffusion language models as the transformers family that computes the same forward.

Their repositories bring their own model code, which is never run here: their layers are those of Qwen2, Qwen3 or Llama,
and only names differ. What makes them diffusion models is how they are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.common import UsageError, damaged, one_line

_TODO = "use a complete copy of the model, or choose another"


@dataclass(frozen=True)
class Layout:
    """A published layout.

    Attributes:
        family: transformers' ``model_type`` with the same forward.
        predicts_next: the scores at a position are for the next token, as in an autoregressive model, instead of for
            the masked token at the position itself. Decoders read it from the loaded model's configuration.
        mask: the mask token, if only the tokenizer knows its id and not as its mask token.
        tokenizer: transformers' type of its tokenizer; None leaves the choice to the tokenizer's own configuration.
        fields: the family's field -> the layout's field; empty if the layout has the family's fields.
        fixed: values that the family's forward implies -> the layout's own defaults.
        weights: pattern of the layout's weight names -> the family's names, as in transformers' ``key_mapping``.
    """

    family: str
    predicts_next: bool
    mask: str | None = None
    tokenizer: str | None = "qwen2"
    fields: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    def renamed(self, name: str) -> str:
        """Return the family's name of a weight."""
        for pattern, target in self.weights.items():
            name = re.sub(pattern, target, name)
        return name


_LLADA_LAYER = {
    "attn_norm": "input_layernorm", "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj", "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "ff_out": "mlp.down_proj",
}  # fmt: skip

#: ``model_type`` of a config.json -> its layout.
LAYOUTS = {
    "Fast_dLLM_Qwen": Layout("qwen2", predicts_next=True, mask="|<MASK>|"),
    "Dream": Layout("qwen2", predicts_next=True),
    "sdar": Layout("qwen3", predicts_next=False),
    "sdar_moe": Layout("qwen3_moe", predicts_next=False),
    "llada": Layout(
        "llama",
        predicts_next=False,
        tokenizer=None,
        fields={
            "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads", "intermediate_size": "mlp_hidden_size", "vocab_size": "embedding_size",
            "max_position_embeddings": "max_sequence_length", "tie_word_embeddings": "weight_tying",
        },
        fixed={
            "block_type": ("llama", "sequential"), "layer_norm_type": ("rms", "default"), "rope": (True, False),
            "activation_type": ("silu", "swiglu"), "alibi": (False, False), "attention_layer_norm": (False, False),
            "include_bias": (False, False), "include_qkv_bias": (False, False), "input_emb_norm": (False, False),
            "scale_logits": (False, False),
        },
        weights={
            r"^model\.transformer\.wte\.": "model.embed_tokens.",
            r"^model\.transformer\.ln_f\.": "model.norm.",
            r"^model\.transformer\.ff_out\.": "lm_head.",
            **{
                rf"^model\.transformer\.blocks\.(\d+)\.{theirs}\.": rf"model.layers.\1.{ours}."
                for theirs, ours in _LLADA_LAYER.items()
            },
        },
    ),
}  # fmt: skip


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """Return the layout of a config.json; None for transformers' own families."""
    kind = config.get("model_type")
    return LAYOUTS.get(kind) if isinstance(kind, str) else None


def translated(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a configuration with the fields of transformers' family; one of such a family stays as it is.

    Raises:
        UsageError: a field is missing, or has a value with which the forward would differ.
    """
    layout = layout_of(config)
    if layout is None:
        return config
    for name, (needed, default) in layout.fixed.items():
        if (held := config.get(name, default)) != needed:
            raise UsageError(
                f"cannot load {one_line(str(file), 400)}: its {name} is {one_line(repr(held), 40)}, and only "
                f"{needed!r} is supported; choose another model"
            )
    own = {name: value for name, value in config.items() if name not in ("architectures", "auto_map", *layout.fixed)}
    for name, theirs in layout.fields.items():
        if own.get(theirs) is None and (name, theirs) != ("num_key_value_heads", "n_kv_heads"):
            raise damaged(file, f"field '{theirs}' is missing", _TODO)
        own[name] = own.pop(theirs, None)
    return {**own, "model_type": layout.family, "predicts_next": layout.predicts_next}
