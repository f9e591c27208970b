"""A head's ``config.json``: sizes, tapped layers, block size, and whether rows attend to later rows of the block.

Published heads have the same parameters but different names for the fields, so each field is read under all its
published names (JetSpec ``jetspec/models/draft_head.py``; DFlash ``dflash/model.py``; NeMo and vLLM's readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import Field

from specbench.common import UsageError
from specbench.heads.head_config import HEAD_FILE, HEAD_SIZES, HeadConfig, PublishedHead, head_size, layer_sizes

C = TypeVar("C", bound="BlockHeadConfig")

_NESTED = ("jetspec_config", "dflash_config")
_NEEDED = (*HEAD_SIZES[:2], "num_hidden_layers", HEAD_SIZES[2])
#: Untrained heads without files, and whether they are causal.
RANDOM: Mapping[str, bool] = {"random": True, "random-dflash": False}
_CAUSAL = ("causal_head", "causal", "is_causal")


class _Published(PublishedHead):
    """Types of the fields of a published ``config.json``, under all names; other fields are ignored."""

    num_hidden_layers: int | None = head_size(1024)
    num_target_layers: int | None = head_size(1 << 16)
    block_size: int | None = Field(None, ge=0, le=1 << 16)
    target_layer_ids: list[int] | None = None
    causal_head: bool | None = None
    causal: bool | None = None
    is_causal: bool | None = None


@dataclass(frozen=True, kw_only=True)
class BlockHeadConfig(HeadConfig):
    """A head's configuration. Its hidden size is the target's.

    Attributes:
        block_size: rows of a block S, the anchor included; it drafts S - 1 tokens.
        mask_token_id: token that fills a block's rows after the anchor, embedded by the target's embedding.
        num_target_layers: number of layers of the head's target.
        causal: a row attends to the rows before it (JetSpec), not to its whole block (DFlash).
    """

    FIELDS = _Published
    POSITIONS = 32768

    block_size: int
    num_target_layers: int
    causal: bool

    def __post_init__(self) -> None:
        if self.block_size < 2:
            raise UsageError(f"a block of {self.block_size} drafts no token; the head's block_size must be 2 or more")
        if not self.taps:
            raise UsageError("the head taps no layer of its target; its target_layer_ids are empty")
        last = self.num_target_layers - 1
        for layer in self.taps:
            if layer == last:
                # transformers returns this output after the final norm, other engines before it, and the file does not
                # say which of them the head was trained with.
                raise UsageError(
                    f"the head taps the last layer of its target ({layer}), which stands for two different outputs; "
                    f"use one that taps layers 0 to {last - 1}"
                )
            if not 0 <= layer < last:
                raise UsageError(f"the head taps layer {layer} of a target of {self.num_target_layers} layers")
        super().__post_init__()
        if self.layer_types and not self.causal:
            raise UsageError("the head has sliding-window layers and looks ahead, which is not expressed yet")

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any], target_layers: int | None = None) -> C:
        """A configuration from a published ``config.json``.

        Args:
            values: content of the file. Fields about the block may be at the top level or under ``dflash_config`` or
                ``jetspec_config``; ``causal_head``, ``causal`` and ``is_causal`` mean the same, and without them the
                head is DFlash's, which looks ahead.
            target_layers: number of the target's layers, used if the file does not have it.
        """
        found = dict(values)
        for nested in _NESTED:
            inner = values.get(nested)
            if isinstance(inner, Mapping):
                found.update(inner)
        found = cls.known(found)
        layers = found.get("num_target_layers") or target_layers or 0
        missing = [name for name in (*_NEEDED, "block_size", "mask_token_id") if found.get(name) is None]
        missing += [] if layers else ["num_target_layers"]
        if missing:
            raise UsageError(f"{HEAD_FILE} has no {', '.join(missing)}; it is not a JetSpec or DFlash head")
        return cls(
            **layer_sizes(found, cls.POSITIONS),
            block_size=found["block_size"],
            mask_token_id=found["mask_token_id"],
            taps=tuple(found.get("target_layer_ids") or build_target_layer_ids(layers, found["num_hidden_layers"])),
            num_target_layers=layers,
            causal=any(bool(found.get(name)) for name in _CAUSAL),
            vocab_size=found.get("vocab_size", 0),
            draft_vocab_size=_draft_vocab(found),
        )

    def to_json(self) -> dict[str, Any]:
        """The published form, which the loaders of JetSpec and DFlash read."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.taps),
                "causal_head": self.causal,
            },
            **self.written(),
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "layer_types": list(self.layer_types) or ["full_attention"] * self.num_hidden_layers,
            **({"draft_vocab_size": self.draft_vocab_size} if self.draft_vocab_size else {}),
        }

    @classmethod
    def for_target(cls: type[C], target: Any, *, layers: int = 5, taps: Sequence[int] | None = None, **own: Any) -> C:
        """The published shape for any target: the target's sizes, five layers, five taps, a block of 16.

        ``taps``: None means :func:`build_target_layer_ids`; ``own``: further fields, such as the mask token.
        """
        depth = target.get_text_config().num_hidden_layers
        known = {"block_size": 16, "causal": True, "num_target_layers": depth}
        taps = tuple(taps or build_target_layer_ids(depth, layers))
        return super().for_target(target, layers=layers, **{**known, **own, "taps": taps})

    @classmethod
    def untrained(cls: type[C], name: str, target: Any, last_token: int) -> C | None:
        if name not in RANDOM:
            return None
        return cls.for_target(target, mask_token_id=last_token, causal=RANDOM[name])

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        layers = self.num_target_layers, target.num_hidden_layers
        return {**super().agrees_with(target), "number of layers": layers}


def build_target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """The layers that the published heads tap: evenly spaced from the second to the third from the end.

    ``(36, 5)`` gives (1, 9, 17, 25, 33), as in DFlash's and JetSpec's function of this name. Targets too shallow for
    that get all layers except the last.
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
    """Size of the draft vocabulary; 0 if the head drafts the whole vocabulary, which EAGLE-3 files state explicitly."""
    size = int(values.get("draft_vocab_size") or 0)
    return 0 if size == values.get("vocab_size") else size
