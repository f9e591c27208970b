"""A head's ``config.json``: sizes, tapped layers, block size, and whether rows attend to later rows of the block.

Published heads have the same parameters but different names for the fields, so each field is read under all its
published names (JetSpec ``jetspec/models/draft_head.py``; DFlash ``dflash/model.py``; DeepSpec
``deepspec/modeling/dspark``; speculators ``models/dflash``; NeMo's, SGLang's and vLLM's readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from specbench.common import UsageError
from specbench.heads.head_config import HEAD_FILE, HEAD_SIZES, HeadConfig, PublishedHead, head_size, layer_sizes

C = TypeVar("C", bound="BlockHeadConfig")

_NESTED = ("transformer_layer_config", "jetspec_config", "dflash_config", "dspark_config")
_NEEDED = (*HEAD_SIZES[:2], "num_hidden_layers", HEAD_SIZES[2])
#: Untrained heads without files, and whether they are causal.
RANDOM: Mapping[str, bool] = {"random": True, "random-dflash": False}
_CAUSAL = ("causal_head", "causal", "is_causal")
#: SGLang's names of fields in a config.json that also describes the target.
_PREFIXED: Mapping[str, str] = {
    "dspark_block_size": "block_size",
    "dspark_noise_token_id": "mask_token_id",
    "dspark_target_layer_ids": "target_layer_ids",
    "dspark_markov_rank": "markov_rank",
    "dspark_markov_head_type": "markov_head_type",
}
#: ``projector_type`` of heads that consist of the parts below; other types add parts to them.
_PROJECTORS = ("dflash", "dspark", "jetspec")
#: Words in ``architectures`` or ``model_type`` of heads that have other parts, and these parts.
_OTHER_PARTS: Mapping[str, str] = {
    "gemma4": "Gemma 4's decoder layers",
    "deepseekv4": "DeepSeek V4's decoder layers",
    "kimik3": "Kimi K3's decoder layers",
    "dflash2": "DFlash2's convolutions and candidate selector",
    "domino": "Domino's GRU",
}


class PublishedBlockHead(PublishedHead):
    """Types of the fields of a published ``config.json``, under all names; other fields are ignored."""

    num_hidden_layers: int | None = head_size(1024)
    num_target_layers: int | None = head_size(1 << 16)
    block_size: int | None = Field(None, ge=0, le=1 << 16)
    target_layer_ids: list[int] | None = None
    aux_hidden_state_layer_ids: list[int] | None = None
    causal_head: bool | None = None
    causal: bool | None = None
    is_causal: bool | None = None
    sample_from_anchor: bool | None = None
    dspark_bonus_anchor: bool | None = None
    projector_type: str | None = None
    markov_rank: int | None = Field(None, ge=0, le=1 << 16)
    enable_confidence_head: bool | None = None


@dataclass(frozen=True, kw_only=True)
class BlockHeadConfig(HeadConfig):
    """A head's configuration. Its hidden size is the target's.

    Attributes:
        block_size: rows of a block S, the anchor included.
        mask_token_id: token that fills a block's rows after the anchor, embedded by the target's embedding.
        num_target_layers: number of layers of the head's target.
        causal: a row attends to the rows before it (JetSpec), not to its whole block (DFlash).
        sample_from_anchor: the anchor's row scores the token after the anchor, so that a block drafts S tokens
            (DeepSpec); otherwise that row scores nothing and the row of offset k scores the token at its own position,
            so that a block drafts S - 1 tokens.
    """

    FIELDS: ClassVar[type[PublishedHead]] = PublishedBlockHead
    POSITIONS = 32768

    block_size: int
    num_target_layers: int
    causal: bool
    sample_from_anchor: bool = False

    def __post_init__(self) -> None:
        if self.drafts < 1:
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

    @property
    def drafts(self) -> int:
        """Number of tokens that a block drafts."""
        return self.block_size - (not self.sample_from_anchor)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any], target_layers: int | None = None) -> C:
        """A configuration from a published ``config.json``.

        Args:
            values: content of the file. Fields about the block may be at the top level or under ``dflash_config``,
                ``dspark_config`` or ``jetspec_config``, and those about the layers under ``transformer_layer_config``;
                ``causal_head``, ``causal`` and ``is_causal`` mean the same, and without them the head looks ahead.
            target_layers: number of the target's layers, used if the file does not have it.
        """
        flat = dict(values)
        for nested in _NESTED:
            inner = values.get(nested)
            if isinstance(inner, Mapping):
                flat.update(inner)
        flat.update({name: flat[old] for old, name in _PREFIXED.items() if flat.get(old) is not None})
        found = cls.known(flat)
        _check_parts(values, flat, found)
        layers = found.get("num_target_layers") or target_layers or 0
        missing = [name for name in (*_NEEDED, "block_size", "mask_token_id") if found.get(name) is None]
        missing += [] if layers else ["num_target_layers"]
        if missing:
            raise UsageError(f"{HEAD_FILE} has no {', '.join(missing)}; it is not a head that drafts blocks")
        named = found.get("aux_hidden_state_layer_ids")
        # speculators names the layers whose inputs are read, the others the layers whose outputs are read.
        taps = [layer - 1 for layer in named] if named else found.get("target_layer_ids")
        return cls(
            **layer_sizes(found, cls.POSITIONS),
            block_size=found["block_size"],
            mask_token_id=found["mask_token_id"],
            taps=tuple(taps or build_target_layer_ids(layers, found["num_hidden_layers"])),
            num_target_layers=layers,
            causal=any(bool(found.get(name)) for name in _CAUSAL),
            sample_from_anchor=_samples_from_anchor(values, found),
            vocab_size=found.get("vocab_size", 0),
            draft_vocab_size=_draft_vocab(found),
            **cls.own_fields(found),
        )

    @classmethod
    def own_fields(cls, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return a subclass's own arguments from the validated fields of a ``config.json``."""
        if found.get("markov_rank") or found.get("enable_confidence_head"):
            raise UsageError(
                "cannot use the head: it has a Markov or confidence head, which only dspark runs; use --method dspark"
            )
        return {}

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
                **({"sample_from_anchor": True} if self.sample_from_anchor else {}),
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


