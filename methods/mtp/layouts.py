"""Names of multi-token-prediction layers in checkpoints, and what each family means by them.

All families combine the target's last hidden state, after the final norm, with the embedding of the next token: both
are normalised, concatenated and projected, then one decoder layer of the target's kind and a norm follow, and the LM
head. They differ in names and in three choices:

==============  ============================  ==========  =================================================
layout          order in the projection       first row   what stands for the hidden state of a draft token
==============  ============================  ==========  =================================================
DeepSeek, GLM   embedding, hidden state       zero        the layer's output before the norm
MiMo            hidden state, embedding       zero        after the norm
Qwen            embedding, hidden state       as it is    after the norm
speculators     embedding, hidden state       as it is    after the norm
==============  ============================  ==========  =================================================

First row: the embedding at position 0 is replaced by zeros. Source: vLLM (``deepseek_mtp.py``, ``glm4_moe_mtp.py``,
``mimo_mtp.py``, ``qwen3_next_mtp.py``) and speculators (``models/mtp``). For DeepSeek's and GLM's layers, transformers
(``MtpLayer``) and SGLang (``deepseek_nextn.py``) feed the output after the norm back; transformers does not zero the
first row, and neither do some versions of SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Names and meaning of one family.

    Attributes:
        prefix: of all tensors of layer ``{layer}``, counted from 0; ``{depth}`` is that plus the target's layers.
        block: of the decoder layer's tensors, after the prefix; other names there belong to the decoder layer, too,
            unless they are among ``names``.
        names: name after the prefix -> the head's name.
    """

    prefix: str
    block: str
    names: Mapping[str, str]
    hidden_first: bool = False
    zero_first: bool = False
    feeds_norm: bool = True

    def start(self, layers: int, layer: int = 0) -> str:
        """Return the prefix of a layer; ``layers``: number of the target's layers."""
        return self.prefix.format(layer=layer, depth=layers + layer)

    @property
    def projection(self) -> str:
        """Name of the projection's weight, after the prefix."""
        return next(f"{own}.weight" for own, new in self.names.items() if new == "fc")

    def starts(self, stored: Collection[str], layers: int) -> list[str]:
        """Return the prefixes of the layers that a checkpoint has; ``layers``: number of the target's layers."""
        found: list[str] = []
        while (start := self.start(layers, len(found))) + self.projection in stored and start not in found:
            found.append(start)
        return found

    def named(self, name: str, start: str) -> str:
        """Return the head's name for a stored tensor."""
        rest = name.removeprefix(start)
        for own, new in self.names.items():
            if rest.startswith(f"{own}."):
                return f"{new}{rest.removeprefix(own)}"
        return f"block.{rest.removeprefix(self.block)}"


_PARTS = ("embedding_norm", "hidden_norm", "fc", "norm")
LAYOUTS: Mapping[str, Layout] = {
    "deepseek": Layout(
        prefix="model.layers.{depth}.",
        block="",
        names=dict(zip(("enorm", "hnorm", "eh_proj", "shared_head.norm"), _PARTS, strict=True))
        | {"shared_head.head": "lm_head", "embed_tokens": "embed_tokens"},
        zero_first=True,
        feeds_norm=False,
    ),
    "mimo": Layout(
        prefix="model.mtp_layers.{layer}.",
        block="",
        names=dict(zip(("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), _PARTS, strict=True)),
        hidden_first=True,
        zero_first=True,
    ),
    "qwen": Layout(
        prefix="mtp.",
        block="layers.0.",
        names=dict(zip(("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), _PARTS, strict=True)),
    ),
    "speculators": Layout(
        prefix="mtp_layers.{layer}.",
        block="",
        names=dict(zip(("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), _PARTS, strict=True)),
    ),
}


def layout_of(names: Iterable[str], layers: int) -> str | None:
    """Return the name of the layout that stored tensors have; None if there are no such tensors.

    ``layers``: number of the target's layers.
    """
    stored = set(names)
    for name, layout in LAYOUTS.items():
        if layout.starts(stored, layers):
            return name
    return None


_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def expert_of(name: str) -> tuple[str, int, str] | None:
    """Return (experts' module, index, product) of a tensor that belongs to one expert."""
    found = _EXPERT.fullmatch(name)
    return None if found is None else (found[1], int(found[2]), found[3])
