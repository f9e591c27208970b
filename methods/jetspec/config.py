"""A head's ``config.json``: sizes, tapped layers, block, and whether its rows look ahead.

The published heads agree on the parameters and not on the names of what is not a parameter, so each is read under all
the names it has had (JetSpec ``jetspec/models/draft_head.py``; DFlash ``dflash/model.py``; NeMo and vLLM's readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from specbench.common import UsageError, validate
from specbench.models.head_config import FILE, SIZES, TODO, HeadSizes, Published, size, sizes_in, sizes_of

_NESTED = ("jetspec_config", "dflash_config")
_NEEDED = (*SIZES[:2], "num_hidden_layers", SIZES[2])
_CAUSAL = ("causal_head", "causal", "is_causal")


class _Published(Published):
    """Types of what a published ``config.json`` may say, under all names; there is more in it."""

    num_target_layers: int | None = size(1 << 16)
    block_size: int | None = Field(None, ge=0, le=1 << 16)
    target_layer_ids: list[int] | None = None
    causal_head: bool | None = None
    causal: bool | None = None
    is_causal: bool | None = None
    vocab_size: int | None = Field(None, ge=0)
    draft_vocab_size: int | None = Field(None, ge=0, le=1 << 24)


@dataclass(frozen=True, kw_only=True)
class HeadConfig(HeadSizes):
    """What a head is, beside its weights. Its hidden size is the target's.

    Attributes:
        block_size: rows of a block S, the anchor included; it drafts S - 1 tokens.
        mask_token_id: token that fills a block's rows behind the anchor; the target's embedding of it is used.
        target_layer_ids: layers of the target, from 0, whose outputs it reads.
        num_target_layers: of the target it was made for.
        causal: a row sees the rows before it (JetSpec), not all of its block (DFlash).
        draft_vocab_size: tokens that it can draft; 0 is the target's whole vocabulary. With fewer, its file says which
            they are in ``d2t``, as EAGLE-3's heads do, and a pass reads only their rows of the target's LM head.
    """

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    causal: bool
    draft_vocab_size: int = 0

    def __post_init__(self) -> None:
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
        super().__post_init__()
        if self.layer_types and not self.causal:
            raise UsageError("the head has sliding-window layers and looks ahead, which is not expressed yet")

    @property
    def whole(self) -> bool:
        """It can draft every token, so that its ids are the target's."""
        return not self.draft_vocab_size

    @classmethod
    def from_json(cls, values: Mapping[str, Any], num_target_layers: int | None = None) -> HeadConfig:
        """A configuration from a published ``config.json``.

        Args:
            values: its content. What is about the block may stand at the top or under ``dflash_config`` or
                ``jetspec_config``; ``causal_head``, ``causal`` and ``is_causal`` are one, and without it the head is
                DFlash's, which looks ahead.
            num_target_layers: of the target, for a file that does not say.
        """
        found = dict(values)
        for nested in _NESTED:
            inner = values.get(nested)
            if isinstance(inner, Mapping):
                found.update(inner)
        known = validate(_Published, found, FILE, TODO)
        found = {name: value for name, value in known.model_dump().items() if value is not None}
        layers = int(found.get("num_target_layers") or num_target_layers or 0)
        missing = [name for name in (*_NEEDED, "block_size", "mask_token_id") if found.get(name) is None]
        missing += [] if layers else ["num_target_layers"]
        if missing:
            raise UsageError(f"{FILE} has no {', '.join(missing)}; it is no JetSpec or DFlash head")
        return cls(
            **sizes_in(found, 32768),
            block_size=int(found["block_size"]),
            mask_token_id=int(found["mask_token_id"]),
            target_layer_ids=tuple(
                found.get("target_layer_ids") or build_target_layer_ids(layers, found["num_hidden_layers"])
            ),
            num_target_layers=layers,
            causal=any(bool(found.get(name)) for name in _CAUSAL),
            vocab_size=found.get("vocab_size", 0),
            draft_vocab_size=_draft_vocab(found),
        )

    def to_json(self) -> dict[str, Any]:
        """The published form, which JetSpec's and DFlash's own loaders read."""
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
            **self.written(),
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "layer_types": list(self.layer_types) or ["full_attention"] * self.num_hidden_layers,
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

        ``target_layer_ids``: None is :func:`build_target_layer_ids`.
        """
        config = target.get_text_config()
        taps = tuple(target_layer_ids or build_target_layer_ids(config.num_hidden_layers, layers))
        return cls(
            **sizes_of(config, layers, 32768),
            block_size=block_size,
            mask_token_id=mask_token_id,
            target_layer_ids=taps,
            num_target_layers=config.num_hidden_layers,
            causal=causal,
            draft_vocab_size=draft_vocab_size,
        )


def build_target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """The layers that the published heads tap: evenly spaced from the second to the third from the end.

    ``(36, 5)`` gives (1, 9, 17, 25, 33), as in DFlash's and JetSpec's function of this name. Targets too shallow for
    that get distinct layers from the first to the last but one, as many as there are.
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
