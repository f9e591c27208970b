"""The head of a multi-token-prediction layer: the target's own decoder layer between two norms and a projection.

DeepSeek-AI 2024, arXiv:2412.19437, §2.2. The decoder layer is transformers' class for the target's family, created from
the target's configuration, so that its attention and experts are the family's; its attention runs in the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from specbench.common import UsageError, one_line
from specbench.engine import PLAIN, ExactRotary, Pieces, ShapeRecorder
from specbench.heads import Head, HeadConfig
from specbench.methods.mtp.layouts import LAYOUTS, Layout, expert_of


@dataclass(frozen=True, kw_only=True)
class MtpConfig(HeadConfig):
    """Configuration of an MTP layer for a target.

    Attributes:
        layout: names and meaning, see :mod:`specbench.methods.mtp.layouts`.
        layer: transformers' configuration of the target's text model with the MTP layers only, of full attention.
        classes: of the decoder layer and of the norms.
        rotary: the rotary embedding.
    """

    layout: Layout
    layer: Any
    classes: tuple[Any, Any]
    rotary: Any

    @classmethod
    def of(cls, model: Any, layout: str, feed: str = "auto", layers: int = 1) -> MtpConfig:
        """Return the configuration for a target, with its family's layer and its own rotary embedding.

        ``feed``: what a draft token's hidden state is, see the options; ``layers``: number of layers.
        """
        text = model.config.get_text_config()
        found = LAYOUTS[layout]
        if feed != "auto":
            found = replace(found, feeds_norm=feed == "norm")
        layer = copy.deepcopy(text)
        layer.num_hidden_layers = layers
        for name, last in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse")):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, [last] * layers)
        if hasattr(layer, "first_k_dense_replace"):
            layer.first_k_dense_replace = 0  # dense layers come before those with experts
        eps = getattr(text, "rms_norm_eps", None) or 1e-6
        decoder = model.get_decoder()
        like = decoder.layers[-1]
        classes = type(like), type(getattr(like, "input_layernorm", decoder.norm))
        own: dict[str, Any] = {"layer": layer, "classes": classes, "rotary": decoder.rotary_emb}
        return cls.for_target(text, taps=(text.num_hidden_layers,), rms_norm_eps=eps, layout=found, **own)

    @classmethod
    def plain(cls, model: Any, layout: str) -> MtpConfig:
        """Return the configuration of a Llama layer, for an untrained layer of any target."""
        text = model.config.get_text_config()
        own: dict[str, Any] = {"layer": None, "classes": (LlamaDecoderLayer, LlamaRMSNorm), "rotary": None}
        config = cls.for_target(text, taps=(text.num_hidden_layers,), layout=LAYOUTS[layout], **own)
        layer = config.layer_config(LlamaConfig)
        return replace(config, layer=layer, rotary=ExactRotary(layer).to(model.device))


class MtpLayer(nn.Module):
    """One layer. Shapes: B sequences, R rows, H the target's hidden size.

    Args:
        index: which of the layers it is, counted from 0; its keys and values have this number in the cache.
        embeds: the checkpoint's embedding for this layer differs from the target's.
        scores: its LM head differs from the target's.
    """

    def __init__(self, config: MtpConfig, index: int = 0, *, embeds: bool = False, scores: bool = False) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        block, norm = config.classes
        self.layout = config.layout
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if embeds else None
        self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False) if scores else None
        self.embedding_norm, self.hidden_norm, self.norm = (norm(hidden, eps=eps) for _ in range(3))
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.block: Any = block(config.layer, index)
        rotary = config.rotary
        kinds = {"layer_type": "full_attention"} if "layer_type" in signature(rotary.forward).parameters else {}
        self._turn = lambda rows, positions: rotary(rows, positions, **kinds)  # not a module of the head

    def forward(self, before: Tensor, embedded: Tensor, positions: Tensor, **cache: Any) -> Tensor:
        """Run rows through the projection and the decoder layer.

        ``before`` [B, R, H]: the target's hidden state of the token before each row's token, or :meth:`fed_back` of a
        draft's parent or of the layer before; ``embedded`` [B, R, H]: embeddings of the rows' tokens; ``cache``: what
        transformers' layers get besides. Returns [B, R, H], before the norm.
        """
        if self.layout.zero_first:
            embedded = embedded.masked_fill(positions[..., None] == 0, 0)
        parts = [self.embedding_norm(embedded), self.hidden_norm(before)]
        rows = self.fc(torch.cat(parts[::-1] if self.layout.hidden_first else parts, dim=-1))
        given = {"attention_mask": None, "position_ids": positions, "use_cache": True, **cache}
        outputs: Tensor = self.block(rows, position_embeddings=self._turn(rows, positions), **given)
        return outputs

    def fed_back(self, outputs: Tensor) -> Tensor:
        """The input that replaces hidden states for draft tokens under each row, from :meth:`forward`'s [B, R, H]."""
        found: Tensor = self.norm(outputs) if self.layout.feeds_norm else outputs
        return found


