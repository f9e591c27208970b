"""A head's ``config.json``: sizes, tapped layers, block, and whether its rows look ahead. No torch.

The published heads agree on the parameters and not on the names of what is not a parameter, so each is read under all
the names it has had (JetSpec ``jetspec/models/draft_head.py``; DFlash ``dflash/model.py``; NeMo and vLLM's readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import UsageError
from specbench.common.reading import fitted

_NESTED = ("jetspec_config", "dflash_config")
_CAUSAL = ("causal_head", "causal", "is_causal")
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# Types whose frequencies do not depend on the length of the text: a captured pass could not follow it.
_ROPES = ("default", "linear", "yarn", "llama3")
_LARGEST = 1 << 24  # of a size: beyond it products of two no longer fit where they are counted


def _size(most: int = _LARGEST) -> Any:
    return Field(None, ge=1, le=most)


class _Published(BaseModel):
    """Types of what a published ``config.json`` may say, under all names; there is more in it."""

    model_config = ConfigDict(strict=True)

    hidden_size: int | None = _size()
    intermediate_size: int | None = _size()
    num_hidden_layers: int | None = _size(1024)
    num_attention_heads: int | None = _size()
    num_key_value_heads: int | None = _size()
    head_dim: int | None = _size()
    num_target_layers: int | None = _size(1 << 16)
    block_size: int | None = Field(None, ge=0, le=1 << 16)
    mask_token_id: int | None = Field(None, ge=0)
    target_layer_ids: list[int] | None = None
    causal_head: bool | None = None
    causal: bool | None = None
    is_causal: bool | None = None
    rms_norm_eps: float | None = Field(None, gt=0)
    hidden_act: str | None = None
    attention_bias: bool | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    max_position_embeddings: int | None = None
    vocab_size: int | None = Field(None, ge=0)
    draft_vocab_size: int | None = Field(None, ge=0, le=_LARGEST)
    rope_theta: float | None = Field(None, gt=0)
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class HeadConfig:
    """What a head is, beside its weights.

    Attributes:
        block_size: rows of a block S, the anchor included; it drafts S - 1 tokens.
        mask_token_id: token that fills a block's rows behind the anchor; the target's embedding of it is used.
        target_layer_ids: layers of the target, from 0, whose outputs it reads.
        num_target_layers: of the target it was made for.
        causal: a row sees the rows before it (JetSpec), not all of its block (DFlash).
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim: its own
            layers. The hidden size is the target's.
        rms_norm_eps, hidden_act, attention_bias: as in Qwen3.
        rope: ``rope_type``, ``rope_theta`` and what the type needs.
        max_position_embeddings, vocab_size: for the record; neither makes a parameter.
        layer_types: "full_attention" or "sliding_attention" of each layer; empty where none slides.
        sliding_window: of the layers that slide.
        draft_vocab_size: tokens that it can draft; 0 is the target's whole vocabulary. With fewer, its file says which
            they are in ``d2t``, as EAGLE-3's heads do, and a pass reads only their rows of the target's LM head.
    """

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    causal: bool
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    max_position_embeddings: int
    vocab_size: int
    hidden_act: str = "silu"
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    draft_vocab_size: int = 0

    def __post_init__(self) -> None:
        """Refuses what no pass can run.

        Raises:
            UsageError: says what.
        """
        if self.block_size < 2:
            raise UsageError(f"a block of {self.block_size} drafts nothing; the head's block_size has to be 2 or more")
        if not self.target_layer_ids:
            raise UsageError("the head taps no layer of its target; its target_layer_ids are empty")
        last = self.num_target_layers - 1
        for layer in self.target_layer_ids:
            if layer == last:
                # transformers gives it after the final norm and other engines before: whose features it learnt from
                # cannot be known.
                raise UsageError(
                    f"the head taps the last layer of its target ({layer}), which stands for two different outputs; "
                    f"use one that taps layers 0 to {last - 1}"
                )
            if not 0 <= layer < last:
                raise UsageError(f"the head taps layer {layer} of a target of {self.num_target_layers} layers")
        kind = self.rope.get("rope_type", "default")
        if kind not in _ROPES:
            raise UsageError(f"the head has '{kind}' rope, which is not expressed yet; known: {', '.join(_ROPES)}")
        if self.layer_types and not self.causal:
            raise UsageError("the head has sliding-window layers and looks ahead, which is not expressed yet")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], num_target_layers: int | None = None) -> HeadConfig:
        """A configuration from a published ``config.json``.

        Args:
            values: its content. What is about the block may stand at the top or under ``dflash_config`` or
                ``jetspec_config``; ``causal_head``, ``causal`` and ``is_causal`` are one, and without it the head is
                DFlash's, which looks ahead.
            num_target_layers: of the target, for a file that does not say.

        Raises:
            UsageError: something is missing, or cannot be run.
        """
        found = dict(values)
        for nested in _NESTED:
            inner = values.get(nested)
            if isinstance(inner, Mapping):
                found.update(inner)
        known = fitted(_Published, found, "the head's config.json", "take a whole copy of the head")
        found = {name: value for name, value in known.model_dump().items() if value is not None}
        layers = int(found.get("num_target_layers") or num_target_layers or 0)
        missing = [name for name in (*_SIZES, "block_size", "mask_token_id") if found.get(name) is None]
        missing += [] if layers else ["num_target_layers"]
        if missing:
            raise UsageError(f"the head's config.json has no {', '.join(missing)}; it is no JetSpec or DFlash head")
        heads, hidden, depth = found["num_attention_heads"], found["hidden_size"], found["num_hidden_layers"]
        kinds = tuple(found.get("layer_types") or ())
        slides = "sliding_attention" in kinds
        return cls(
            block_size=int(found["block_size"]),
            mask_token_id=int(found["mask_token_id"]),
            target_layer_ids=tuple(found.get("target_layer_ids") or build_target_layer_ids(layers, depth)),
            num_target_layers=layers,
            causal=any(bool(found.get(name)) for name in _CAUSAL),
            hidden_size=hidden,
            intermediate_size=found["intermediate_size"],
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or hidden // heads,
            rms_norm_eps=found.get("rms_norm_eps", 1e-6),
            rope=_rope(found),
            max_position_embeddings=found.get("max_position_embeddings", 32768),
            vocab_size=found.get("vocab_size", 0),
            hidden_act=found.get("hidden_act", "silu"),
            attention_bias=bool(found.get("attention_bias", False)),
            layer_types=kinds if slides else (),
            sliding_window=found.get("sliding_window") if slides else None,
            draft_vocab_size=_draft_vocab(found),
        )

    def to_json(self) -> dict[str, Any]:
        """The published form, which JetSpec's and DFlash's own loaders read."""
        rope = dict(self.rope)
        theta = rope.pop("rope_theta")
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
                "causal_head": self.causal,
            },
            "rope_theta": theta,
            "rope_scaling": rope if rope.get("rope_type", "default") != "default" else None,
            **{name: getattr(self, name) for name in (*_SIZES, "num_key_value_heads", "head_dim", "rms_norm_eps")},
            **{name: getattr(self, name) for name in ("max_position_embeddings", "vocab_size", "hidden_act")},
            "attention_bias": self.attention_bias,
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "layer_types": list(self.layer_types) or ["full_attention"] * self.num_hidden_layers,
            "tie_word_embeddings": False,
            **({"draft_vocab_size": self.draft_vocab_size} if self.draft_vocab_size else {}),
        }

    @classmethod
    def for_target(
        cls,
        target: Any,
        *,
        mask_token_id: int,
        block_size: int = 16,
        layers: int = 5,
        causal: bool = True,
        target_layer_ids: Sequence[int] | None = None,
        draft_vocab_size: int = 0,
    ) -> HeadConfig:
        """The published shape for any target: its sizes, five layers, five taps, a block of 16.

        Args:
            target: the target's transformers configuration.
            mask_token_id: see above.
            block_size, layers, causal, draft_vocab_size: of the head.
            target_layer_ids: None is :func:`build_target_layer_ids`.

        Raises:
            UsageError: the target has one layer only, which is its last.
        """
        config = target.get_text_config()
        hidden, heads = config.hidden_size, config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
        taps = tuple(target_layer_ids or build_target_layer_ids(config.num_hidden_layers, layers))
        return cls(
            block_size=block_size,
            mask_token_id=mask_token_id,
            target_layer_ids=taps,
            num_target_layers=config.num_hidden_layers,
            causal=causal,
            hidden_size=hidden,
            intermediate_size=getattr(config, "intermediate_size", None) or 3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or hidden // heads,
            rms_norm_eps=1e-6,
            rope={"rope_type": "default", "rope_theta": theta or 10000.0},
            max_position_embeddings=getattr(config, "max_position_embeddings", None) or 32768,
            vocab_size=config.vocab_size,
            draft_vocab_size=draft_vocab_size,
        )


def shipped(model: str) -> Path | None:
    """The folder of the head that comes with specbench for a model's alias; None where there is none."""
    folder = Path(__file__).parent / "heads" / model
    return folder if model and (folder / "config.json").is_file() else None


