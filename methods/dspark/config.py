"""A DSpark head's ``config.json``: a block head's fields, and those of its Markov and confidence heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field

from specbench.common import UsageError
from specbench.heads import HEAD_FILE, HEAD_TODO, BlockHeadConfig, PublishedBlockHead

MarkovType = Literal["vanilla", "gated", "rnn"]
MARKOV_TYPES: tuple[MarkovType, ...] = get_args(MarkovType)

_RANK, _BLOCK = 256, 7  # DeepSpec's


class _Published(PublishedBlockHead):
    """Types of the fields of a published ``config.json``; other fields are ignored."""

    markov_head_type: str | None = None
    confidence_head_with_markov: bool | None = None
    num_anchors: int | None = Field(None, ge=1)


@dataclass(frozen=True, kw_only=True)
class DSparkConfig(BlockHeadConfig):
    """A head's configuration.

    Attributes:
        markov_rank: rank of the Markov head; 0 for a head without one, which is a DFlash head.
        markov_head_type: "vanilla" (bias from the previous token), "gated" (weighted by the row's output) or "rnn"
            (bias from all drafts before).
        enable_confidence_head: whether the head predicts the probability that a draft is accepted; None if the file
            does not say it, and then the stored tensors decide, as in SGLang.
        confidence_head_with_markov: the confidence head reads the previous token's Markov embedding, too.
        num_anchors: blocks per text in training; DeepSpec's class needs the field.
    """

    FIELDS = _Published

    markov_rank: int = _RANK
    markov_head_type: MarkovType = "vanilla"
    enable_confidence_head: bool | None = True
    confidence_head_with_markov: bool = True
    num_anchors: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.markov_head_type not in MARKOV_TYPES:
            raise UsageError(
                f"cannot use the head: its markov_head_type '{self.markov_head_type}' is not supported; use a head "
                f"with {', '.join(MARKOV_TYPES)}"
            )
        if self.markov_rank and not self.vocab_size:
            raise UsageError(f"cannot read {HEAD_FILE}: it has no vocab_size; {HEAD_TODO}")
        if self.enable_confidence_head and self.confidence_head_with_markov and not self.markov_rank:
            raise UsageError(
                f"cannot read {HEAD_FILE}: confidence_head_with_markov needs a Markov head and markov_rank is 0; "
                f"{HEAD_TODO}"
            )

    @classmethod
    def own_fields(cls, found: Mapping[str, Any]) -> dict[str, Any]:
        rank = found.get("markov_rank", 0)
        return {
            "markov_rank": rank,
            "markov_head_type": found.get("markov_head_type", "vanilla").lower(),
            "enable_confidence_head": found.get("enable_confidence_head"),
            "confidence_head_with_markov": found.get("confidence_head_with_markov", rank > 0),
            "num_anchors": found.get("num_anchors", 512),
        }

    @classmethod
    def for_target(cls, target: Any, **own: Any) -> DSparkConfig:
        """DeepSpec's shape for any target: a block of 7 that drafts 7 tokens, and a Markov head of rank 256."""
        return super().for_target(target, **{"block_size": _BLOCK, "causal": False, "sample_from_anchor": True, **own})

    @classmethod
    def untrained(cls, name: str, target: Any, last_token: int) -> DSparkConfig | None:
        return cls.for_target(target, mask_token_id=last_token) if name == "random" else None

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        own = {"vocabulary": (self.vocab_size, target.vocab_size)} if self.markov_rank else {}
        return {**super().agrees_with(target), **own}

    def to_json(self) -> dict[str, Any]:
        """DeepSpec's form, which SGLang and vLLM read, too."""
        other = {"causal": True} if self.causal else {}
        other |= {} if self.sample_from_anchor else {"sample_from_anchor": False}
        return {
            "architectures": ["Qwen3DSparkModel"],
            "model_type": "qwen3",
            **self.written("block_size", "num_target_layers", "mask_token_id", "num_anchors"),
            "target_layer_ids": list(self.taps),
            "markov_rank": self.markov_rank,
            "markov_head_type": self.markov_head_type,
            "enable_confidence_head": bool(self.enable_confidence_head),
            "confidence_head_with_markov": self.confidence_head_with_markov,
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "layer_types": list(self.layer_types) or ["full_attention"] * self.num_hidden_layers,
            **({"draft_vocab_size": self.draft_vocab_size} if self.draft_vocab_size else {}),
            **other,
        }