class MtpHead(Head):
    """The layers of a checkpoint that draft.

    Args:
        tables: for each layer, whether the checkpoint's embedding and LM head of it differ from the target's.
    """

    CONFIG = MtpConfig

    def __init__(self, config: MtpConfig, *, tables: Sequence[tuple[bool, bool]] = ((False, False),)) -> None:
        super().__init__(config)
        self.depths = nn.ModuleList(
            MtpLayer(config, index, embeds=embeds, scores=scores) for index, (embeds, scores) in enumerate(tables)
        )
        self.finish()

    @property
    def first(self) -> MtpLayer:
        """The first layer, which reads the target's hidden states."""
        layer = self.depths[0]
        assert isinstance(layer, MtpLayer)
        return layer

    @property
    def embed_tokens(self) -> Any:
        """The first layer's embedding; None is the target's."""
        return self.first.embed_tokens

    @property
    def lm_head(self) -> Any:
        """The first layer's LM head; None is the target's."""
        return self.first.lm_head

    @property
    def features(self) -> int:
        return int(self.config.hidden_size)

    def set_attn_implementation(self, name: str) -> None:
        """Choose the attention function of the decoder layer."""
        self.config.layer._attn_implementation = name

    @torch.inference_mode()
    def shapes(self) -> dict[int, tuple[int, int, int]]:
        seen, own = ShapeRecorder(), self.config.layer._attn_implementation
        self.set_attn_implementation("eager")
        row = torch.zeros(1, 1, self.config.hidden_size, dtype=self.dtype, device=self.device)
        for layer in self.depths:
            layer(row, row, torch.zeros(1, 1, dtype=torch.int64, device=self.device), past_key_values=seen)
        self.set_attn_implementation(own)
        return seen.shapes

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, before: Tensor, embedded: Tensor, positions: Tensor, **cache: Any) -> Tensor:
        """:meth:`MtpLayer.forward` of the first layer."""
        outputs: Tensor = self.first(before, embedded, positions, **cache)
        return outputs

    def fed_back(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """:meth:`MtpLayer.fed_back` of the first layer."""
        return self.first.fed_back(outputs)

    def scored(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """What the LM head reads, from :meth:`forward`'s [B, R, H]."""
        normed: Tensor = self.first.norm(outputs)
        return normed

    @classmethod
    def checked(cls, model: Any) -> None:
        """Refuse a target whose decoder layers cannot stand alone.

        Raises:
            UsageError: names the target's class.
        """
        try:
            with torch.device("meta"):
                cls(MtpConfig.of(model, "deepseek"))
        except Exception as error:  # layers of other families may need any further argument
            raise UsageError(
                f"cannot draft with mtp: the layers of {type(model).__name__} cannot be created alone: "
                f"{one_line(str(error), 120)}; choose another model"
            ) from error


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge tensors of single experts into transformers': gate_up_proj [E, 2 × I, H] and down_proj [E, H, I]."""
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    for name, tensor in tensors.items():
        if (expert := expert_of(name)) is None:
            found[name] = tensor
        else:
            module, index, product = expert
            experts.setdefault(module, {})[index, product] = tensor
    for module, parts in experts.items():
        count = 1 + max(index for index, _ in parts)
        for index in range(count):
            for product in ("gate", "up", "down"):
                if (index, product) not in parts:
                    raise UsageError(f"{module}.{index}.{product}_proj.weight is missing")
        ups = [torch.cat([parts[index, "gate"], parts[index, "up"]]) for index in range(count)]
        found[f"{module}.gate_up_proj"] = torch.stack(ups)
        found[f"{module}.down_proj"] = torch.stack([parts[index, "down"] for index in range(count)])
    return found