def _names(values: Mapping[str, Any], *fields: str) -> list[str]:
    """The strings in these fields, in lower case."""
    parts = [part for field in fields for part in (values.get(field), *_listed(values.get(field)))]
    return [part.lower() for part in parts if isinstance(part, str)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_parts(values: Mapping[str, Any], flat: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a head with parts that this module lacks, and name the part.

    Raises:
        UsageError: names the part.
    """
    kind = found.get("projector_type")
    words = "".join(_names({**flat, **values}, "architectures", "model_type", "projector_type"))
    words = words.replace("_", "").replace("-", "")
    part = next((part for word, part in _OTHER_PARTS.items() if word in words), None)
    if part is None and kind is not None and kind.lower() not in _PROJECTORS:
        part = f"projector_type '{kind}'"
    if part is not None:
        raise UsageError(f"cannot use the head: {part} is not supported; use a DFlash, DSpark or JetSpec head")


def _samples_from_anchor(values: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the anchor's row scores a token.

    speculators' files from before the field existed have blocks whose anchor scores nothing, even those of DSpark; the
    number of tokens that the file proposes tells the two apart.
    """
    if "sample_from_anchor" in found:
        return bool(found["sample_from_anchor"])
    if "dspark_bonus_anchor" in found:  # vLLM's name for the opposite
        return not found["dspark_bonus_anchor"]
    about = values.get("speculators_config")
    proposals = _listed(about.get("proposal_methods")) if isinstance(about, Mapping) else []
    counts = [one.get("speculative_tokens") for one in proposals if isinstance(one, Mapping)]
    for size, anchored in ((found["block_size"], True), (found["block_size"] - 1, False)):
        if size in counts:
            return anchored
    kinds = [*_names(values, "architectures", "speculators_model_type"), *_names(found, "projector_type")]
    return any("dspark" in kind for kind in kinds)


def _draft_vocab(values: Mapping[str, Any]) -> int:
    """Size of the draft vocabulary; 0 if the head drafts the whole vocabulary, which EAGLE-3 files state explicitly."""
    size = int(values.get("draft_vocab_size") or 0)
    return 0 if size == values.get("vocab_size") else size
