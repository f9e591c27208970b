"""What the configurations of all draft heads have in common: sizes, rope, and where they are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import UsageError

FILE, TODO = "the head's config.json", "take a whole copy of the head"
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")
#: Types of rope whose frequencies do not depend on the length of the text: a captured pass could not follow the others.
_ROPES = ("default", "linear", "yarn", "llama3")
_LARGEST = 1 << 24  # of a size: beyond it products of two no longer fit where they are counted


def size(most: int = _LARGEST) -> Any:
    """A field for a positive size that may be missing."""
    return Field(None, ge=1, le=most)


class Published(BaseModel):
    """Types of the fields that every published ``config.json`` may have; each kind of head adds its own."""

    model_config = ConfigDict(strict=True)

    hidden_size: int | None = size()
    intermediate_size: int | None = size()
    num_hidden_layers: int | None = size(1024)
    num_attention_heads: int | None = size()
    num_key_value_heads: int | None = size()
    head_dim: int | None = size()
    mask_token_id: int | None = Field(None, ge=0)
    rms_norm_eps: float | None = Field(None, gt=0)
    hidden_act: str | None = None
    attention_bias: bool | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    max_position_embeddings: int | None = None
    rope_theta: float | None = Field(None, gt=0)
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """Sizes of a draft head's own decoder layers.

    Attributes:
        rope: ``rope_type``, ``rope_theta`` and what the type needs.
        layer_types: "full_attention" or "sliding_attention" of each layer; empty where none slides.
        max_position_embeddings, vocab_size: for the record; no parameter depends on them.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope: Mapping[str, Any]
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        """Refuse what no pass can run.

        Raises:
            UsageError: names the field.
        """
        kind = self.rope.get("rope_type", "default")
        if kind not in _ROPES:
            raise UsageError(f"the head has '{kind}' rope, which is not expressed yet; known: {', '.join(_ROPES)}")

    def written(self, *names: str) -> dict[str, Any]:
        """The fields that every producer's ``config.json`` spells alike, and ``names``."""
        rope = dict(self.rope)
        theta = rope.pop("rope_theta")
        common = (*SIZES, "num_hidden_layers", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act")
        return {
            "rope_theta": theta,
            "rope_scaling": rope if rope.get("rope_type", "default") != "default" else None,
            **{name: getattr(self, name) for name in (*common, "max_position_embeddings", "vocab_size", *names)},
            "attention_bias": self.attention_bias,
            "tie_word_embeddings": False,
        }


def sizes_in(found: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """Arguments of :class:`HeadSizes` but ``vocab_size``, from a ``config.json`` whose :data:`SIZES` are there."""
    hidden, heads = found["hidden_size"], found["num_attention_heads"]
    kinds = tuple(found.get("layer_types") or ())
    slides = "sliding_attention" in kinds
    rope = {
        "rope_theta": found.get("rope_theta") or 10000.0,
        # transformers 5 has rope_parameters, the versions before it rope_scaling
        **(found.get("rope_parameters") or found.get("rope_scaling") or {}),
    }
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    return {
        "hidden_size": hidden,
        "intermediate_size": found["intermediate_size"],
        "num_hidden_layers": found.get("num_hidden_layers") or 1,
        "num_attention_heads": heads,
        "num_key_value_heads": found.get("num_key_value_heads") or heads,
        "head_dim": found.get("head_dim") or hidden // heads,
        "rope": rope,
        "rms_norm_eps": found.get("rms_norm_eps", 1e-6),
        "hidden_act": found.get("hidden_act", "silu"),
        "attention_bias": bool(found.get("attention_bias")),
        "layer_types": kinds if slides else (),
        "sliding_window": found.get("sliding_window") if slides else None,
        "max_position_embeddings": found.get("max_position_embeddings", positions),
    }


def sizes_of(config: Any, layers: int, positions: int) -> dict[str, Any]:
    """Arguments of :class:`HeadSizes` for a head whose layers are shaped like a target's.

    Args:
        positions: where the target does not say how many it has.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    return {
        "hidden_size": hidden,
        "intermediate_size": getattr(config, "intermediate_size", None) or 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or hidden // heads,
        "vocab_size": config.vocab_size,
        "rope": {"rope_type": "default", "rope_theta": theta or 10000.0},
        "max_position_embeddings": getattr(config, "max_position_embeddings", None) or positions,
    }


def shipped(method: str, model: str) -> Path | None:
    """The folder of the head that comes with specbench for a method and a model's alias; None where there is none."""
    folder = Path(__file__).parents[1] / "methods" / method / "heads" / model
    return folder if model and (folder / "config.json").is_file() else None