def build_target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """The layers that the published heads tap: evenly spaced from the second to the third from the end.

    ``(36, 5)`` gives (1, 9, 17, 25, 33), as in DFlash's and JetSpec's function of this name. Targets too shallow for
    that get distinct layers from the first to the last but one, as many as there are.

    Raises:
        UsageError: a target of one layer.
    """
    if num_target_layers < 2:
        raise UsageError("a target of one layer has none that a head could tap; choose another model")
    if num_taps == 1:
        return (min(num_target_layers // 2, num_target_layers - 2),)
    first, last = 1, num_target_layers - 3
    if last - first + 1 < num_taps:
        first, last = 0, num_target_layers - 2
    span = last - first
    return tuple(dict.fromkeys(round(first + at * span / (num_taps - 1)) for at in range(num_taps)))


def _draft_vocab(values: Mapping[str, Any]) -> int:
    """0 also where a file names the whole vocabulary, as EAGLE-3's do."""
    size = int(values.get("draft_vocab_size") or 0)
    return 0 if size == values.get("vocab_size") else size


def _rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` of transformers 5, or ``rope_theta`` and ``rope_scaling`` of the versions before."""
    given: Mapping[str, Any] = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope = {"rope_theta": values.get("rope_theta") or 10000.0, **given}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    return rope
